"""`launch.metrics` and the docs name the metrics and keys of a real run.

One run, with everything in its config that writes metrics in one process: a
critic, a reference, importance weights, a prefix store.
"""

import json
import pathlib
import re
import tempfile
from collections.abc import Iterator

import pytest
from absl.testing import absltest

from launch.metrics import WRITERS, is_of
from launch.reports.metrics_file import read_metrics
from launch.run.training import train
from tests.launch import tiny

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 3
# Written only where the engine or the players are other processes; the tests
# of those runs read them.
ELSEWHERE = ("rollouts/", "snapshots/", "agents/")
# What no healthy run of this config writes; tests of their own see them.
RARE = (
  "metrics/num_not_finite",
  "loss/held_out",
  "loss/<function>",
  "policy/token_weight",
  "engine/router",
  "expert_load",
  "rollout/fault/",
  "eval/",
  "episode/",
  "calls/",
  "advantage/",  # of a critic, which the config has
  "batch/trajectories_with_signal",
  "groups/dropped/breaker_open",
  "groups/dropped/no_place",
  "groups/dropped/faults",
  "groups/dropped/too_late",
)
MEANINGS = {
  name: meaning
  for meanings in WRITERS.values()
  for name, meaning in meanings.items()
}


def config_of(workdir: pathlib.Path):
  c = tiny.get_config()
  c.workdir = str(workdir)
  c.compile_cache = ""
  c.train.steps = STEPS
  c.engine.draft_tokens = 2
  c.model.value_head = True
  c.loss.update(
    value_coefficient=1.0,
    kl_coefficient=1e-3,
    proximal="recomputed",
    importance="truncated",
    stale_failures=5.0,
  )
  c.advantage.estimator = "gae"
  c.admission.refills_per_step = 1
  return c


def is_explained(written: str) -> bool:
  return any(is_of(name, written) for name in MEANINGS)


def test_metrics_that_pages_name_are_explained():
  """A page may write a metric's pattern, or its name."""
  first = "|".join({name.split("/")[0] for name in MEANINGS if "/" in name})
  rooms = ("rollout/engine", "rollout/api", "rollout/openai")
  for page in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]:
    if page.name != "architecture.md":  # it names folders
      for name in re.findall(rf"`((?:{first})/[a-z_<>/]+)`", page.read_text()):
        assert is_explained(name) or name.startswith(rooms), (page, name)


def leaves(value, path: str = "") -> Iterator[str]:
  """The path of every value that holds no others, as the docs write it."""
  if path.startswith("config_changes.") and path.endswith("[]"):
    yield path  # a value of the config, which may hold anything
  elif isinstance(value, dict):
    for key, inner in value.items():
      yield from leaves(inner, f"{path}.{key}".lstrip("."))
  elif isinstance(value, list) and value:
    for inner in value:
      yield from leaves(inner, f"{path}[]")
  elif isinstance(value, list):
    yield f"{path}[]"
  else:
    yield path


@pytest.mark.slow
class ReadingARunTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    train(config_of(pathlib.Path(folder)))
    cls.root = pathlib.Path(folder) / "tiny"
    cls.rows = [
      row
      for row in read_metrics(cls.root / "metrics.jsonl")
      if row.stage == "rl"
    ]
    cls.written = {name for row in cls.rows for name in row.values}
    cls.summary = json.loads((cls.root / "summary.json").read_text())

  def test_the_engine_says_what_it_did(self):
    for row in self.rows:
      by_policy_slot = {
        name: value
        for name, value in row.values.items()
        if name.startswith("engine/sampled_tokens/")
      }
      self.assertLen(by_policy_slot, 2)
      self.assertGreater(
        by_policy_slot["engine/sampled_tokens/policy_slot0"], 0
      )
    # Between two updates it may have had nothing to do.
    busy = [
      row.values for row in self.rows if row.values["engine/tokens_per_s"]
    ]
    self.assertNotEmpty(busy)
    for values in busy:
      self.assertBetween(values["engine/slot_occupancy/policy_slot0"], 0, 1)
    sampled = [
      r.values["engine/sampled_tokens/policy_slot0"] for r in self.rows
    ]
    self.assertEqual(sampled, sorted(sampled))
    total = sum(
      value
      for name, value in self.rows[-1].values.items()
      if name.startswith("engine/sampled_tokens/")
    )
    # Evaluations and what is in flight come on top of the finished attempts.
    self.assertGreater(
      total, self.rows[-1].values["rollout/sampled_tokens/arithmetic"]
    )

  def test_every_metric_that_is_explained_is_written(self):
    for name in MEANINGS:
      if not name.startswith((*ELSEWHERE, *RARE)):
        with self.subTest(name):
          self.assertTrue(any(is_of(name, each) for each in self.written))

  def test_every_metric_that_is_written_is_explained(self):
    self.assertEmpty({x for x in self.written if not is_explained(x)})

  def test_metrics_of_other_processes_are_in_the_code(self):
    """Those of servers and agents: the very name stands where it is made."""
    for name in MEANINGS:
      if name.startswith(ELSEWHERE):
        places = [ROOT / "launch" / "serving", ROOT / "agentrl_jax" / "train"]
        code = "".join(
          path.read_text().partition("MEANINGS = {")[0]
          for place in places
          for path in place.rglob("*.py")
        )
        with self.subTest(name):
          self.assertIn(f'"{name}"', code)

  def test_the_summary_has_the_keys_that_the_docs_name(self):
    page = (ROOT / "docs" / "reading_a_run.md").read_text()
    section = page.partition("## summary.json")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    patterns = [
      # A config's keys have dots of their own.
      re.compile(re.sub(r"<[a-z]+>", ".+" if "<key>" in n else r"[^.]+", p))
      for n in named
      for p in [re.escape(n)]
    ]
    found = set(leaves(self.summary))
    undocumented = {
      leaf for leaf in found if not any(p.fullmatch(leaf) for p in patterns)
    }
    self.assertEmpty(undocumented)
    for name, pattern in zip(named, patterns, strict=True):
      with self.subTest(name):
        self.assertTrue(any(pattern.fullmatch(leaf) for leaf in found))

  def test_time_is_told_of_every_stage(self):
    wall_s = self.summary["wall_s"]
    for stage in ("demonstrations", "evaluate_scripted_greedy", "rl", "other"):
      self.assertGreater(wall_s[stage], 0)
