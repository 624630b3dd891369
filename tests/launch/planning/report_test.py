"""Tables and JSON say the same of what fits and of what does not."""

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
from launch.planning.advice.adviser import Advice, Adviser, LeftOut
from launch.planning.chips import GIB, parse_slice
from launch.planning.collectives import Collective
from launch.planning.compiled import Compiled, Memory
from launch.planning.length_plans import LengthPlan
from launch.planning.roofline import Attempts, Flops, Load, Roofline
from launch.planning.search import Candidate, Largest
from launch.planning.study import Deployment, Judgement

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


LEFT_OUT = LeftOut(flags="--topology=v6e:16x16", reason="4 s", num_after=2)


def _adviser(num_compiled=0, num_excluded=0):
  adviser = Adviser(
    pod.get_config(), Deployment(learner=V6E_64), ("learner",), seconds=600
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
    console = Console(file=io.StringIO(), width=120)
    adviser = _adviser(2, 3)
    adviser.left_out.append(LEFT_OUT)
    report.show_advice(console, [], adviser)
    self.assertEqual(
      console.file.getvalue().splitlines(),
      [
        "no change that was tried fits: 3 are too large by arithmetic, 2 were "
        "compiled",
        "advice had --seconds=600 to compile in:",
        "  left out: --topology=v6e:16x16 (4 s); 2 more come after it",
      ],
    )
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

  def test_trajectory_tokens_need_known_attempts(self):
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
    found = report.as_json([FITS, REFUSED], LARGEST, RANKED, ADVICE, [LEFT_OUT])
    found = json.loads(json.dumps(found))
    self.assertEqual(found["advice_left_out"], [vars(LEFT_OUT)])
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


FSDP = {"data": 1, "fsdp": 32, "tensor": 1, "sequence": 1, "expert": 1}
SPLIT = {"data": 1, "fsdp": 16, "tensor": 1, "sequence": 2, "expert": 1}


def _candidate(mesh, *, seconds: float = 2.0, fits: bool = True) -> Candidate:
  bound = dataclasses.replace(FITS.roofline, compute_s=seconds)
  judged = dataclasses.replace(FITS, roofline=bound) if fits else REFUSED
  return Candidate(
    mesh=mesh, rows=32, estimate_s=1e-5, judged=judged, is_own=mesh == FSDP
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


class LengthOverridesTest(absltest.TestCase):
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

  def test_overrides_are_read_as_planned_layouts(self):
    for plans in ([SHORT], [SHORT, LONG], [SHORT, FASTER, LONG, NOWHERE]):
      fitting = [plan for plan in plans if plan.best is not None]
      self.assertEqual(
        self._read(plans),
        tuple(Layout(p.length, p.best.rows, p.best.mesh) for p in fitting),
      )

  def test_no_overrides_where_no_mesh_fits(self):
    self.assertEqual(report.overrides([NOWHERE]), "")


class LengthChangesTest(absltest.TestCase):
  def test_change_of_mesh_names_lengths_and_gain(self):
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

  def test_one_mesh_for_all_lengths_is_a_sentence(self):
    self.assertEqual(
      report.changes([FASTER, LONG]),
      ["one mesh is best at all 2 lengths that fit"],
    )
    self.assertEmpty(report.changes([SHORT]))
    self.assertEmpty(report.changes([NOWHERE]))


class LengthTablesTest(absltest.TestCase):
  def test_table_shows_every_length_and_mesh(self):
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
