"""Tests of `train.metrics`: staleness by policy slot, and engine drift."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest
from absl.testing import absltest

from agentrl_jax.data.batch import Batch
from agentrl_jax.data.records import Group, Status, Task, Trajectory, Turn
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.batch_builder import BatchBuilder
from agentrl_jax.train.learner import Learner
from agentrl_jax.train.metrics import (
  drift_numbers,
  measure_drift,
  measure_policy_slots,
  policy_slot_numbers,
)
from agentrl_jax.train.objective import policy_objective
from agentrl_jax.train.train_batch import answer_versions
from agentrl_jax.train.weights.publish import Publisher
from tests.data.records import make_trajectory
from tests.rollout.small import attentive
from tests.settings import compute_config, engine_config
from tests.train import small

SHAPE = (3, 17)
TASKS = {"a": 0, "b": 1}


def _sample_size(weight_T):
  return weight_T.sum() ** 2 / (len(weight_T) * (weight_T**2).sum())


@jax.jit
def _moments(x_BT, batch, task_BT):
  """Of two such batches."""
  measured = measure_policy_slots(
    x_BT, batch, task_BT, num_policy_slots=2, tasks=TASKS
  )
  return {name: moments + moments for name, moments in measured.items()}


_drift = jax.jit(measure_drift)


class PolicySlotMetricsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    draw = np.random.default_rng(0)
    self.x_BT = draw.normal(0, 0.3, SHAPE).astype(np.float32)
    self.mask_BT = draw.random(SHAPE) < 0.6
    self.policy_slot_BT = draw.integers(0, 2, SHAPE).astype(np.int32)
    self.task_BT = draw.integers(0, 2, SHAPE).astype(np.int32)

  def _numbers(self, task_BT, x_BT=None):
    x_BT = self.x_BT if x_BT is None else x_BT
    zero = np.zeros(SHAPE, np.int32)
    batch = Batch(
      zero,
      zero,
      zero,
      self.mask_BT,
      zero,
      zero,
      zero,
      policy_slot=self.policy_slot_BT,
    )
    measured = _moments(np.where(self.mask_BT, x_BT, 0), batch, task_BT)
    numbers = {}
    for name, moments in measured.items():
      numbers |= policy_slot_numbers(name, moments)
    return numbers

  def test_by_policy_slot_and_task(self):
    numbers = self._numbers(self.task_BT)
    for place, mask_BT in (
      ("", self.mask_BT),
      ("/a", self.mask_BT & (self.task_BT == 0)),
      ("/b", self.mask_BT & (self.task_BT == 1)),
    ):
      for policy_slot in range(2):
        x_T = self.x_BT[mask_BT & (self.policy_slot_BT == policy_slot)].astype(
          float
        )
        ratio_T = np.exp(x_T)
        for what, expected in (
          ("share_of_tokens", len(x_T) / mask_BT.sum()),
          ("kl_to_behavior", np.mean(ratio_T - 1 - x_T)),
          ("abs_log_ratio", np.mean(np.abs(x_T))),
          ("truncated_sample_size", _sample_size(np.minimum(ratio_T, 2))),
          ("effective_sample_size", _sample_size(ratio_T)),
        ):
          name = f"policy/{what}/policy_slot{policy_slot}{place}"
          with self.subTest(name):
            np.testing.assert_allclose(numbers.pop(name), expected, rtol=1e-5)
    self.assertEmpty(numbers)

  def test_an_extreme_ratio_moves_only_its_own_policy_slot(self):
    """A ratio of 400 among the tokens that an old version sampled."""
    calm = self._numbers(None)
    b, t = np.argwhere(self.mask_BT & (self.policy_slot_BT == 1))[0]
    x_BT = self.x_BT.copy()
    x_BT[b, t] = np.log(400)
    found = self._numbers(None, x_BT)
    for name, value in found.items():
      if name.endswith("policy_slot0"):
        self.assertEqual(value, calm[name])  # nobody else's figures move
    self.assertGreater(found["policy/kl_to_behavior/policy_slot1"], 10)
    self.assertLess(found["policy/effective_sample_size/policy_slot1"], 0.2)
    self.assertLess(found["policy/abs_log_ratio/policy_slot1"], 1)
    self.assertGreater(found["policy/truncated_sample_size/policy_slot1"], 0.8)

  def test_without_task_numbers_there_are_no_metrics_by_task(self):
    self.assertEqual({name.count("/") for name in self._numbers(None)}, {2})


MEAN, MAX = "policy/engine_drift", "policy/engine_drift_max"
SHARE = "policy/on_policy_share"
TEMPERATURE = 0.9  # of `small`


class MeasureTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    draw = np.random.default_rng(0)
    shape = (4, 19)
    self.x_BT = draw.normal(0, 0.3, shape).astype(np.float32)
    self.mask_BT = draw.random(shape) < 0.6
    self.version_BT = draw.integers(-1, 5, shape).astype(np.int32)

  def _measured(self, rows=slice(None), version=3):
    return _drift(
      self.x_BT[rows],
      self.mask_BT[rows],
      self.version_BT[rows],
      np.int32(version),
    )

  def test_tokens_of_the_version_count_however_they_are_cut(self):
    same_BT = self.mask_BT & (self.version_BT == 3)
    apart = np.abs(self.x_BT[same_BT].astype(float))
    parts = [self._measured(slice(n, n + 1)) for n in range(4)]
    for drift in (self._measured(), sum(parts[1:], parts[0])):
      numbers = drift_numbers(drift)
      self.assertAlmostEqual(numbers[MEAN], apart.mean(), places=6)
      self.assertAlmostEqual(numbers[MAX], apart.max(), places=6)
      self.assertAlmostEqual(numbers[SHARE], len(apart) / self.mask_BT.sum())

  def test_without_on_policy_tokens_there_is_no_drift(self):
    self.assertEqual(drift_numbers(self._measured(version=7)), {SHARE: 0.0})

  def test_nan_log_ratio_shows_in_the_drift(self):
    self.x_BT[self.mask_BT & (self.version_BT == 3)] = np.nan
    numbers = drift_numbers(self._measured())
    self.assertTrue(np.isnan(numbers[MEAN]) and np.isnan(numbers[MAX]))

  def test_answers_across_a_weight_swap_have_no_version(self):
    trajectory = make_trajectory(np.random.default_rng(0), turns=3)
    turns = [
      dataclasses.replace(turn, version=np.full_like(turn.version, version))
      for turn, version in zip(trajectory.turns, (4, 5, -1), strict=True)
    ]
    swapped = np.full(2, 5, np.int32)
    swapped[0] = 4
    turns[1] = Turn(
      swapped, swapped, *np.zeros((2, 2), np.float32), version=swapped
    )
    played = dataclasses.replace(trajectory, turns=tuple(turns))
    short = dataclasses.replace(trajectory, turns=tuple(turns[:1]))
    np.testing.assert_array_equal(
      answer_versions([played, short]), [[4, -1, -1], [4, -1, -1]]
    )


class Played:
  """An engine that plays, and the learner of its policy."""

  def __init__(self, dtype):
    self._policy = policy = Policy(small.MODEL, compute_config(dtype=dtype))
    self._versions = ServedWeights(1)
    self._publisher = Publisher(
      policy, self._versions, dtype=dtype, layers_apart=False
    )
    config = engine_config(
      slots=(4,), context=48, num_slot_sizes=1, prefill_chunks=(8,)
    )
    self.temperature = TEMPERATURE
    self._engine = RolloutEngine(policy, config, self._versions)
    self._builder = BatchBuilder(
      policy,
      loss=small.loss_config(),
      advantage=small.advantage_config(),
      batch=small.batch_config(),
      task_ids=small.TASK_IDS,
      temperature=TEMPERATURE,
    )
    self.learner = Learner(
      policy,
      policy_objective(policy, small.loss_config(), temperature=TEMPERATURE),
      optax.sgd(3.0),
      sharding.make_mesh({}, jax.devices()[:1]),
    )

  def begin(self):
    """As new, and served; peaked, so that temperature and rounding matter."""
    # What rounding does depends on their sizes, so they are a policy's own.
    fresh = jax.device_get(jax.jit(self._policy.init)(jax.random.key(0)))
    params = jax.tree.map(lambda x: np.float32(3 * x), attentive(fresh))
    self.state = self.learner.init(params)
    self.temperature = TEMPERATURE
    self.publish()

  def publish(self):
    self._publisher.publish(self.state.params, int(self.state.version))

  def group(self, seed):
    draw = np.random.default_rng(seed)
    members = tuple(self._attempt(draw, number) for number in range(4))
    return Group(str(seed), members[0].task, members)

  def _attempt(self, draw, number):
    said, turns = [], []
    for _ in range(2):
      observation = draw.integers(1, 50, 5).astype(np.int32)
      said.extend(observation)
      answer = self._answer(said, seed=int(draw.integers(1 << 30)))
      said.extend(answer.sampled)
      turns.append(
        Turn(
          observation,
          answer.sampled,
          answer.behavior_logprob,
          answer.raw_logprob,
          answer.version,
        )
      )
    return Trajectory(
      task=Task("a", "train", 0),
      group_id="g",
      attempt=number,
      seed=number,
      turns=tuple(turns),
      status=Status.COMPLETED,
      reward=float(number),
    )

  def _answer(self, prompt, seed):
    spec = SamplingParams(temperature=self.temperature, max_tokens=6, seed=seed)
    self._engine.admit(self._engine.check(prompt, spec))
    while True:
      for _, answer in self._engine.read(self._engine.step()):
        return answer

  def update(self, groups):
    batches, _ = self._builder.build(groups, self.state.params)
    self.state, metrics = self.learner.update(self.state, batches)
    return metrics


@functools.cache
def _compiled(dtype):
  return Played(dtype)


def _played(dtype="float32"):
  played = _compiled(dtype)
  played.begin()
  return played


class EngineTest(absltest.TestCase):
  def test_engine_and_learner_agree_in_float32(self):
    played = _played()
    metrics = played.update([played.group(0), played.group(1)])
    self.assertBetween(metrics[MEAN], 0, 1e-5)
    self.assertBetween(metrics[MAX], metrics[MEAN], 1e-4)
    self.assertEqual(metrics[SHARE], 1)
    self.assertAlmostEqual(
      metrics["policy/abs_log_ratio"], metrics[MEAN], delta=1e-9
    )

  def test_tokens_of_older_versions_measure_no_drift(self):
    played = _played()
    old = played.group(0)
    played.update([played.group(1)])
    metrics = played.update([old])  # as the second update of a batch, too
    self.assertEqual(metrics[SHARE], 0)
    self.assertNoCommonElements((MEAN, MAX), metrics)
    self.assertGreater(metrics["policy/abs_log_ratio"], 1e-3)
    played.publish()
    metrics = played.update([old, played.group(2)])
    self.assertBetween(metrics[SHARE], 0.4, 0.6)
    self.assertBetween(metrics[MEAN], 0, 1e-5)
    self.assertGreater(metrics["policy/abs_log_ratio"], 1e-3)

  @pytest.mark.slow
  def test_drift_shows_another_temperature(self):
    played = _played()
    played.temperature = 0.7
    self.assertGreater(played.update([played.group(0)])[MEAN], 1e-3)

  @pytest.mark.slow
  def test_drift_shows_another_weight(self):
    played = _played()
    params = played.state.params | {
      "embedding": played.state.params["embedding"] * 1.01
    }
    played.state = dataclasses.replace(played.state, params=params)
    self.assertGreater(played.update([played.group(0)])[MEAN], 1e-4)

  @pytest.mark.slow
  def test_in_bfloat16_it_is_measured(self):
    played = _played("bfloat16")
    metrics = played.update([played.group(0), played.group(1)])
    self.assertGreater(metrics[MEAN], 0)
    self.assertBetween(metrics[MAX], metrics[MEAN], 0.05)
    self.assertEqual(metrics[SHARE], 1)

  @pytest.mark.slow
  def test_an_engine_of_lower_precision_shows(self):
    groups = [_played("bfloat16").group(0)]
    self.assertGreater(_played().update(groups)[MEAN], 1e-3)

  @pytest.mark.slow
  def test_batches_without_versions_measure_no_drift(self):
    _, learner = small.make_learner()
    batches = [
      dataclasses.replace(micro_batch, version=None)
      for micro_batch in small.make_batches()
    ]
    state = learner.init(small.params_of())
    _, metrics = learner.update(state, batches)
    self.assertNoCommonElements((MEAN, MAX, SHARE), metrics)
