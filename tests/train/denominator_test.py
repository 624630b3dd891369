"""The trajectories that a batch's loss is a mean over.

The expected loss is AgentRL's released one (arXiv:2510.04206, equation 1, and
its trainer), written again from its description: one trajectory per row,
nothing packed, nothing left out. Three tasks, of which one has no signal, and a
group without signal in one of the others.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import parameterized

from agentrl_jax.data.records import Status
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.learner import Learner
from agentrl_jax.train.objective import policy_objective
from tests.data.records import make_group
from tests.reference.advantages import group_advantages as reference
from tests.settings import COMPUTE
from tests.train import small

TASKS = {"a": 0, "b": 1, "dead": 2}
TEMPERATURE = 0.9
WITHOUT_TASK_NORM = {"task_center": False, "task_scale": False}


class DenominatorTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.policy = Policy(small.MODEL, COMPUTE)
    cls.params, cls.reference = small.params_of(), small.params_of(seed=1)
    cls.groups = _groups()

  @parameterized.named_parameters(
    ("agentrl", {"kl_coefficient": 0.1}, {}, 24),
    ("tasks_alike", {"task_share": "equal"}, {}, 16),
  )
  @pytest.mark.slow
  def test_every_attempt_that_is_kept_weighs(self, loss, advantage, packed):
    self.assert_as_expected(loss, advantage, packed)

  @parameterized.named_parameters(
    ("task_norm", {}, {}, 16),
    ("agentrl_by_sequence", {"reduction": "sequence_mean"}, {}, 16),
    ("grpo", {}, WITHOUT_TASK_NORM, 12),
    ("grpo_with_entropy", {"entropy_coefficient": 0.1}, WITHOUT_TASK_NORM, 24),
    (
      "dr_grpo",
      {"reduction": "fixed_length_mean", "reduction_settings": {"length": 20}},
      WITHOUT_TASK_NORM | {"scale_by_std": False},
      12,
    ),
    ("sums", {"reduction": "sequence_sum_mean"}, WITHOUT_TASK_NORM, 12),
    ("dapo", {"kl_coefficient": 0.1}, {"keep": "signal"}, 12),
  )
  @pytest.mark.full
  def test_every_kept_attempt_weighs_by_objective(
    self, loss, advantage, packed
  ):
    self.assert_as_expected(loss, advantage, packed)

  def assert_as_expected(self, loss, advantage, packed):
    self.groups = _near(self.policy, self.params, _groups())
    advantage = small.advantage_config(**advantage)
    loss = small.loss_config(**loss)
    value, gradient, num_packed = self._update(loss, advantage)
    self.assertEqual(num_packed, packed)
    wanted, of_params = jax.value_and_grad(self._expected)(
      self.params, loss, advantage
    )
    self.assertAlmostEqual(value, float(wanted), delta=1e-6)
    largest = 0.0
    for found, right in zip(
      jax.tree.leaves(gradient), jax.tree.leaves(of_params), strict=True
    ):
      np.testing.assert_allclose(found, right, atol=1e-6)
      largest = max(largest, float(np.abs(right).max()))
    self.assertGreater(largest, 0.01)

  @pytest.mark.slow
  def test_a_batch_without_signal_is_an_update_of_gradient_0(self):
    dead = [g for g in self.groups if g.task.name == "dead"]
    value, gradient, num_packed = self._update(
      small.loss_config(), small.advantage_config(), dead
    )
    self.assertEqual((value, num_packed), (0, 1))
    for leaf in jax.tree.leaves(gradient):
      np.testing.assert_array_equal(leaf, 0)

  @pytest.mark.slow
  def test_a_custom_function_sees_attempts_without_signal_too(self):
    batches, _ = self._prepare(
      small.loss_config(
        surrogate="tests.train.custom.my_lab:shifted", dual_clip=0.0
      ),
      small.advantage_config(),
      None,
    )
    self.assertEqual(_num_packed(batches), 24)

  def test_groups_that_are_not_kept_make_no_update(self):
    dead = [g for g in self.groups if g.task.name == "dead"]
    batches, report = self._prepare(
      small.loss_config(), small.advantage_config(keep="signal"), dead
    )
    self.assertEqual(batches, [])
    self.assertEqual(report["batch/trained_tokens"], 0)

  def test_attempts_without_a_token_do_not_weigh(self):
    first = self.groups[0]
    silent = dataclasses.replace(first.trajectories[0], turns=())
    members = (silent, *first.trajectories[1:])
    groups = [dataclasses.replace(first, trajectories=members)]
    batches, _ = self._prepare(
      small.loss_config(reduction="sequence_mean"),
      small.advantage_config(),
      groups,
    )
    self.assertEqual(sum(float(x.left_out) for x in batches), 0)
    self.assertEqual(_num_packed(batches), 3)

  def _prepare(self, loss, advantage, groups):
    builder = small.make_batch_builder(
      loss=loss,
      advantage=advantage,
      task_ids=TASKS,
      reference=self.reference if loss.kl_coefficient else None,
    )
    return builder.build(groups or self.groups, self.params)

  def _update(self, loss, advantage, groups=None):
    """Loss, gradient and how many trajectories were computed."""
    batches, report = self._prepare(loss, advantage, groups)
    played = [t for g in groups or self.groups for t in g.trajectories]
    if advantage.keep == "all":
      self.assertEqual(
        report["batch/trained_tokens"], sum(t.num_sampled for t in played)
      )
    learner = Learner(
      self.policy,
      policy_objective(self.policy, loss, temperature=TEMPERATURE),
      optax.trace(decay=0.0),  # its state is the gradient
      sharding.make_mesh({}, jax.devices()[:1]),
    )
    state, metrics = learner.update(learner.init(self.params), batches)
    return (metrics["loss"], state.optimizer.trace, _num_packed(batches))

  def _expected(self, params, loss, advantage):
    members = _counted(self.groups, advantage.keep)
    trajectories = [t for _, t in members]
    token_BT, mask_BT, behavior_BT = _rows(trajectories)
    advantage_BT = _advantages(members, mask_BT, advantage)
    logprob_BT, entropy_BT = _logprobs(self.policy, params, token_BT)
    ratio_BT = jnp.exp(jnp.where(mask_BT, logprob_BT - behavior_BT, 0))
    clipped_BT = jnp.clip(ratio_BT, 0.8, 1.2)
    loss_BT = jnp.maximum(-advantage_BT * ratio_BT, -advantage_BT * clipped_BT)
    loss_BT = jnp.where(
      advantage_BT < 0, jnp.minimum(-3.0 * advantage_BT, loss_BT), loss_BT
    )
    if loss.kl_coefficient:
      other_BT, _ = _logprobs(self.policy, self.reference, token_BT)
      gap_BT = jnp.where(mask_BT, other_BT - logprob_BT, 0)
      k3_BT = jnp.clip(jnp.exp(gap_BT) - gap_BT - 1, -10, 10)
      loss_BT += loss.kl_coefficient * k3_BT
    loss_BT -= loss.entropy_coefficient * entropy_BT
    if loss.task_share == "equal":
      task_B = np.array([t.task.name for t in trajectories])
      means = [
        jnp.sum(loss_BT, where=mask_BT & at_B1) / (mask_BT & at_B1).sum()
        for at_B1 in (task_B[:, None] == name for name in TASKS)
      ]
      return sum(means) / len(means)
    return _mean(loss_BT, mask_BT, loss)


def _mean(loss_BT, mask_BT, config):
  total_B = jnp.sum(loss_BT, axis=1, where=mask_BT)
  length_B = mask_BT.sum(axis=1)
  return {
    "token_mean": lambda: total_B.sum() / length_B.sum(),
    "sequence_mean": lambda: (total_B / length_B).mean(),
    "sequence_sum_mean": lambda: total_B.mean(),
    "fixed_length_mean": lambda: (
      total_B.mean() / config.reduction_settings["length"]
    ),
  }[config.reduction]()


def _groups():
  rng = np.random.default_rng(3)
  broken = {"status": Status.TASK_LIMIT_REACHED}
  return [
    make_group(rng, id="0", task="a"),
    make_group(rng, id="1", task="b"),
    make_group(rng, id="2", task="dead", reward=0.0),
    make_group(rng, id="3", task="a", reward=1.0),
    _mixed(make_group(rng, id="4", task="b")),
    make_group(rng, id="5", task="dead", **broken),
  ]


def _mixed(group):
  """Its first attempt without an end: AgentRL's -0.2, whatever was earned."""
  first, *rest = group.trajectories
  first = dataclasses.replace(first, status=Status.TASK_LIMIT_REACHED)
  return dataclasses.replace(group, trajectories=(first, *rest))


