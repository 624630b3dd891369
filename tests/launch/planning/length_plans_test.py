"""Lengths and their meshes, on chips whose programs take what they are told."""

import dataclasses
import unittest

import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.sharding import MESH_AXES
from launch.config.settings import Settings, read_settings
from launch.planning import chips
from launch.planning.chips import GIB, parse_slice
from launch.planning.compiled import Compiled, Memory
from launch.planning.length_plans import (
  at_length,
  best,
  crossovers,
  plan_lengths,
  read_lengths,
  refusal,
)
from launch.planning.roofline import Flops, Roofline
from launch.planning.search import (
  Candidate,
  estimate,
  gradient_bytes,
  shape_name,
  with_mesh,
)
from launch.planning.study import RESERVE, Deployment, Judgement, Planner
from tests.launch.planning.models import pod_settings
from tests.launch.planning.system import small

V5P_64 = parse_slice("v5p-64")
V6E_32 = parse_slice("v6e-32")
NOTHING = Memory(arguments=0, outputs=0, aliased=0, temporaries=0, code=0)


def _settings(name: str = "qwen3-8b", **batch) -> Settings:
  settings = pod_settings(name)
  batch = dataclasses.replace(settings.batch, **{"sharing": 1} | batch)
  return dataclasses.replace(settings, batch=batch)


def _mesh(**sizes: int) -> dict[str, int]:
  return dict.fromkeys(MESH_AXES, 1) | sizes


FSDP = _mesh(fsdp=32)


def _judged(
  wanted: float, seconds: float, tokens: int, slice_=V5P_64, executed=1.0
) -> Judgement:
  return Judgement(
    name="gradient",
    slice_=slice_,
    compiled=Compiled(memory=NOTHING, wanted=int(wanted)),
    beside={},
    tokens=tokens,
    flops=Flops(1, executed),
    roofline=Roofline(
      compute_s=seconds, memory_s=0, links_s=0, waiting_s=0, network_s=0
    ),
  )


class _Compiler:
  """In place of minutes of compiling: the formulas, times some factors."""

  def __init__(
    self, slice_=V5P_64, *, memory=1.0, slower=(), over_peak=99, dies_of=()
  ):
    self.deployment = Deployment(learner=slice_)
    self.dies_of = dies_of  # names of meshes
    self.over_peak = over_peak  # seconds, over those of the peak rate
    self.memory, self.slower = memory, dict(slower)
    self.tried: list[tuple[int, int, str]] = []

  def programs(self, settings, roles):
    return [settings]

  def judge(self, settings, program):
    batch, slice_ = settings.batch, self.deployment.learner
    name = shape_name(settings.mesh)
    self.tried.append((batch.row_length, batch.micro_batch, name))
    tokens = batch.row_length * batch.micro_batch
    if name in self.dies_of or "all" in self.dies_of:
      died = Compiled(memory=None, wanted=0, failure=f"died of {name}")
      return dataclasses.replace(_judged(0, 1, tokens), compiled=died)
    each = estimate(settings, settings.mesh, slice_).estimate_s
    seconds = each * tokens * self.slower.get((batch.row_length, name), 1)
    peak = slice_.num_devices * slice_.chip.flops
    return _judged(
      self.memory * gradient_bytes(settings),
      seconds,
      tokens,
      slice_,
      seconds / self.over_peak * peak,
    )


