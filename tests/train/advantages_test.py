"""Tests of `train.advantages`: estimators, filters and config checks."""

import dataclasses

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.data.packing import Rows
from agentrl_jax.data.records import Group, Status
from agentrl_jax.errors import ConfigError, NotFinite
from agentrl_jax.losses import unseen_tasks
from agentrl_jax.train import advantages, critic
from agentrl_jax.train.config.advantage import CRITIC_ESTIMATORS, ESTIMATORS
from tests.data.records import make_group
from tests.reference.advantages import pass_at_k as reference
from tests.train import small

PLAIN = {"task_center": False, "task_scale": False}


def _advantages(groups, running=None, penalty_NU=None, **changes):
  config = small.advantage_config(**changes)
  arrays = advantages.make_arrays(groups, small.TASK_IDS, config, penalty_NU)
  value_NU, running, _ = advantages.advantages(
    arrays, num_tasks=len(small.TASK_IDS), config=config, running=running
  )
  num_trajectories = sum(len(group.trajectories) for group in groups)
  return np.asarray(value_NU)[:num_trajectories], running


def _one_each(groups, **changes):
  """Returns one advantage per trajectory; all its turns must have the same."""
  value_NU, _ = _advantages(groups, **changes)
  trajectories = [t for group in groups for t in group.trajectories]
  for trajectory, value_U in zip(trajectories, value_NU, strict=True):
    num_turns = len(trajectory.turns)
    np.testing.assert_array_equal(value_U[:num_turns], value_U[0])
    np.testing.assert_array_equal(value_U[num_turns:], 0)
  return value_NU[:, 0]


def _rewards(groups, incomplete_reward=-0.2):
  return [
    [
      t.reward if t.status is Status.COMPLETED else incomplete_reward
      for t in group.trajectories
    ]
    for group in groups
  ]


def _by_hand(groups, epsilon=1e-6):
  """AgentRL's two normalisations, in float64, one token at a time."""
  within = [
    [(r - np.mean(rs)) / (np.std(rs, ddof=1) + epsilon) for r in rs]
    if len(set(rs)) > 1
    else [0.0] * len(rs)
    for rs in _rewards(groups)
  ]
  result = []
  for group, values in zip(groups, within, strict=True):
    tokens = [
      a
      for other, others in zip(groups, within, strict=True)
      if other.task.name == group.task.name
      for t, a in zip(other.trajectories, others, strict=True)
      for _ in range(t.num_sampled)
    ]
    mean, std = np.mean(tokens), np.std(tokens, ddof=1)
    result += [(a - mean) / (std + epsilon) for a in values]
  return result


def _with_turns(group: Group, rewards, observations) -> Group:
  """Returns the group with these rewards and observations of its turns."""
  members = []
  for trajectory, of_turns, seen in zip(
    group.trajectories, rewards, observations, strict=True
  ):
    turns = tuple(
      dataclasses.replace(turn, reward=r, observation=np.int32([o]))
      for turn, r, o in zip(trajectory.turns, of_turns, seen, strict=True)
    )
    members.append(
      dataclasses.replace(trajectory, turns=turns, reward=sum(of_turns))
    )
  return dataclasses.replace(group, trajectories=tuple(members))


