"""Episodes of several lines: each token once, each episode once."""

import dataclasses
import functools

import jax
import numpy as np
from absl.testing import parameterized

from agentrl_jax.data.records import Status
from agentrl_jax.errors import ConfigError
from agentrl_jax.losses import Mean
from agentrl_jax.train.metrics import POLICY_LOGPROB
from agentrl_jax.train.objective import batch_loss
from tests.data.records import make_group, make_several_lines, make_trajectory
from tests.train import small

ROLES = ("plan", "write")


def make_groups(num_lines=3, seed=0, num_groups=4, size=4):
  rng = np.random.default_rng(seed)
  groups = []
  for n in range(num_groups):
    members = tuple(
      make_trajectory(
        rng,
        task="ab"[n % 2],
        group=str(n),
        attempt=attempt,
        turns=1 + attempt,
        status=Status.COMPLETED,
      )
      for attempt in range(size)
    )
    group = dataclasses.replace(
      make_group(rng, id=str(n), task="ab"[n % 2]), trajectories=members
    )
    groups.append(make_several_lines(group, num_lines=num_lines))
  return groups


@functools.partial(jax.jit, static_argnums=0)
def mean_of(*args):
  return batch_loss(*args)[0]


def all_of(groups):
  return [t for group in groups for t in group.trajectories]


def advantages_of(builder, groups):
  """Maps (group, attempt) to the advantages of its tokens."""
  batches, _ = builder.build(groups, params=None)
  trajectories = all_of(groups)
  found = {(t.group_id, t.attempt): set() for t in trajectories}
  for micro_batch in batches:
    mask_BT = np.asarray(micro_batch.batch.mask)
    number = np.asarray(micro_batch.batch.trajectory)[mask_BT]
    value = np.asarray(micro_batch.advantage)[mask_BT]
    for n, x in zip(number, value, strict=True):
      packed = builder.learned_turns._packed[n]
      found[packed.group_id, packed.attempt].add(float(x))
  return found


def unnormalised(**fields):
  return small.advantage_config(task_center=False, task_scale=False, **fields)