class LengthsTest(parameterized.TestCase):
  def test_lengths_are_sorted(self):
    self.assertEqual(read_lengths(["8192", "128", "1024"]), (128, 1024, 8192))
    self.assertEqual(read_lengths(["2048"]), (2048,))

  @parameterized.parameters(
    ([], "names no length"),
    (["2048", ""], "'' is no number"),
    (["2k"], "'2k' is no number"),
    (["-128"], "'-128' is no number"),
    (["0"], "'0' is no number"),
    (["128.0"], "'128.0' is no number"),
    (["8192", "2048", "8192"], "repeats 8192: name each length once"),
    (
      ["2048", "3000"],
      "has 3000, .*of 128 tokens on a TPU: write 2944 or 3072",
    ),
    (["100"], "has 100, .*: write 128$"),
  )
  def test_others_are_refused(self, values, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      read_lengths(values)

  def test_micro_batches_have_as_many_tokens_as_the_config_s(self):
    for length, rows in ((2048, 128), (8192, 32), (131072, 2), (2**20, 1)):
      changed = at_length(_settings(), length)
      self.assertEqual(changed.batch.micro_batch, rows)
      self.assertEqual(changed.batch.row_length, length)
      self.assertEqual(changed.episode.max_tokens, length)


class PlanTest(parameterized.TestCase):
  def test_where_the_compiler_dies_the_next_mesh_is_tried(self):
    compiler = _Compiler(dies_of=("fsdp=32",))
    (plan,) = plan_lengths(compiler, _settings(), (2048,), num_compiled=2)
    (alive,) = plan_lengths(_Compiler(), _settings(), (2048,), num_compiled=2)
    self.assertEqual(alive.best.mesh, FSDP)
    self.assertIsNotNone(plan.best)
    self.assertNotEqual(plan.best.mesh, FSDP)
    self.assertEqual([m for _, _, m in compiler.tried].count("fsdp=32"), 1)
    self.assertEqual(refusal([plan], V5P_64), "")
    dead = _Compiler(dies_of=("all",))
    plans = plan_lengths(dead, _settings(), (2048,), num_compiled=2)
    self.assertIn("died of fsdp=32", refusal(plans, V5P_64))

  def test_the_config_s_mesh_is_compiled_for_each_length(self):
    compiler = _Compiler()
    plans = plan_lengths(compiler, _settings(), (2048, 8192), num_compiled=2)
    self.assertEqual([p.length for p in plans], [2048, 8192])
    for plan in plans:
      self.assertLen(plan.compiled, 3)
      (own,) = (c for c in plan.compiled if c.is_own)
      self.assertEqual(own.mesh, FSDP)
      self.assertEqual(plan.best, own)
      self.assertEqual(
        plan.num_excluded + plan.num_left + 3, 51 + (plan.length == 8192)
      )
    self.assertEmpty(crossovers(plans))
    self.assertEqual(refusal(plans, V5P_64), "")

  @parameterized.parameters((1.0, 1), (1.019, 1), (1.03, 3))
  def test_where_chips_always_compute_no_other_mesh_is_tried(
    self, over_peak, num_tried
  ):
    compiler = _Compiler(over_peak=over_peak)
    lengths = (2048, 8192)
    plans = plan_lengths(compiler, _settings(), lengths, num_compiled=2)
    self.assertEqual([len(p.compiled) for p in plans], [num_tried] * 2)
    self.assertEqual([p.best.mesh for p in plans], [FSDP, FSDP])
    # A mesh that is too large is at no peak.
    compiler = _Compiler(over_peak=over_peak, memory=1.7)
    (plan,) = plan_lengths(compiler, _settings(), (131072,), num_compiled=2)
    self.assertLen(plan.compiled, 3)

  def test_one_length_alone_has_no_crossover(self):
    plans = plan_lengths(_Compiler(), _settings(), (4096,), num_compiled=1)
    self.assertLen(plans, 1)
    self.assertIsNotNone(plans[0].best)
    self.assertEmpty(crossovers(plans))

  def test_the_mesh_changes_where_a_row_is_too_long_for_a_chip(self):
    compiler = _Compiler(memory=1.7)
    plans = plan_lengths(compiler, _settings(), (8192, 131072), num_compiled=1)
    short, long = plans
    self.assertEqual(short.best.mesh, FSDP)
    self.assertFalse(long.of_mesh(FSDP).judged.fits)
    self.assertNotEqual(long.best.mesh, FSDP)
    (change,) = crossovers(plans)
    self.assertEqual((change.before, change.after), (short, long))
    self.assertIsNone(change.gain)

  def test_a_program_that_does_not_fit_says_which_others_will_not(self):
    compiler = _Compiler(memory=1.7)
    (plan,) = plan_lengths(compiler, _settings(), (131072,), num_compiled=1)
    # The first has as much memory as the formula says times 1.7; of those
    # that fit by that, the second is the fastest.
    self.assertLen(compiler.tried, 2)
    room = V5P_64.chip.memory * (1 - RESERVE)
    fitting = [
      estimate(at_length(_settings(), 131072), mesh, V5P_64)
      for mesh in (_mesh(fsdp=16, tensor=2), _mesh(fsdp=8, sequence=4))
    ]
    for one in fitting:
      changed = with_mesh(at_length(_settings(), 131072), one.mesh)
      self.assertLess(1.7 * gradient_bytes(changed), room)
    fastest = min(one.estimate_s for one in fitting)
    self.assertLessEqual(plan.best.estimate_s, fastest)

  def test_the_mesh_of_the_length_before_is_compared_too(self):
    # Much faster at 8192, a little at 16384: there it stays, and the config's
    # mesh does not come back.
    name = "data=16 fsdp=2"
    compiler = _Compiler(slower={(8192, name): 0.9, (16384, name): 0.99})
    plans = plan_lengths(compiler, _settings(), (8192, 16384), num_compiled=1)
    self.assertEqual([shape_name(p.best.mesh) for p in plans], [name] * 2)
    self.assertIsNotNone(plans[1].of_mesh(FSDP))
    (alone,) = plan_lengths(compiler, _settings(), (16384,), num_compiled=1)
    self.assertEqual(alone.best.mesh, FSDP)

  def test_rows_are_halved_until_they_fit(self):
    compiler = _Compiler(V6E_32, memory=1.9)
    (plan,) = plan_lengths(compiler, _settings(), (2048,), num_compiled=0)
    self.assertEqual(
      compiler.tried, [(2048, 128, "fsdp=32"), (2048, 64, "fsdp=32")]
    )
    self.assertEqual(plan.best.rows, 64)

  def test_rows_start_at_what_arithmetic_allows(self):
    # 128 rows of 65536 tokens would leave 34 GiB of inputs of layers per chip.
    compiler = _Compiler(V6E_32, memory=0.1)
    settings = _settings(row_length=65536, micro_batch=128)
    (plan,) = plan_lengths(compiler, settings, (65536,), num_compiled=0)
    self.assertEqual(compiler.tried, [(65536, 32, "fsdp=32")])
    self.assertEqual(plan.best.rows, 32)

  def test_meshes_cut_rows_into_whole_blocks(self):
    plans = plan_lengths(_Compiler(), _settings(), (384,), num_compiled=60)
    cuts = {c.mesh["sequence"] for c in plans[0].compiled}
    self.assertEqual(cuts, {1})  # 3 blocks of 128, on powers of two

  def test_an_update_has_a_row_for_each_share(self):
    settings = _settings()
    admission = dataclasses.replace(settings.admission, groups_per_step=2)
    settings = dataclasses.replace(settings, admission=admission)
    (plan,) = plan_lengths(_Compiler(), settings, (2048,), num_compiled=60)
    shares = [c.mesh["data"] * c.mesh["fsdp"] for c in plan.compiled]
    self.assertEqual(max(shares), 16)  # 2 groups of 8 attempts
    self.assertIsNone(plan.of_mesh(FSDP))


class RefusalTest(absltest.TestCase):
  def test_nothing_is_compiled_where_arithmetic_says_no(self):
    compiler = _Compiler(parse_slice("v5e-8"))
    settings = _settings("qwen3-32b")
    plans = plan_lengths(compiler, settings, (2048, 4096), num_compiled=3)
    self.assertEmpty(compiler.tried)
    sentence = refusal(plans, compiler.deployment.learner)
    self.assertRegex(sentence, "^rows of 2048 tokens fit no mesh of v5e:2x4: ")
    self.assertIn("; rows of 4096 tokens fit no mesh of v5e:2x4", sentence)
    self.assertRegex(sentence, r"\d+ are too large by arithmetic; leave")

  def test_the_nearest_is_named_with_what_it_lacks(self):
    compiler = _Compiler(memory=9.0)
    (plan,) = plan_lengths(compiler, _settings(), (32768,), num_compiled=2)
    self.assertIsNone(plan.best)
    self.assertLen(compiler.tried, len(plan.compiled))
    self.assertLen(plan.compiled, 5)  # that of the config, and two twice
    nearest = max(plan.compiled, key=lambda c: c.judged.left)
    lacks = -nearest.judged.left / GIB
    self.assertIn(
      f"5 were compiled, of which {shape_name(nearest.mesh)} is nearest and "
      f"lacks {lacks:.1f} GiB, {plan.num_left} were not tried",
      refusal([plan], V5P_64),
    )

  def test_a_length_that_fits_nowhere_is_between_no_two(self):
    compiler = _Compiler(memory=1.7)
    plans = plan_lengths(
      compiler, _settings(), (8192, 131072, 2**20), num_compiled=1
    )
    self.assertIsNone(plans[-1].best)
    self.assertLen(crossovers(plans), 1)
    self.assertNotIn("131072", refusal(plans, V5P_64))
    self.assertIn("1048576", refusal(plans, V5P_64))


class BestTest(parameterized.TestCase):
  @parameterized.parameters((0.99, True), (0.981, True), (0.97, False))
  def test_small_gains_change_no_mesh(self, seconds, stays):
    other = _mesh(data=2, fsdp=16)
    found = [_candidate(FSDP, 1.0), _candidate(other, seconds)]
    wanted = FSDP if stays else other
    self.assertEqual(best(found, [FSDP]).mesh, wanted)
    self.assertEqual(best(found, [other]).mesh, other)
    self.assertEqual(best(found, []).mesh, other)

  def test_the_first_that_is_kept_stays(self):
    meshes = [_mesh(fsdp=32), _mesh(data=2, fsdp=16)]
    found = [_candidate(mesh, 1.0) for mesh in meshes]
    for kept in (meshes, meshes[::-1]):
      self.assertEqual(best(found, kept).mesh, kept[0])

  def test_one_that_does_not_fit_is_never_best(self):
    found = [_candidate(FSDP, 1.0, wanted=99 * GIB)]
    self.assertIsNone(best(found, [FSDP]))


def _candidate(mesh, seconds: float, wanted: float = 0) -> Candidate:
  return Candidate(
    mesh=mesh, rows=32, estimate_s=1.0, judged=_judged(wanted, seconds, 1000)
  )


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class CompiledTest(absltest.TestCase):
  @pytest.mark.full
  @pytest.mark.timeout(1800)
  def test_two_lengths_of_a_small_model(self):
    config = small.get_config()
    config.mesh.update(fsdp=2, sequence=2)
    config.train.sharing = 1
    slice_ = parse_slice("v5e-4")
    deployment = Deployment(learner=slice_, rollout=slice_, is_quick=True)
    plans = plan_lengths(
      Planner(deployment), read_settings(config), (512, 2048), num_compiled=1
    )
    for plan, rows in zip(plans, (8, 2), strict=True):
      own = plan.of_mesh(_mesh(fsdp=2, sequence=2))
      self.assertEqual(own.rows, rows)
      self.assertEqual(own.judged.tokens, 4096)
      # The last half of a row sees most keys, and its chips take longest; in
      # rows of 512 tokens both halves visit the one block of keys.
      flops = own.judged.flops
      self.assertEqual(flops.imbalance > 1.01, plan.length == 2048)
      self.assertAlmostEqual(
        own.judged.roofline.compute_s,
        flops.executed * flops.imbalance / 4 / slice_.chip.flops,
      )
      self.assertTrue(plan.best.judged.fits)
      self.assertLessEqual(plan.best.seconds_per_token, own.seconds_per_token)
