"""Tables and JSON say the same of what fits and of what does not."""

import dataclasses
import io
import json

from absl.testing import absltest
from rich.console import Console

from configs import pod
from launch.planning import report
from launch.planning.advice import Advice, Adviser
from launch.planning.chips import GIB, parse_slice
from launch.planning.collectives import Collective
from launch.planning.compiled import Compiled, Memory
from launch.planning.roofline import Attempts, Flops, Load, Roofline
from launch.planning.search import Candidate, Largest
from launch.planning.study import Deployment, Judgement

V6E_64 = parse_slice("v6e-64")
MESH = {"data": 1, "fsdp": 32, "tensor": 2, "sequence": 1}

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
RANKED = [
  Candidate(mesh=MESH, rows=32, estimate_s=1e-5, judged=FITS, is_own=True),
  Candidate(mesh=MESH, rows=32, estimate_s=1e-5, judged=REFUSED),
]
LARGEST = [
  Largest("train.micro_batch", 96, FITS),
  Largest("engine.slots[0]", 0, REFUSED),
]

ADVICE = [
  Advice(
    flags="--topology=v5p:4x4x4",
    effect="more chips",
    left=2 * GIB,
    roles=("learner",),
  )
]


def _adviser(num_compiled=0, num_excluded=0, budget=6):
  adviser = Adviser(
    pod.get_config(), Deployment(learner=V6E_64), ("learner",), budget=budget
  )
  adviser.num_compiled, adviser.num_excluded = num_compiled, num_excluded
  return adviser