class TrajectoryEstimatorsTest(parameterized.TestCase):
  def test_the_base_config_is_the_papers(self):
    groups = small.make_groups()
    np.testing.assert_allclose(_one_each(groups), _by_hand(groups), atol=1e-5)

  def test_a_lone_task_is_normalised_as_if_alone(self):
    groups = small.make_groups()
    mine = [g for g in groups if g.task.name == "a"]
    of_a = [t.task.name == "a" for group in groups for t in group.trajectories]
    np.testing.assert_allclose(
      _one_each(groups)[of_a], _one_each(mine), atol=1e-6
    )

  @parameterized.named_parameters(
    ("no_std", {"scale_by_std": False}, lambda r: r - np.mean(r)),
    ("rloo", {"estimator": "rloo"}, lambda r: (r - np.mean(r)) * 4 / 3),
    (
      "best_of_group",
      {"estimator": "best_of_group", "scale_by_std": False},
      lambda r: np.where(r == np.max(r), r - np.sort(r)[-2], 0),
    ),
    (
      "max_at_k",
      {"estimator": "max_at_k", "estimator_settings": {"k": 4}},
      lambda r: np.where(r == np.max(r), r - np.sort(r)[-2], 0),
    ),
  )
  @pytest.mark.slow
  def test_estimators(self, changes, expected):
    groups = [g for g in small.make_groups() if g.id != "3"]
    wanted = [expected(np.array(r)) for r in _rewards(groups)]
    np.testing.assert_allclose(
      _one_each(groups, **PLAIN, **changes), np.concatenate(wanted), atol=1e-5
    )

  def test_pass_at_k_counts_full_marks(self):
    rng = np.random.default_rng(0)
    group = make_group(rng, reward=0.9)
    best = dataclasses.replace(group.trajectories[0], reward=1.0)
    group = dataclasses.replace(
      group, trajectories=(best, *group.trajectories[1:])
    )
    found = _one_each(
      [group], **PLAIN, estimator="pass_at_k", estimator_settings={"k": 2}
    )
    np.testing.assert_allclose(
      found,
      reference.pass_at_k_advantage(
        [True, False, False, False],
        np.zeros(4, int),
        valid_N=np.ones(4, bool),
        k=2,
      ),
      atol=1e-5,
    )

  @parameterized.parameters(
    ("reinforce_plus_plus", lambda r: r),
    ("reinforce_plus_plus_baseline", lambda r: r - np.mean(r)),
  )
  def test_whitening_uses_statistics_of_the_batch(self, estimator, before):
    groups = small.make_groups()
    found = _one_each(groups, **PLAIN, estimator=estimator, whiten=True)
    value_N = np.concatenate([before(np.array(r)) for r in _rewards(groups)])
    counts = [t.num_sampled for g in groups for t in g.trajectories]
    tokens = np.repeat(value_N, counts)
    np.testing.assert_allclose(
      found,
      (value_N - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8),
      atol=1e-5,
    )

  def test_trajectories_may_count_once(self):
    groups = small.make_groups()
    found = _one_each(groups, task_statistics="trajectories")
    of_a = [t.task.name == "a" for group in groups for t in group.trajectories]
    self.assertAlmostEqual(found[of_a].mean(), 0, places=5)
    self.assertAlmostEqual(found[of_a].std(ddof=1), 1, places=5)
    tokens = _one_each(groups)
    self.assertGreater(np.abs(found - tokens).max(), 1e-3)

  def test_penalties_come_off_the_rewards(self):
    groups = small.make_groups()
    costs = np.random.default_rng(3).random((24, 2))
    found = _one_each(groups, **PLAIN, scale_by_std=False, penalty_NU=costs)
    rewards = np.array(_rewards(groups)) - costs.sum(axis=1).reshape(6, 4)
    wanted = rewards - rewards.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(found, wanted.reshape(-1), atol=1e-6)


class KeepTest(parameterized.TestCase):
  def test_groups_without_signal_can_be_left_out(self):
    flat = make_group(np.random.default_rng(0), id="flat", reward=0.5)
    rest = small.make_groups()
    found = _one_each([flat, *rest], keep="signal")
    np.testing.assert_array_equal(found[:4], 0)
    # The group whose episodes were all cut off by a limit is flat as well.
    without = [g for g in rest if g.id != "3"]
    np.testing.assert_allclose(
      np.concatenate([found[4:16], found[20:]]),
      _one_each(without, keep="signal"),
      atol=1e-6,
    )
    centred = _one_each([flat, *rest])
    self.assertGreater(np.abs(centred[:4]).min(), 0)

  @parameterized.parameters(
    ("top_share", 0.5), ("top_signal", 0.6), ("top_softmax", 0.5)
  )
  def test_a_share_of_the_groups(self, keep, threshold):
    groups = small.make_groups()
    found = _one_each(
      groups, **PLAIN, keep=keep, keep_settings={"share": threshold}
    )
    kept = found.reshape(6, 4).any(axis=1)
    spread = [np.std(r, ddof=1) for r in _rewards(groups)]
    self.assertEqual(kept.sum(), 3)
    self.assertGreater(
      min(s for s, k in zip(spread, kept, strict=True) if k),
      max(s for s, k in zip(spread, kept, strict=True) if not k),
    )

  def test_above_a_deviation(self):
    groups = small.make_groups()
    spread = np.array([np.std(r, ddof=1) for r in _rewards(groups)])
    threshold = float(np.median(spread))
    found = _one_each(
      groups, **PLAIN, keep="std", keep_settings={"threshold": threshold}
    )
    np.testing.assert_array_equal(
      found.reshape(6, 4).any(axis=1), spread > threshold
    )


class TurnEstimatorsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    group = make_group(np.random.default_rng(0), size=3)
    self.rewards = [[0.5, 0.0], [0.0, 1.0], [0.25, 0.25]]
    self.group = _with_turns(group, self.rewards, [[7, 8], [7, 8], [7, 9]])

  def test_returns_of_turns_against_the_group_s(self):
    found, _ = _advantages(
      [self.group], **PLAIN, estimator="turn_return", discount=0.5
    )
    returns = np.array([[a + 0.5 * b, b] for a, b in self.rewards])
    wanted = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(found, wanted, atol=1e-5)

  def test_steps_from_the_same_state(self):
    found, _ = _advantages(
      [self.group],
      **PLAIN,
      estimator="gigpo",
      discount=0.5,
      estimator_settings={"step_weight": 2.0},
      scale_by_std=False,
    )
    rewards = np.array(self.rewards)
    episode = rewards.sum(axis=1) - rewards.sum() / 3
    first = rewards[:, 0] + 0.5 * rewards[:, 1]
    step = np.stack([first - first.mean(), [-0.5, 0.5, 0.0]], axis=1)
    np.testing.assert_allclose(found, episode[:, None] + 2 * step, atol=1e-5)

  def test_the_last_turn_settles_what_not_finishing_costs(self):
    trajectory = dataclasses.replace(
      self.group.trajectories[0], status=Status.TASK_LIMIT_REACHED
    )
    np.testing.assert_allclose(
      advantages.turn_rewards(trajectory, -0.2), [0.5, -0.7]
    )
    self.assertEqual(advantages.shaped_reward(trajectory, -0.2), -0.2)

  def test_tasks_are_normalised_over_tokens_of_turns(self):
    found, _ = _advantages([self.group], estimator="turn_return")
    counts = [
      [len(turn.sampled) for turn in t.turns] for t in self.group.trajectories
    ]
    tokens = np.repeat(found.reshape(-1), np.array(counts).reshape(-1))
    self.assertAlmostEqual(tokens.mean(), 0, places=5)
    self.assertAlmostEqual(tokens.std(ddof=1), 1, places=5)


class LargeRewardsTest(parameterized.TestCase):
  """Sizes of which float32 has no squares, or no differences."""

  @parameterized.product(
    size=((0, 1e20), (1e8, 1), (-1e10, 1)),
    changes=(
      {},
      {"estimator": "gigpo", **PLAIN},
      {"estimator": "reinforce_plus_plus", "whiten": True, **PLAIN},
      {"task_decay": 0.5},
    ),
  )
  def test_shift_and_unit_of_rewards_do_not_matter(self, size, changes):
    shift, unit = size
    group = make_group(np.random.default_rng(0), size=4)
    observations = [[7, 8]] * 4
    decay = changes.get("task_decay", 0)
    running = unseen_tasks(len(small.TASK_IDS)) if decay else None
    found = [
      _advantages(
        [
          _with_turns(
            group, [[0.0, a + b * x] for x in (1, 0, 0, 1)], observations
          )
        ],
        running,
        **changes,
      )[0]
      for a, b in ((0, 1), (shift, unit))
    ]
    self.assertGreater(np.abs(found[0]).min(), 0.1)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)

  def test_groups_with_a_signal_are_found(self):
    groups = [
      make_group(np.random.default_rng(0), id=id, size=1) for id in "ab"
    ]
    groups = [
      dataclasses.replace(
        group,
        trajectories=tuple(
          dataclasses.replace(group.trajectories[0], reward=r) for r in rewards
        ),
      )
      for group, rewards in zip(
        groups, ((1e8, 1e8), (1e8, 1e8 + 1)), strict=True
      )
    ]
    config = small.advantage_config(keep="signal")
    arrays = advantages.make_arrays(groups, small.TASK_IDS, config)
    counted_N = advantages.counted_trajectories(arrays, config=config)
    self.assertEqual(list(counted_N), [False, False, True, True])

  @parameterized.parameters((0, 1e20), (1e8, 1))
  def test_a_critic_s_advantages_are_normalised(self, shift, unit):
    zeros_RT = np.zeros((2, 2), np.int32)
    rows = Rows(
      token=zeros_RT,
      position=zeros_RT + np.arange(2, dtype=np.int32),
      segment=zeros_RT + 1,
      mask=zeros_RT == 0,
      trajectory=np.arange(2, dtype=np.int32)[:, None] + zeros_RT,
      turn=zeros_RT,
      behavior_logprob=np.zeros((2, 2), np.float32),
      policy_slot=zeros_RT,
    )
    config = small.advantage_config(estimator="gae", gae_lambda=1.0)
    fields = critic.critic_advantages(
      rows,
      np.array([[0, shift + unit], [0, shift]], np.float64),
      np.zeros((2, 2), np.float32),
      zeros_RT,
      config,
      advantages.RunningMoments(config, num_tasks=1),
    )
    wanted = 0.75**0.5
    np.testing.assert_allclose(
      fields["advantage"], [[wanted] * 2, [-wanted] * 2], rtol=1e-5
    )

  def test_advantage_beyond_float32_is_refused(self):
    config = small.advantage_config(estimator="rloo", **PLAIN)
    group = make_group(np.random.default_rng(0), size=2)
    group = _with_turns(group, [[3e38, 0.0], [-3e38, 0.0]], [[7, 8]] * 2)
    found, _ = _advantages([group], estimator="rloo", **PLAIN)
    with self.assertRaisesRegex(NotFinite, "gave 2 trajectories"):
      advantages.require_finite(found, config)


