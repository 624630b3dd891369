"""Tests of `train.learner`: updates do not depend on cut or mesh."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.errors import NotFinite
from agentrl_jax.train.learner import MOST_NOT_FINITE, NotFiniteLimit
from agentrl_jax.train.metrics import NO_SIGNAL, NOT_FINITE
from agentrl_jax.train.objective import policy_objective
from tests import eight_devices, many_processes
from tests.settings import compute_config
from tests.train import small
from tests.train.sharded import sharded_update


def _with(micro_batch, value):
  """Returns the micro-batch with one advantage for all; None leaves its own."""
  if value is None:
    return micro_batch
  advantage = np.where(micro_batch.batch.mask, np.float32(value), 0)
  return dataclasses.replace(micro_batch, advantage=advantage)


class UpdateTest(parameterized.TestCase):
  def _updated(self, micro_batch, **options):
    policy, learner = small.make_learner(**small.PLAIN_STEPS, **options)
    state = learner.init(policy.init(jax.random.key(0)))
    return learner.update(state, small.make_batches(micro_batch))

  @parameterized.parameters(
    {"reduction": "token_mean"},
    {"surrogate": "gspo", "dual_clip": 0.0, "reduction": "sequence_mean"},
  )
  @pytest.mark.slow
  def test_the_cut_changes_nothing(self, **changes):
    loss = small.loss_config(**changes)
    whole, wanted = self._updated(24, loss=loss)
    for size in (1, 7):
      cut, found = self._updated(size, loss=loss)
      for name in wanted:
        self.assertAlmostEqual(found[name], wanted[name], places=5)
      chex.assert_trees_all_close(cut, whole, rtol=1e-7, atol=1e-6)

  @pytest.mark.slow
  def test_equals_the_gradient_of_the_whole(self):
    """Against `jax.grad` of the mean, in one piece, and plain optax."""
    policy, learner = small.make_learner()
    params = policy.init(jax.random.key(0))
    (micro_batch,) = small.make_batches(24)
    objective = policy_objective(policy, small.loss_config(), temperature=0.9)
    slope = jax.jit(jax.grad(lambda p: objective(p, micro_batch)[0].value()))
    gradient = slope(params)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))

    @jax.jit
    def updated(params, gradient):
      updates, _ = optimizer.update(gradient, optimizer.init(params), params)
      return optax.apply_updates(params, updates)

    wanted = updated(params, gradient)
    state, metrics = learner.update(learner.init(params), small.make_batches(5))
    chex.assert_trees_all_close(state.params, wanted, rtol=1e-7, atol=1e-5)
    self.assertAlmostEqual(
      metrics["gradient_norm"], float(optax.tree.norm(gradient)), places=5
    )
    self.assertEqual(int(state.version), 1)

  @parameterized.parameters(0.0, 0.25)
  @pytest.mark.slow
  def test_a_routers_bias_steps_by_its_rate_alone(self, rate):
    """Neither the optimizer nor its weight decay moves it."""
    model = dataclasses.replace(
      small.MODEL, num_experts=4, experts_per_token=1, sigmoid_router=True
    )
    policy, learner = small.make_learner(model=model, expert_bias_rate=rate)
    params = policy.init(jax.random.key(0))
    bias = 1e-3 * jnp.arange(4.0)
    routers = params["layers"]["experts"]
    routers["correction_bias"] += bias
    before = np.asarray(routers["correction_bias"])
    state, metrics = learner.update(learner.init(params), small.make_batches(5))
    after = np.asarray(state.params["layers"]["experts"]["correction_bias"])
    steps = (after - before) / (rate or 1)
    self.assertEqual(np.abs(steps).max().round(5), 1 if rate else 0)
    np.testing.assert_allclose(steps, steps.round(), atol=1e-5)
    self.assertBetween(metrics["expert_load"], 1, 4)

  @pytest.mark.slow
  def test_params_that_were_handed_in_stay_usable(self):
    policy, learner = small.make_learner()
    params = policy.init(jax.random.key(0))
    learner.update(learner.init(params), small.make_batches(4))
    self.assertFalse(any(x.is_deleted() for x in jax.tree.leaves(params)))

  @pytest.mark.slow
  def test_sums_and_state_are_written_where_they_were(self):
    """Bytes that outputs share with inputs are those that were donated."""
    _, learner = small.make_learner()
    (micro_batch,) = small.make_batches(24)
    programs = learner.traced(micro_batch)
    sums, _ = programs["gradient"].out_info  # values of tokens are new
    for name, donated in (
      ("gradient", sums),
      ("apply", learner.abstract_state()),
    ):
      size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(donated))
      memory = programs[name].lower().compile().memory_analysis()
      self.assertEqual(memory.alias_size_in_bytes, size, name)

  @pytest.mark.full
  def test_low_precision_is_the_same_update_roughly(self):
    """bfloat16 between float32 params: what is rounded is what is computed."""
    _, high = self._updated(24)
    state, low = self._updated(24, compute=compute_config(dtype="bfloat16"))
    for leaf in jax.tree.leaves(state.params):
      self.assertEqual(leaf.dtype, jnp.float32)
    self.assertNotEqual(low["loss"], high["loss"])
    self.assertAlmostEqual(low["loss"], high["loss"], delta=5e-3)
    self.assertAlmostEqual(
      low["gradient_norm"] / high["gradient_norm"], 1, delta=0.05
    )

  @parameterized.named_parameters(
    # name, loss, advantages by micro-batch, is skipped as
    ("all_alike", {}, (0.0, 0.0), NO_SIGNAL),
    ("one_that_counts", {}, (0.0, None), None),
    ("tiny", {"surrogate": "reinforce"}, (1e-30, 1e-30), None),
    ("entropy", {"entropy_coefficient": 0.01}, (0.0, 0.0), None),
    ("nan", {}, (np.nan, None), NOT_FINITE),
    ("infinite", {}, (None, np.inf), NOT_FINITE),
    ("too_large", {"surrogate": "reinforce"}, (3e38, 3e38), NOT_FINITE),
  )
  @pytest.mark.slow
  def test_an_update_without_a_signal_is_skipped(self, loss, values, reason):
    """Neither momentum nor weight decay acts, nor does a count go on."""
    policy, learner = small.make_learner(
      loss=small.loss_config(dual_clip=0.0, **loss)
    )
    batches = small.make_batches(4)[:2]
    first, _ = learner.update(
      learner.init(policy.init(jax.random.key(0))), batches
    )
    before = jax.device_get(first)
    state, metrics = learner.update(first, list(map(_with, batches, values)))
    self.assertEqual(int(state.version), 2)
    self.assertEqual(
      {name for name in (NO_SIGNAL, NOT_FINITE) if metrics[name]},
      {reason} - {None},
    )
    same = [
      np.array_equal(a, b)
      for a, b in zip(
        jax.tree.leaves((before.params, before.optimizer)),
        jax.tree.leaves((state.params, state.optimizer)),
        strict=True,
      )
    ]
    self.assertTrue(all(same) if reason else not any(same), same)

  def test_updates_that_are_not_finite_end_a_stage(self):
    limit = NotFiniteLimit()
    limit.in_a_row = MOST_NOT_FINITE - 2  # as a checkpoint keeps it
    bad = {NOT_FINITE: 1.0, "loss": 0.5, "gradient_norm": math.nan}
    limit.watch(bad, 8)
    with self.assertRaisesRegex(
      NotFinite, "update 9 produced gradient_norm=nan .* 4 before it"
    ):
      limit.watch(bad, 9)
    limit.watch({NOT_FINITE: 0.0, NO_SIGNAL: 1.0, "loss": 0.0}, 10)
    self.assertEqual(limit.in_a_row, 0)


class ShardedUpdateTest(absltest.TestCase):
  def _assert_like_one(self, found):
    for case, (loss, params) in found["updates"].items():
      self.assertLess(loss, 1e-5, case)
      self.assertLess(params, 1e-6, case)
    for kernel, gap in found["attention"].items():
      self.assertLess(gap, 1e-5, kernel)

  @pytest.mark.slow
  def test_eight_devices_like_one(self):
    """Along every axis of the mesh: the same loss, the same params."""
    found = eight_devices.run(sharded_update.__name__, "sample")
    self.assertLen(found["updates"], len(sharded_update.SAMPLE))
    self._assert_like_one(found)

  @pytest.mark.full
  @pytest.mark.timeout(1000)  # a delta rule's tree takes a minute to compile
  def test_families_on_eight_devices_like_one(self):
    found = eight_devices.run(
      sharded_update.__name__, "families", deadline_s=900
    )
    self.assertLen(found["updates"], len(sharded_update.FAMILIES))
    self._assert_like_one(found)

  @pytest.mark.full
  @pytest.mark.timeout(2000)  # 70 updates of eight devices on two cores
  def test_every_mesh_of_eight_devices_like_one(self):
    found = eight_devices.run(sharded_update.__name__, "table", deadline_s=1800)
    self.assertLen(found["updates"], 70)
    self._assert_like_one(found)


class ProcessUpdateTest(absltest.TestCase):
  def _assert_close(self, found):
    self.assertNotEmpty(found)
    for shape, (of_loss, of_tokens, of_params) in found.items():
      with self.subTest(mesh=shape):
        self.assertLess(of_loss, 1e-5)
        self.assertLess(of_tokens, 1e-3)  # sum of their log-probabilities
        self.assertLess(of_params, 1e-6)

  @pytest.mark.slow
  def test_two_processes_of_four_devices(self):
    self._assert_close(many_processes.run("tests.train.sharded.process_update"))

  @pytest.mark.slow
  def test_two_slices_of_four_devices(self):
    """Each process is a slice, that data or fsdp spans."""
    found = many_processes.run("tests.train.sharded.process_update", "slices")
    self.assertLen(found, 2)
    self._assert_close(found)

  @pytest.mark.full
  @pytest.mark.timeout(3600)
  def test_every_mesh_of_the_table(self):
    found = many_processes.run(
      "tests.train.sharded.process_update", "table", deadline_s=3500
    )
    self.assertGreaterEqual(len(found), 10)
    self._assert_close(found)