class LinesTest(parameterized.TestCase):
  @parameterized.product(sharing=(1, 4), compare=("episodes", "roles", "lines"))
  def test_every_sampled_token_is_trained_on_once(self, sharing, compare):
    groups = make_groups()
    builder = small.make_batch_builder(
      advantage=unnormalised(compare=compare), sharing=sharing
    )
    batches, report = builder.build(groups, params=None)
    trained = [
      token
      for x in batches
      for token in np.asarray(x.batch.token)[np.asarray(x.batch.mask)]
    ]
    sampled = [
      token
      for t in all_of(groups)
      for turn in t.turns
      for token in turn.sampled
    ]
    if report["batch/left_out_tokens"]:
      self.assertEqual(report["batch/trained_tokens"], len(sampled))
    else:
      self.assertCountEqual(trained, sampled)
    self.assertEqual(report["batch/trajectories"], 16)

  def test_a_line_sees_no_other(self):
    """Its tokens are one segment, with positions from 0."""
    groups = make_groups()
    builder = small.make_batch_builder(advantage=unnormalised())
    batches, _ = builder.build(groups, params=None)
    packed = builder.learned_turns._packed
    found = []
    for x in batches:
      batch = x.batch
      for row in range(len(batch.token)):
        for segment in range(1, int(batch.segment[row].max()) + 1):
          here = batch.segment[row] == segment
          position = batch.position[row][here]
          self.assertEqual(position.tolist(), list(range(here.sum())))
          found.append(tuple(batch.token[row][here].tolist()))
    wanted = [tuple(line.tokens.tolist()) for t in packed for line in t.lines]
    self.assertCountEqual(found, wanted)
    self.assertGreater(len(found), len(packed))

  def test_all_lines_of_an_episode_have_its_advantage(self):
    builder = small.make_batch_builder(advantage=unnormalised())
    found = advantages_of(builder, make_groups())
    for values in found.values():
      self.assertLessEqual(len(values), 1)
    self.assertGreater(sum(len(values) for values in found.values()), 8)

  @parameterized.parameters("episodes", "roles")
  def test_further_lines_change_no_other_episode(self, compare):
    self.check_others(unnormalised(compare=compare), self.assertEqual)

  def test_further_lines_change_no_other_episode_by_task(self):
    config = small.advantage_config(task_statistics="trajectories")
    self.check_others(config, self.assertEqual)

  def test_further_lines_count_where_lines_are_compared(self):
    """The negative control: an episode of many calls weighs more."""
    self.check_others(unnormalised(compare="lines"), self.assertNotEqual)

  def check_others(self, config, check):
    groups = make_groups(num_lines=2)
    before = advantages_of(small.make_batch_builder(advantage=config), groups)
    first, changed, *others = groups[0].trajectories
    more = [
      dataclasses.replace(turn, line=line)
      for turn in make_trajectory(np.random.default_rng(9), turns=1).turns
      for line in (2, 3)
    ]
    longer = dataclasses.replace(
      changed, turns=(*changed.turns, *more), roles=2 * changed.roles
    )
    group = dataclasses.replace(
      groups[0], trajectories=(first, longer, *others)
    )
    after = advantages_of(
      small.make_batch_builder(advantage=config), [group, *groups[1:]]
    )
    changed = (changed.group_id, changed.attempt)
    check(
      {key: x for key, x in before.items() if key != changed},
      {key: x for key, x in after.items() if key != changed},
    )

  @parameterized.parameters(1, 8)
  def test_means_over_sequences_count_an_episode_once(self, micro_batch):
    groups = make_groups()
    num_episodes = len(all_of(groups))
    num_tokens = sum(t.num_sampled for t in all_of(groups))
    config = unnormalised()
    for reduction, length in (
      ("sequence_mean", None),
      ("sequence_sum_mean", None),
      ("fixed_length_mean", 10),
      ("token_mean", None),
    ):
      loss = small.loss_config(
        surrogate="reinforce",
        dual_clip=0,
        reduction=reduction,
        **({"reduction_settings": {"length": length}} if length else {}),
      )
      builder = small.make_batch_builder(
        loss=loss, advantage=config, micro_batch=micro_batch
      )
      batches, _ = builder.build(groups, params=None)
      packed = builder.learned_turns._packed
      value_N = 1.0 + np.arange(len(packed))
      size_N = np.array([t.num_sampled for t in packed])
      mean = Mean(0.0, 0.0)
      for x in batches:
        # Numbers that do not add up to 0, as those of a group do.
        value_BT = np.where(x.batch.mask, 1.0 + x.batch.trajectory, 0)
        x = dataclasses.replace(x, advantage=value_BT.astype(np.float32))
        zeros_BT = np.zeros(x.batch.mask.shape, np.float32)
        part = mean_of(loss, x, x.batch.behavior_logprob, zeros_BT)
        self.assertGreater(float(part.weight), 0)
        mean = Mean(
          mean.total + float(part.total), mean.weight + float(part.weight)
        )
      wanted = {
        "sequence_mean": -value_N.sum() / num_episodes,
        "sequence_sum_mean": -(value_N @ size_N) / num_episodes,
        "fixed_length_mean": -(value_N @ size_N) / num_episodes / (length or 1),
        "token_mean": -(value_N @ size_N) / num_tokens,
      }[reduction]
      np.testing.assert_allclose(
        float(mean.total / mean.weight), wanted, rtol=1e-4, err_msg=reduction
      )

  def test_a_custom_mean_is_left_as_it_is(self):
    """It may be over tokens, of which there are no more for being on lines."""
    loss = small.loss_config(
      reduction="tests.train.custom.my_lab:token_mean_in",
      reduction_settings={"unit": 1.0},
    )
    builder = small.make_batch_builder(loss=loss, advantage=unnormalised())
    batches, _ = builder.build(make_groups(), params=None)
    self.assertNotEmpty(batches)
    for x in batches:
      self.assertIsNone(x.left_out)
      self.assertIsNone(x.weight)