def _near(policy, params, groups):
  """The groups as if a policy near to this one had drawn their tokens."""
  rng = np.random.default_rng(4)

  def near(trajectory):
    token_BT, _, _ = _rows([trajectory])
    logprob_BT = np.asarray(_logprobs(policy, params, token_BT)[0])
    at, turns = 0, []
    for turn in trajectory.turns:
      at += len(turn.observation)
      drawn = logprob_BT[0, at : at + len(turn.sampled)]
      noise = 0.3 * rng.standard_normal(len(turn.sampled))
      at += len(turn.sampled)
      behavior = np.asarray(drawn + noise, np.float32)
      turns.append(dataclasses.replace(turn, behavior_logprob=behavior))
    return dataclasses.replace(trajectory, turns=tuple(turns))

  return [
    dataclasses.replace(g, trajectories=tuple(map(near, g.trajectories)))
    for g in groups
  ]


def _counted(groups, keep):
  members = [
    (g, t) for g, group in enumerate(groups) for t in group.trajectories
  ]
  if keep == "all":
    return members
  rewards = [{_reward(t) for t in group.trajectories} for group in groups]
  return [(g, t) for g, t in members if len(rewards[g]) > 1]


def _reward(trajectory):
  return trajectory.reward if trajectory.status is Status.COMPLETED else -0.2