class MomentsTest(parameterized.TestCase):
  """Moments are of advantages before the tasks' own normalisation."""

  def setUp(self):
    super().setUp()
    random = np.random.default_rng(3)
    self.groups = [
      make_group(random, task=task, size=4) for task in ("a", "b", "a")
    ]

  def numbers(self, groups, **changes):
    config = small.advantage_config(scale_by_std=False, **changes)
    arrays = advantages.make_arrays(groups, small.TASK_IDS, config)
    value_NU, _, moments = advantages.advantages(
      arrays, num_tasks=len(small.TASK_IDS), config=config
    )
    return value_NU, advantages.moment_numbers(moments, small.TASK_IDS)

  @parameterized.parameters({}, PLAIN, {"task_decay": 0.5})
  def test_they_are_over_the_tokens_of_each_task(self, **changes):
    raw_NU, _ = self.numbers(self.groups, **PLAIN)
    _, found = self.numbers(self.groups, **changes)
    trajectories = [t for g in self.groups for t in g.trajectories]
    for task in ("a", "b"):
      tokens = [
        raw_NU[n, 0]
        for n, t in enumerate(trajectories)
        for _ in range(t.num_sampled * (t.task.name == task))
      ]
      np.testing.assert_allclose(
        [found[f"advantage/mean/{task}"], found[f"advantage/spread/{task}"]],
        [np.mean(tokens), np.std(tokens, ddof=1)],
        atol=1e-6,
      )

  def test_a_task_that_the_batch_lacks_has_none(self):
    _, found = self.numbers([self.groups[0]])
    self.assertEqual(list(found), ["advantage/mean/a", "advantage/spread/a"])


class RunningTest(absltest.TestCase):
  def test_statistics_outlive_their_batch(self):
    first, second = small.make_groups(seed=0), small.make_groups(seed=1)
    alone, _ = _advantages(second)
    fresh, moments = _advantages(
      first, unseen_tasks(len(small.TASK_IDS)), task_decay=0.9
    )
    np.testing.assert_allclose(fresh, _advantages(first)[0], atol=1e-5)
    later, _ = _advantages(second, moments, task_decay=0.9)
    self.assertGreater(np.abs(later - alone).max(), 1e-3)


class ConfigTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (
      "k",
      {"estimator_settings": {"k": 4}},
      "k means nothing for advantage.estimator='grpo', which takes no settings",
    ),
    ("max_at_k", {"estimator": "max_at_k"}, "settings: k=1 must be .* least 2"),
    (
      "true_k",
      {"estimator": "pass_at_k", "estimator_settings": {"k": True}},
      "settings: k=True must be",
    ),
    ("discount", {"discount": 0.9}, "discount=0.9 means nothing"),
    ("trace_of_none", {"gae_lambda": 0.9}, "gae_lambda=0.9 means nothing"),
    (
      "std_of_none",
      {"estimator": "rloo", "scale_by_std": False},
      "scale_by_std=False means nothing",
    ),
    (
      "step_weight",
      {"estimator": "gigpo", "estimator_settings": {"step_weight": -1.0}},
      "step_weight=-1.0 must be at least 0",
    ),
    (
      "turn_discount",
      {
        "estimator": "bi_level_gae",
        "estimator_settings": {"turn_discount": 1.5},
      },
      r"turn_discount=1.5 must be in \[0, 1\]",
    ),
    ("both", {"whiten": True}, "choose one"),
    (
      "yardstick",
      {"estimator": "reinforce_plus_plus"},
      "takes the batch for its baseline",
    ),
    (
      "threshold",
      {"keep": "top_share", "keep_settings": {"threshold": 0.5}},
      "threshold means nothing for advantage.keep='top_share', which takes sh",
    ),
    ("share", {"keep": "top_share"}, r"share=0.0 must be .*, in \(0, 1\]"),
    ("idle_decay", {**PLAIN, "task_decay": 0.5}, "without task normalis"),
    (
      "statistics",
      {"estimator": "gigpo", "task_statistics": "trajectories"},
      "counts one advantage per trajectory",
    ),
    (
      "critic",
      {"estimator": "gae", "keep": "signal"},
      "the critic learns from every trajectory",
    ),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      small.advantage_config(**changes)

  @parameterized.parameters(*sorted(set(ESTIMATORS) - set(CRITIC_ESTIMATORS)))
  def test_every_estimator_can_be_had(self, estimator):
    changes = {"estimator": estimator, **PLAIN}
    changes["whiten"] = estimator.startswith("reinforce")
    if estimator.endswith("at_k"):
      changes["estimator_settings"] = {"k": 2}
    found, _ = _advantages(small.make_groups(), **changes)
    self.assertTrue(np.isfinite(found).all())