class RolesTest(parameterized.TestCase):
  def test_only_their_tokens_are_trained_on(self):
    groups = make_groups(num_lines=2)
    builder = small.make_batch_builder(
      advantage=unnormalised(), roles=("write",)
    )
    batches, report = builder.build(groups, params=None)
    wanted = sum(
      len(turn.sampled)
      for t in all_of(groups)
      for line in t.lines
      if line.role == "write"
      for turn in line.turns
    )
    self.assertEqual(report["batch/trained_tokens"], wanted)
    roles = {
      line.role for part in builder.learned_turns._packed for line in part.lines
    }
    self.assertEqual(roles, {"write"})
    self.assertNotEmpty(batches)

  def test_a_role_that_nobody_has_is_refused_by_name(self):
    builder = small.make_batch_builder(roles=("writer",))
    with self.assertRaisesRegex(ConfigError, "train.roles=.*'plan', 'write'"):
      builder.build(make_groups(num_lines=2), params=None)

  def test_a_batch_without_a_role_that_was_there_is_none(self):
    builder = small.make_batch_builder(roles=("write",))
    builder.build(make_groups(num_lines=2), params=None)
    batches, _ = builder.build(make_groups(num_lines=1), params=None)
    self.assertEqual(batches, [])

  def test_roles_as_a_string_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "roles='write' must be a tuple"):
      small.batch_config(roles="write")

  def test_untrained_roles_have_no_log_probability(self):
    groups = make_groups(num_lines=2)
    builder = small.make_batch_builder(
      advantage=unnormalised(), roles=("write",), micro_batch=1
    )
    batches, _ = builder.build(groups, params=None)
    learned = builder.learned_turns
    for number, x in enumerate(batches):
      learned.add(number, {POLICY_LOGPROB: x.batch.behavior_logprob})
    seen = set()
    for trajectory in all_of(groups):
      turns = learned.of(trajectory)
      for turn, of in zip(trajectory.turns, turns or (), strict=bool(turns)):
        self.assertLen(of.logprob, len(turn.sampled))
        is_trained = trajectory.role_of(turn.line) == "write"
        self.assertEqual(bool(np.isfinite(of.logprob).all()), is_trained)
        seen.add(is_trained)
    self.assertEqual(seen, {True, False})


class CriticTest(parameterized.TestCase):
  def test_each_line_ends_with_the_episode_s_reward(self):
    groups = make_groups(num_lines=2)
    model = dataclasses.replace(small.MODEL, value_head=True)
    builder = small.make_batch_builder(
      model=model,
      loss=small.loss_config(value_coefficient=0.5),
      advantage=unnormalised(estimator="gae", gae_lambda=1.0),
    )
    batches, _ = builder.build(groups, small.params_of(model))
    packed = builder.learned_turns._packed
    for x in batches:
      mask_BT = np.asarray(x.batch.mask)
      for n, target in zip(
        np.asarray(x.batch.trajectory)[mask_BT],
        np.asarray(x.value_target)[mask_BT],
        strict=True,
      ):
        self.assertAlmostEqual(float(target), packed[n].reward, places=5)

  def test_critic_with_a_comparison_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "advantage.compare"):
      small.advantage_config(estimator="gae", compare="lines")


class OriginalsTest(parameterized.TestCase):
  """Defects of public code, which are not repeated here."""

  def test_statistics_over_lines_are_those_of_agent_lightning(self):
    """Its first releases took them over all calls of a group (v0.x)."""
    groups = make_groups(num_lines=3, num_groups=1)
    reward_L = np.array(
      [t.reward for t in all_of(groups) for _ in t.lines], np.float64
    )
    wanted_L = (reward_L - reward_L.mean()) / (reward_L.std(ddof=1) + 1e-6)
    builder = small.make_batch_builder(advantage=unnormalised(compare="lines"))
    found = advantages_of(builder, groups)
    per_episode = dict(zip(found, found.values(), strict=True))
    start = 0
    for t in all_of(groups):
      (actual,) = per_episode[t.group_id, t.attempt]
      self.assertAlmostEqual(actual, wanted_L[start], places=5)
      start += len(t.lines)