def _rows(trajectories, length=48):
  token_BT = np.zeros((len(trajectories), length), np.int32)
  mask_BT = np.zeros(token_BT.shape, bool)
  behavior_BT = np.zeros(token_BT.shape, np.float32)
  for b, trajectory in enumerate(trajectories):
    at = 0
    for turn in trajectory.turns:
      end = at + len(turn.observation)
      token_BT[b, at:end] = turn.observation
      at, end = end, end + len(turn.sampled)
      token_BT[b, at:end] = turn.sampled
      behavior_BT[b, at:end] = turn.behavior_logprob
      mask_BT[b, at:end] = True
      at = end
  return token_BT, mask_BT, behavior_BT


def _advantages(members, mask_BT, config):
  advantage_B = reference.group_advantage(
    np.array([_reward(t) for _, t in members]),
    np.array([g for g, _ in members]),
    valid_N=np.ones(len(members), bool),
    scale_by_std=config.scale_by_std,
  )
  advantage_BT = np.repeat(advantage_B[:, None], mask_BT.shape[1], axis=1)
  if config.normalises_tasks:
    task_B = np.array([TASKS[t.task.name] for _, t in members])
    advantage_BT = reference.task_normalise(
      advantage_BT, np.broadcast_to(task_B[:, None], mask_BT.shape), mask_BT
    )
  return np.where(mask_BT, advantage_BT, 0).astype(np.float32)


@functools.partial(jax.jit, static_argnums=0)
def _logprobs(policy, params, token_BT):
  """Of each token given those before it, and the entropy there; 0 first."""
  position_BT = np.broadcast_to(np.arange(token_BT.shape[1]), token_BT.shape)
  logits_BTV = policy.logits(
    params, token_BT, position_BT, np.ones(token_BT.shape, np.int32)
  )
  logp_BTV = jax.nn.log_softmax(logits_BTV[:, :-1] / TEMPERATURE)
  picked_BT = jnp.take_along_axis(logp_BTV, token_BT[:, 1:, None], axis=2)
  entropy_BT = -(jnp.exp(logp_BTV) * logp_BTV).sum(axis=2)
  before = ((0, 0), (1, 0))
  return jnp.pad(picked_BT[..., 0], before), jnp.pad(entropy_BT, before)


def _num_packed(batches):
  return sum(int(x.batch.segment.max(axis=1).sum()) for x in batches)
