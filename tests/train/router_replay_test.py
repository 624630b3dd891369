"""The learner routes tokens to the experts that the engine chose."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.data.recorder import Recorder
from agentrl_jax.data.records import EpisodeSpec, Group, Status, Task
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.learner import _numbers
from agentrl_jax.train.objective import policy_objective
from tests.model.policy_test import GEMMA_4, QWEN3_5
from tests.settings import COMPUTE, compute_config, engine_config
from tests.train import small

MODEL = dataclasses.replace(
  small.MODEL, num_experts=16, experts_per_token=4, normed_experts=True
)
# Rounding moves more tokens to other experts, the more and wider the layers.
DEEP = dataclasses.replace(MODEL, num_layers=4, width=64)
TASK = Task("a", "train", 0)
TEMPERATURE = 0.9


params = small.params_of


@functools.cache
def objective(model):
  return jax.jit(
    policy_objective(
      Policy(model, COMPUTE), small.loss_config(), temperature=TEMPERATURE
    )
  )


@functools.cache
def played(dtype="float32", model=MODEL, **changes) -> Group:
  """Four episodes of two turns, whose prompts begin alike."""
  policy = Policy(model, compute_config(dtype=dtype))
  store = ServedWeights(1)
  served = jax.tree.map(
    lambda x: jnp.asarray(x.astype(jnp.dtype(dtype))),
    policy.unstacked(params(model)),
  )
  store.publish(served, 0)
  settings = dict(slots=(3,), context=64, num_slot_sizes=1, prefill_chunks=(8,))
  config = engine_config(**(settings | {"router_replay": True} | changes))
  driver = LocalDriver(RolloutEngine(policy, config, store))
  records = [
    Recorder(EpisodeSpec(task=TASK, group_id="g", attempt=n, seed=n))
    for n in range(4)
  ]
  lines = [record.start_line() for record in records]
  for turn in range(2):
    futures = []
    for number, line in enumerate(lines):
      seen = np.arange(1, 18) if not turn else [5, 9 + number, 7]
      line.add_observation(np.asarray(seen, np.int32))
      sampling = SamplingParams(
        max_tokens=8, temperature=TEMPERATURE, seed=10 * number + turn
      )
      futures.append(driver.submit(line.prompt, sampling))
    driver.run_until_idle()
    for line, future in zip(lines, futures, strict=True):
      line.add_action(line.prompt, future.result())
  trajectories = (
    record.trajectory(
      Status.COMPLETED, reward=float(n % 2), metrics={}, transcript=()
    )
    for n, record in enumerate(records)
  )
  return Group("g", TASK, tuple(trajectories))


def changed(group: Group, change) -> Group:
  """The group with other experts in each turn."""
  members = (
    dataclasses.replace(
      t,
      turns=tuple(
        dataclasses.replace(turn, experts=change(turn.experts))
        for turn in t.turns
      ),
    )
    for t in group.trajectories
  )
  return dataclasses.replace(group, trajectories=tuple(members))


def measured(group: Group, model=MODEL, **batch):
  """Loss, metrics, and log-probabilities of the sampled tokens."""
  builder = small.make_batch_builder(model=model, row_length=64, **batch)
  (micro_batch,), _ = builder.build([group], params(model))
  loss, metrics = objective(model)(params(model), micro_batch, np.int32(0))
  del metrics["policy/logprob"]
  numbers = _numbers(metrics)
  return float(loss.value()), numbers, micro_batch


def without(group: Group) -> Group:
  return changed(group, lambda _: None)


class RouterReplayTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("pages_for_all_slots", {}),
    ("few_pages", {"page_size": 8, "cache_tokens": (72,)}),
    ("drafts", {"draft_tokens": 3, "draft_cost": 0.01}),
  )
  @pytest.mark.slow
  def test_engines_of_all_kinds_give_the_experts_that_they_chose(self, changes):
    group = played(**changes)
    for trajectory in group.trajectories:
      for turn in trajectory.turns:
        size = len(turn.observation) + len(turn.sampled)
        self.assertEqual(turn.experts.shape, (size, 2, 4))
        self.assertEqual(turn.experts.dtype, np.uint8)
    loss, numbers, micro_batch = measured(group)
    expert_BTLK = micro_batch.batch.experts
    has_BT = (expert_BTLK < 16).all((2, 3))
    # All but the last token of each line, which no program computes.
    self.assertEqual((micro_batch.batch.segment > 0).sum() - has_BT.sum(), 4)
    self.assertEqual(numbers["engine/router_agreement"], 1)
    self.assertAlmostEqual(numbers["engine/router_replayed"], 15 / 16)
    self.assertLess(numbers["policy/engine_drift"], 1e-6)
    own, idle, _ = measured(without(group))
    self.assertAlmostEqual(loss, own, delta=1e-6)
    self.assertNotIn("engine/router_agreement", idle)

  @parameterized.named_parameters(
    (
      "dense_first",
      {
        "dense_layers": 1,
        "dense_mlp_width": 24,
        "sigmoid_router": True,
        "expert_scale": 1.5,
      },
    ),
    ("states", QWEN3_5),
    ("branches", GEMMA_4 | {"shared_experts": 1, "normed_branches": True}),
  )
  @pytest.mark.slow
  def test_layers_of_several_kinds(self, changes):
    model = dataclasses.replace(MODEL, **changes)
    group = played(model=model)
    loss, numbers, _ = measured(group, model)
    self.assertEqual(numbers["engine/router_agreement"], 1)
    self.assertNotAlmostEqual(
      measured(changed(group, lambda x: (x + 1) % 16), model)[0],
      loss,
      delta=1e-3,
    )

  def test_trees_replay_as_rows_do(self):
    group = changed(played(), lambda x: (x + 1) % 16)
    alone, _, _ = measured(group)
    shared, numbers, micro_batch = measured(group, sharing=4)
    self.assertIsNone(micro_batch.batch.experts)
    self.assertAlmostEqual(alone, shared, delta=1e-5)
    self.assertAlmostEqual(numbers["engine/router_replayed"], 15 / 16)

  @pytest.mark.slow
  def test_replay_brings_a_rounding_engine_nearer(self):
    group = played("bfloat16", DEEP)
    _, replayed, _ = measured(group, DEEP)
    _, own, _ = measured(without(group), DEEP)
    self.assertLess(replayed["engine/router_agreement"], 1)
    name = "policy/kl_to_behavior"
    self.assertLess(replayed[name], own[name] / 2)

  def test_other_experts_change_the_loss(self):
    group = played()
    loss, *_ = measured(group)
    other, numbers, _ = measured(changed(group, lambda x: (x + 1) % 16))
    self.assertGreater(abs(other - loss), 1e-3)
    self.assertLess(numbers["engine/router_agreement"], 0.5)

  def test_a_reference_routes_by_itself_and_recomputed_ratios_do_not(self):
    loss = small.loss_config(kl_coefficient=0.1, proximal="recomputed")
    builder = small.make_batch_builder(
      model=MODEL, loss=loss, row_length=64, reference=params(MODEL)
    )
    (own,), _ = builder.build([without(played())], params(MODEL))
    other = changed(played(), lambda x: (x + 1) % 16)
    (replayed,), _ = builder.build([other], params(MODEL))
    np.testing.assert_array_equal(
      own.reference_logprob, replayed.reference_logprob
    )
    apart = np.abs(own.proximal_logprob - replayed.proximal_logprob)
    self.assertGreater(apart.max(), 1e-3)

  @parameterized.named_parameters(
    ("no_such_expert", lambda x: np.full_like(x, 16), True),
    ("another_layer", lambda x: x[:, :1], False),
    ("another_type", lambda x: x.astype(np.uint16), False),
  )
  def test_experts_that_are_none_leave_it_to_the_router(self, change, is_kept):
    loss, numbers, micro_batch = measured(changed(played(), change))
    self.assertEqual(micro_batch.batch.experts is not None, is_kept)
    self.assertEqual(numbers.get("engine/router_replayed", 0), 0)
    self.assertEqual(loss, measured(without(played()))[0])

  def test_a_turn_that_is_too_short_is_routed_by_the_router(self):
    group = played()
    first, *others = group.trajectories
    odd = changed(Group("g", TASK, (first,)), lambda x: x[:-1])
    mixed = dataclasses.replace(
      group, trajectories=(*odd.trajectories, *others)
    )
    loss, numbers, _ = measured(mixed)
    self.assertAlmostEqual(numbers["engine/router_replayed"], 45 / 64)
    own, numbers, _ = measured(group)
    self.assertEqual(numbers["engine/router_agreement"], 1)
    self.assertAlmostEqual(loss, own, delta=1e-6)

  def test_without_the_key_answers_have_no_experts(self):
    model = dataclasses.replace(MODEL, num_layers=1)
    group = played(model=model, router_replay=False)
    self.assertEqual(
      {turn.experts is None for t in group.trajectories for turn in t.turns},
      {True},
    )
