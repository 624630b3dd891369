"""Tables and JSON say the same of what fits and of what does not."""

import dataclasses
import io
import json

from absl.testing import absltest
from rich.console import Console

from launch.planning import report
from launch.planning.advice import Advice
from launch.planning.chips import GIB, parse_slice
from launch.planning.compiler.collectives import Collective
from launch.planning.compiler.compiled import Compiled, Memory
from launch.planning.formulas import Estimate
from launch.planning.roofline import Attempts, Flops, Load, Roofline
from launch.planning.study import Judgement

V6E_64 = parse_slice("v6e-64")
MESH = {"data": 1, "fsdp": 32, "tensor": 2, "sequence": 1, "expert": 1}

FITS = Judgement(
  name="gradient",
  slice_=V6E_64,
  compiled=Compiled(
    memory=Memory(
      arguments=4 * GIB,
      outputs=2 * GIB,
      aliased=2 * GIB,
      temporaries=5 * GIB,
      code=0,
    ),
    wanted=9 * GIB,
    exchanges=(Collective("all-gather", (0, 1), GIB, 3, "", True),),
    moved=7 * GIB,
    seconds=12.0,
  ),
  beside={"optimizer": 3 * GIB},
  tokens=64_000,
  flops=Flops(3e15, 4e15),
  roofline=Roofline(
    compute_s=2.0, memory_s=1.0, links_s=0.5, waiting_s=0.0, network_s=0.0
  ),
)
LOAD = Load(
  attempts=Attempts(prompt=100, turns=100, num=4),
  tokens=64_000,
  computed=60_000.0,
  of_trajectories=96_000.0,
  keys_needed=100.0,
  keys_visited=200.0,
)
SHARES = dataclasses.replace(FITS, load=LOAD)
REFUSED = Judgement(
  name="decode",
  slice_=V6E_64,
  compiled=Compiled(memory=None, wanted=40 * GIB),
  beside={},
  tokens=100,
  flops=Flops(1, 1),
  roofline=None,
)
DIED = dataclasses.replace(
  REFUSED, compiled=Compiled(memory=None, wanted=0, failure="it was ended")
)


class ReportTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.console = Console(file=io.StringIO(), width=120)

  def _has(self, *lines):
    for line in lines:
      self.assertRegex(self.console.file.getvalue(), line)

  def _show(self, *judged):
    report.show(self.console, judged, due={"gradient": 2.5 * GIB})

  def test_a_death_of_the_compiler_is_said_where_its_figures_would_be(self):
    self._show(FITS, DIED)
    self._has(r"arguments +│ +4\.00 │ +died", r"left +│ +[\d.]+ │ +- ")
    found = report.as_json([FITS, DIED], [])["programs"]
    self.assertEqual(found["decode"]["failure"], "it was ended")
    self.assertNotIn("failure", found["gradient"])

  def test_tables_say_what_fits_what_binds_and_what_is_left(self):
    self._show(FITS, REFUSED)
    self._has(
      r"temporaries +│ +5.00 │ +refused ",
      r"beside: optimizer +│ +3.00 │ +│",
      r"total +│ +12.00 │ +40.00 ",
      r"left +│ +18.31 │ +-9.69 ",
      r"fits +│ +yes │ +NO ",
      r"GiB by all-gather, per chip +│ +3.000 │ +0.000 ",
      r"GiB by formula, all kinds +│ +2.500 │ +- ",
      r"ms, bound +│ +2,000.00 │ +- ",
      r"binds +│ +compute │ +- ",
      r"tokens/s at the bound +│ +32,000 │ +0 ",
    )
    shown = self.console.file.getvalue()
    self.assertNotIn("network", shown)
    self.assertNotIn("trajectories", shown)

  def test_meshes_say_whether_they_fit_and_which_is_the_config_s(self):
    other = MESH | {"fsdp": 64, "tensor": 1}
    found = [
      Estimate(
        mesh=mesh,
        rows=32,
        tokens=64_000,
        num_bytes=3 * GIB,
        roofline=FITS.roofline,
        fits=mesh == MESH,
      )
      for mesh in (MESH, other)
    ]
    report.show_meshes(self.console, found, MESH)
    self._has(
      r"fsdp=32 tensor=2 \(config\) │ +32 │ +yes │ +3.0 │ 2,000 │ compute │",
      r"fsdp=64 +│ +32 │ +no │",
    )

  def test_advice_is_a_line_of_flags(self):
    advice = Advice(slices={"topology": "v5p:4x4x4"}, effect="64 chips")
    report.show_advice(self.console, [advice])
    self._has(r"by arithmetic: --topology=v5p:4x4x4 \(64 chips\)")
    self.assertEqual(
      report.as_json([], [advice])["advice"],
      [{"flags": "--topology=v5p:4x4x4", "effect": "64 chips"}],
    )

  def test_the_network_has_rows_where_there_are_slices(self):
    crosses = Collective("all-reduce", (1, 2), GIB, 2, "", True, num_slices=2)
    two = dataclasses.replace(
      FITS,
      slice_=parse_slice("2xv6e-64"),
      compiled=dataclasses.replace(
        FITS.compiled, exchanges=(*FITS.compiled.exchanges, crosses)
      ),
      roofline=dataclasses.replace(FITS.roofline, network_s=3.0),
    )
    self._show(two, REFUSED)
    self._has(
      r"GiB by all-reduce, per chip +│ +2.000 │ +0.000 ",
      r"GiB of these between slices +│ +2.000 │ +0.000 ",
      r"ms, network +│ +3,000.00 │ +- ",
      r"ms, bound +│ +3,000.00 ",
      r"ms, in turn +│ +6,500.00 ",
      r"binds +│ +network ",
    )

  def test_tokens_of_trajectories_stand_beside_those_computed(self):
    self._show(SHARES, REFUSED)
    self._has(
      r"tokens +│ +64,000 │ +100 ",
      r"tokens computed, without padding +│ +60,000 │ +- ",
      r"tokens of trajectories +│ +96,000 │ +- ",
      r"% of these shared +│ +37.5 │ +- ",
      r"GFLOP needed per token of these +│ +31.25 │ +- ",
      r"tokens of trajectories/s +│ +48,000 │ +- ",
    )

  def test_json_has_bytes_seconds_and_operations(self):
    found = json.loads(json.dumps(report.as_json([SHARES, REFUSED], [])))
    gradient = found["programs"]["gradient"]
    self.assertEqual(
      (
        gradient["memory_bytes"]["total"],
        gradient["wanted_bytes"],
        gradient["received_bytes"],
        gradient["roofline_s"]["step_s"],
        gradient["load"]["trajectory_tokens_per_s"],
      ),
      (9 * GIB, 12 * GIB, {"all-gather": 3 * GIB}, 2.0, 48_000),
    )
    self.assertIsNone(found["programs"]["decode"]["roofline_s"])
