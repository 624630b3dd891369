"""The docs name the metrics and keys that a real run files.

One run, with everything in its config that writes metrics in one process: a
critic, a reference, importance weights, a prefix store.
"""

import collections
import json
import pathlib
import re
import tempfile
from collections.abc import Iterator

import pytest
from absl.testing import absltest

from agentrl_jax.metrics import read_metrics
from launch.run.training import train
from tests.launch import tiny

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 3
# Written only where the engine or the players are other processes; the tests
# of those runs read them.
ELSEWHERE = ("rollouts/", "snapshots/", "agents/")
PREFIXES = (
  "policy",
  "critic",
  "policy_slots",
  "engine",
  "seconds",
  "queue",
  "staleness",
  "rollout",
  "groups",
  "batch",
  "success",
  "reward",
  "rollouts",
  "snapshots",
  "agents",
  "metrics",
  "updates",
)
# Written as `name/name`, and no metric: places in the code.
PLACES = ("rollout/engine/engine", "rollout/api")
# What no healthy run writes; the tests of a breaker see its two.
RARE = (
  "metrics/num_not_finite",
  *(
    f"groups/dropped/{reason}/<task>"
    for reason in ("breaker_open", "no_place", "faults", "too_late")
  ),
)


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
  c.task_weights.rule = "signal"
  c.admission.refills_per_step = 1
  c.engine.update(prefix_cache_tokens=320, block_size=32)
  c.mutual_information.every = 1
  return c


def documented() -> list[str]:
  """The metrics that any page of the docs names, as written there."""
  pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
  pages.remove(
    ROOT / "docs" / "architecture.md"
  )  # it names folders, not metrics
  pages += (ROOT / "environments").glob("*/README.md")
  found = set()
  for page in pages:
    for name in re.findall(r"`([a-z_]+/[a-z0-9_<>/]+)`", page.read_text()):
      if name.split("/")[0] in PREFIXES and name not in PLACES:
        found.add(name)
  return sorted(found)


def pattern_of(name: str) -> str:
  """`policy_slot<k>` and `<task>` stand for a policy slot's number and a
  task's name.
  """
  pattern = re.escape(name).replace("policy_slot<k>", r"policy_slot\d+")
  return re.sub(r"<[a-z_]+>", r"[^/]+", pattern)


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

  def test_every_metric_that_the_docs_name_is_written(self):
    names = documented()
    self.assertIn("policy/kl_to_behavior", names)
    self.assertIn("engine/slot_occupancy/policy_slot<k>", names)
    for name in names:
      if name.startswith(ELSEWHERE) or name in RARE:
        continue
      with self.subTest(name):
        pattern = re.compile(pattern_of(name))
        self.assertTrue(
          any(pattern.fullmatch(each) for each in self.written), name
        )

  def test_metrics_of_other_processes_are_in_the_code(self):
    """Those of servers and agents: the very name stands where it is made."""
    code = "\n".join(
      path.read_text()
      for folder in ("agentrl_jax", "launch")
      for path in (ROOT / folder).rglob("*.py")
    )
    for name in documented():
      if name.startswith(ELSEWHERE):
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

  def test_time_and_success_are_told_of_every_stage(self):
    wall_s = self.summary["wall_s"]
    for stage in ("demonstrations", "evaluate_scripted_greedy", "rl", "other"):
      self.assertGreater(wall_s[stage], 0)
    self.assertEqual(
      list(self.summary["learning"]), ["warm_start", "rl", "all"]
    )

  def test_every_metric_of_the_engine_is_documented(self):
    patterns = [re.compile(pattern_of(name)) for name in documented()]
    unnamed = collections.Counter(
      name
      for name in self.written
      if name.startswith("engine/")
      and not any(pattern.fullmatch(name) for pattern in patterns)
    )
    self.assertEmpty(unnamed)
