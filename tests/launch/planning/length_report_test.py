"""Plans of lengths as tables, as flags of a run, and as JSON."""

import ast
import dataclasses
import io
import json
import shlex

from absl.testing import absltest
from rich.console import Console

from agentrl_jax.train.config.layout import Layout, read_layouts
from configs import pod
from launch.planning import report
from launch.planning.chips import GIB
from launch.planning.length_plans import LengthPlan
from launch.planning.search import Candidate
from tests.launch.planning.report_test import FITS, REFUSED

FSDP = {"data": 1, "fsdp": 32, "tensor": 1, "sequence": 1}
SPLIT = {"data": 1, "fsdp": 16, "tensor": 1, "sequence": 2}


def _candidate(mesh, *, seconds: float = 2.0, fits: bool = True) -> Candidate:
  bound = dataclasses.replace(FITS.roofline, compute_s=seconds)
  judged = dataclasses.replace(FITS, roofline=bound) if fits else REFUSED
  return Candidate(
    mesh=mesh,
    rows=32,
    estimate_s=1e-5,
    judged=judged,
    is_own=mesh == FSDP,
  )


def _plan(length: int, *found: Candidate) -> LengthPlan:
  fitting = [c for c in found if c.judged.fits]
  return LengthPlan(
    length=length,
    compiled=found,
    best=fitting[0] if fitting else None,
    num_excluded=3,
    num_left=40,
  )


SHORT = _plan(2048, _candidate(FSDP), _candidate(SPLIT, seconds=4.0))
FASTER = _plan(8192, _candidate(SPLIT), _candidate(FSDP, seconds=2.5))
LONG = _plan(131072, _candidate(SPLIT), _candidate(FSDP, fits=False))
NOWHERE = _plan(2**20, _candidate(SPLIT, fits=False))


class OverridesTest(absltest.TestCase):
  def _read(self, plans):
    """The layouts of a run that has these flags."""
    flags = shlex.split(report.overrides(plans))
    changes = dict(
      flag.removeprefix("--config.").split("=", 1) for flag in flags
    )
    config = pod.get_config("qwen3-8b")
    config.update_from_flattened_dict(
      {key: ast.literal_eval(value) for key, value in changes.items()}
    )
    own = Layout(
      config.train.row_length,
      config.train.micro_batch,
      {axis: config.mesh[axis] for axis in FSDP},
    )
    return read_layouts(config.train.layouts, own)

  def test_a_run_reads_them_as_they_were_planned(self):
    for plans in ([SHORT], [SHORT, LONG], [SHORT, FASTER, LONG, NOWHERE]):
      fitting = [plan for plan in plans if plan.best is not None]
      self.assertEqual(
        self._read(plans),
        tuple(Layout(p.length, p.best.rows, p.best.mesh) for p in fitting),
      )

  def test_there_are_none_where_nothing_fits(self):
    self.assertEqual(report.overrides([NOWHERE]), "")


class ChangesTest(absltest.TestCase):
  def test_they_say_where_and_by_how_much(self):
    (sentence,) = report.changes([SHORT, FASTER])
    self.assertEqual(
      sentence,
      "between 2048 and 8192 tokens the best mesh changes from fsdp=32 to "
      "fsdp=16 sequence=2: at 8192 it is 25% faster",
    )

  def test_a_mesh_may_not_fit_any_more(self):
    (sentence,) = report.changes([SHORT, LONG, NOWHERE])
    self.assertIn("between 2048 and 131072 tokens", sentence)
    self.assertTrue(sentence.endswith("at 131072 fsdp=32 does not fit"))

  def test_none_is_a_sentence_too(self):
    self.assertEqual(
      report.changes([FASTER, LONG]),
      ["one mesh is best at all 2 lengths that fit"],
    )
    self.assertEmpty(report.changes([SHORT]))
    self.assertEmpty(report.changes([NOWHERE]))


class TablesTest(absltest.TestCase):
  def test_they_show_every_length_and_mesh(self):
    console = Console(file=io.StringIO(), width=110)
    report.show_lengths(console, [SHORT, LONG, NOWHERE])
    lines = console.file.getvalue().splitlines()
    (row,) = (line for line in lines if line.startswith("│           2,048"))
    self.assertRegex(
      row, r"fsdp=32 \(config\) +│ +32 │ 64,000 │ 2,000.0 │ compute │ +32,000"
    )
    self.assertRegex("".join(lines), r"│ +1,048,576 │ none fits")
    speeds = [line for line in lines if line.startswith("│ fsdp=")]
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in speeds]
    self.assertEqual(
      cells,
      [
        ["fsdp=32", "32,000", "no", "-"],
        ["fsdp=16 sequence=2", "16,000", "32,000", "no"],
      ],
    )
    self.assertIn(report.overrides([SHORT, LONG]), lines)

  def test_json_says_the_same(self):
    plans = [SHORT, LONG, NOWHERE]
    found = json.loads(json.dumps(report.lengths_as_json(plans)))
    self.assertEqual(
      [one["length"] for one in found["lengths"]], [2048, 131072, 2**20]
    )
    self.assertEqual(
      [one["best"] for one in found["lengths"]], [FSDP, SPLIT, None]
    )
    short = found["lengths"][0]["meshes"][0]
    self.assertEqual(short["step_s"], 2.0)
    self.assertEqual(short["tokens_per_s"], 32_000)
    self.assertEqual(short["left_bytes"], FITS.left)
    self.assertGreater(short["left_bytes"], GIB)
    self.assertFalse(found["lengths"][2]["meshes"][0]["fits"])
    self.assertEqual(found["overrides"], report.overrides(plans))
    self.assertEqual(found["changes"], report.changes(plans))