class ReportTest(absltest.TestCase):
  def test_a_death_of_the_compiler_is_said_where_its_figures_would_be(self):
    out = io.StringIO()
    console = Console(file=out, width=120)
    report.show(console, [FITS, DIED])
    ranked = [
      dataclasses.replace(each, judged=judged)
      for each, judged in zip(RANKED, (DIED, FITS), strict=True)
    ]
    report.show_search(console, ranked)
    report.show_largest(console, [Largest("engine.slots[0]", 0, DIED)])
    text = out.getvalue()
    self.assertRegex(text, r"arguments +│ +4\.00 │ +died")
    self.assertRegex(text, r"left +│ +[\d.]+ │ +- ")
    self.assertRegex(text, r"\(config\) +│ +32 │ died │ +- │ +- │ +0 │ +- │")
    self.assertIn("\nit was ended\n", text)
    self.assertIn("engine.slots[0]: it was ended\n", text)
    found = report.as_json([FITS, DIED], [], ranked, [])
    self.assertEqual(found["programs"]["decode"]["failure"], "it was ended")
    self.assertEqual(found["meshes"][0]["gradient"]["failure"], "it was ended")
    self.assertNotIn("failure", found["programs"]["gradient"])

  def test_advice_in_vain_says_what_was_tried(self):
    for num_compiled, words in (
      (2, "3 are too large by arithmetic, 2 were compiled\n"),
      (6, "6 were compiled; --advice sets how many are\n"),
    ):
      console = Console(file=io.StringIO(), width=120)
      report.show_advice(console, [], _adviser(num_compiled, 3))
      self.assertIn("no change that was tried fits", console.file.getvalue())
      self.assertIn(words, console.file.getvalue())
    report.show_advice(console := Console(file=io.StringIO()), [], _adviser())
    self.assertEqual(console.file.getvalue(), "")

  def test_tables_say_what_fits_what_binds_and_what_is_left(self):
    console = Console(file=io.StringIO(), width=120)
    report.show(console, [FITS, REFUSED])
    report.show_search(console, RANKED)
    report.show_largest(console, LARGEST)
    report.show_advice(console, ADVICE, _adviser())
    shown = console.file.getvalue()
    for line in (
      r"temporaries +│ +5.00 │ +refused ",
      r"beside: optimizer +│ +3.00 │ +│",
      r"total +│ +12.00 │ +40.00 ",
      r"left +│ +18.31 │ +-9.69 ",
      r"fits +│ +yes │ +NO ",
      r"GiB by all-gather, per chip +│ +3.000 │ +0.000 ",
      r"ms, bound +│ +2,000.00 │ +- ",
      r"binds +│ +compute │ +- ",
      r"tokens/s at the bound +│ +32,000 │ +0 ",
      r"million tokens per chip-hour +│ +1.80 ",
      r"fsdp=32 tensor=2 \(config\) │ +32 │ +yes │ +2,000 │ compute │ +32,000 ",
      r"fsdp=32 tensor=2 +│ +32 │ +no │ +- ",
      "train.micro_batch: 96 is the most that fits",
      "not even the smallest fits",
      r"--topology=v5p:4x4x4: more chips \(checked: 2.0 GiB of a chip left\)",
    ):
      self.assertRegex(shown, line)

  def test_the_network_has_rows_where_there_are_slices(self):
    crosses = Collective("all-reduce", (1, 2), GIB, 2, "", True, num_slices=2)
    compiled = dataclasses.replace(
      FITS.compiled, exchanges=(*FITS.compiled.exchanges, crosses)
    )
    two = dataclasses.replace(
      FITS,
      slice_=parse_slice("2xv6e-64"),
      compiled=compiled,
      roofline=dataclasses.replace(FITS.roofline, network_s=3.0),
    )
    shown = self._shown(two, REFUSED)
    for line in (
      r"GiB by all-reduce, per chip +│ +2.000 │ +0.000 ",
      r"GiB of these between slices +│ +2.000 │ +0.000 ",
      r"ms, network +│ +3,000.00 │ +- ",
      r"ms, bound +│ +3,000.00 ",
      r"ms, in turn +│ +6,500.00 ",
      r"binds +│ +network ",
      # The tokens of one run in 3 s, over 128 chips.
      r"million tokens per chip-hour +│ +0.60 ",
    ):
      self.assertRegex(shown, line)
    self.assertNotIn("network", self._shown(FITS, REFUSED))
    (found,) = report.as_json([two], [], [], [])["programs"].values()
    self.assertEqual(found["received_between_slices_bytes"], 2 * GIB)
    self.assertEqual(found["roofline_s"]["network_s"], 3.0)

  def test_tokens_of_trajectories_stand_beside_those_computed(self):
    shown = self._shown(SHARES, REFUSED)
    for line in (
      r"tokens +│ +64,000 │ +100 ",
      r"GiB by formula, all kinds +│ +2.500 │ +- ",
      r"tokens computed, without padding +│ +60,000 │ +- ",
      r"tokens of trajectories +│ +96,000 │ +- ",
      r"% of these shared +│ +37.5 │ +- ",
      r"GFLOP needed per token of these +│ +31.25 │ +- ",
      r"tokens of trajectories/s +│ +48,000 │ +- ",
    ):
      self.assertRegex(shown, line)

  def test_they_are_left_out_where_attempts_are_not_known(self):
    unknown = dataclasses.replace(LOAD, attempts=None)
    for judged in (FITS, dataclasses.replace(FITS, load=unknown)):
      self.assertNotIn("trajectories", self._shown(judged, REFUSED))

  def _shown(self, *judged):
    console = Console(file=io.StringIO(), width=120)
    report.show(console, judged, due={"gradient": 2.5 * GIB})
    return console.file.getvalue()

  def test_json_says_what_is_shared(self):
    found = report.as_json([SHARES, REFUSED], [], [], [])["programs"]
    self.assertEqual(
      found["gradient"]["load"],
      {
        "computed_tokens": 60_000,
        "trajectory_tokens": 96_000,
        "shared": 0.375,
        "needed_flops_per_trajectory_token": 3e15 / 96_000,
        "trajectory_tokens_per_s": 48_000,
      },
    )
    self.assertIsNone(found["decode"]["load"])

  def test_json_has_bytes_seconds_and_operations(self):
    text = json.dumps(report.as_json([FITS, REFUSED], LARGEST, RANKED, ADVICE))
    found = json.loads(text)
    gradient = found["programs"]["gradient"]
    self.assertEqual(gradient["memory_bytes"]["total"], 9 * GIB)
    self.assertEqual(gradient["wanted_bytes"], 12 * GIB)
    self.assertEqual(gradient["received_bytes"], {"all-gather": 3 * GIB})
    self.assertEqual(gradient["roofline_s"]["step_s"], 2.0)
    self.assertAlmostEqual(gradient["tokens_per_chip_hour"], 1.8e6)
    self.assertIsNone(found["programs"]["decode"]["roofline_s"])
    self.assertEqual(
      found["largest"], {"train.micro_batch": 96, "engine.slots[0]": 0}
    )
    self.assertEqual([one["mesh"] for one in found["meshes"]], [MESH, MESH])
