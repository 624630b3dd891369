"""Tests of `train.batch_builder`: fields of tokens, critics, statistics."""

import collections
import dataclasses
import json

import jax
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax import losses
from agentrl_jax.data.batch import Batch
from agentrl_jax.data.packing import pack
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.advantages import advantages, make_arrays
from agentrl_jax.train.critic import place_rewards
from agentrl_jax.train.token_logprobs import token_logprobs
from tests.data.records import make_group
from tests.reference.advantages import returns as reference_gae
from tests.settings import COMPUTE
from tests.train import small

WITH_CRITIC = dataclasses.replace(small.MODEL, value_head=True)


def _tokens(batches, name):
  """Pairs each trained token with its value of a field."""
  return [
    (token, value)
    for micro_batch in batches
    for token, value in zip(
      micro_batch.batch.token[micro_batch.batch.mask],
      np.asarray(getattr(micro_batch, name))[micro_batch.batch.mask],
      strict=True,
    )
  ]


class BuildTest(parameterized.TestCase):
  def test_every_trained_token_carries_its_turn_s_advantage(self):
    groups = small.make_groups()
    config = small.advantage_config(estimator="turn_return", discount=0.5)
    builder = small.make_batch_builder(advantage=config, micro_batch=2)
    batches, report = builder.build(groups, params=None)
    attempts = make_arrays(groups, small.TASK_IDS, config)
    value_NU, *_ = advantages(attempts, num_tasks=2, config=config)
    trajectories = [t for g in groups for t in g.trajectories]
    expected = [
      (token, value)
      for t, value_U in zip(trajectories, np.asarray(value_NU), strict=False)
      for turn, value in zip(t.turns, value_U, strict=False)
      for token in turn.sampled
    ]
    self.assertCountEqual(_tokens(batches, "advantage"), expected)
    self.assertEqual(report["batch/trained_tokens"], len(expected))
    for micro_batch in batches:
      self.assertEqual(micro_batch.batch.token.shape, (2, 48))
      self.assertEqual(
        np.abs(micro_batch.advantage[~micro_batch.batch.mask]).max(), 0
      )
      self.assertIsNone(micro_batch.reference_logprob)

  def test_groups_without_signal_make_no_batch(self):
    flat = [make_group(np.random.default_rng(0), reward=1.0)]
    builder = small.make_batch_builder(
      advantage=small.advantage_config(keep="signal")
    )
    batches, report = builder.build(flat, params=None)
    self.assertEqual(batches, [])
    self.assertEqual(report["batch/trajectories_with_signal"], 0)

  @pytest.mark.slow
  def test_equal_shares_make_the_mean_over_tasks(self):
    builder = small.make_batch_builder(
      loss=small.loss_config(task_share="equal")
    )
    groups = small.make_groups()
    batches, report = builder.build(groups, params=None)
    self.assertEqual(report["batch/trajectories_with_signal"], 24)
    tasks = [t.task.name for group in groups for t in group.trajectories]
    sums, counts = collections.Counter(), collections.Counter()
    for micro_batch in batches:
      for at in zip(*np.nonzero(micro_batch.batch.mask), strict=True):
        task = tasks[micro_batch.batch.trajectory[at]]
        sums[task] += float(micro_batch.weight[at])
        counts[task] += 1
    self.assertNotEqual(counts["a"], counts["b"])
    for task in "ab":
      self.assertAlmostEqual(sums[task], counts.total() / 2, places=3)

  @pytest.mark.slow
  def test_other_policies_log_probabilities(self):
    loss = small.loss_config(kl_coefficient=0.1, proximal="recomputed")
    reference, params = small.params_of(seed=1), small.params_of()
    builder = small.make_batch_builder(loss=loss, reference=reference)
    batches, _ = builder.build(small.make_groups(), params)
    for name, of in (("reference", reference), ("proximal", params)):
      wanted, _ = token_logprobs(
        Policy(small.MODEL, COMPUTE),
        of,
        batches[0].batch,
        temperature=0.9,
        chunk_size=8,
      )
      np.testing.assert_allclose(
        getattr(batches[0], f"{name}_logprob"), wanted, atol=1e-5
      )

  @pytest.mark.slow
  def test_divergence_as_part_of_the_reward(self):
    loss = small.loss_config(
      kl_coefficient=0.5, kl_place="reward", kl_estimator="k1"
    )
    advantage = small.advantage_config(
      task_center=False, task_scale=False, scale_by_std=False
    )
    reference = small.params_of(seed=1)
    builder = small.make_batch_builder(
      loss=loss, advantage=advantage, reference=reference
    )
    groups = small.make_groups(num_groups=1)
    batches, _ = builder.build(groups, small.params_of())
    self.assertIsNone(batches[0].reference_logprob)
    trajectories = groups[0].trajectories
    rows = pack(trajectories, row_length=48, rows_multiple=4)
    logprob, _ = token_logprobs(
      Policy(small.MODEL, COMPUTE),
      reference,
      Batch(**vars(rows)),
      temperature=0.9,
      chunk_size=8,
    )
    cost = np.where(rows.mask, rows.behavior_logprob - logprob, 0)
    rewards = np.array(
      [
        t.reward - 0.5 * cost[rows.mask & (rows.trajectory == n)].sum()
        for n, t in enumerate(trajectories)
      ]
    )
    wanted = sorted(rewards - rewards.mean())
    found = sorted({float(a) for _, a in _tokens(batches, "advantage")})
    np.testing.assert_allclose(found, wanted, atol=1e-4)

  def test_kl_without_a_reference_is_refused(self):
    with self.assertRaisesRegex(ValueError, "kl_coefficient=0.1 pulls towards"):
      small.make_batch_builder(loss=small.loss_config(kl_coefficient=0.1))

  def test_running_statistics_survive_a_restart(self):
    config = small.advantage_config(task_decay=0.9)
    first = small.make_batch_builder(advantage=config)
    first.build(small.make_groups(seed=0), params=None)
    second = small.make_batch_builder(advantage=config)
    second.moments.restore(json.loads(json.dumps(first.moments.snapshot())))
    groups = small.make_groups(seed=1)
    wanted, _ = first.build(groups, params=None)
    found, _ = second.build(groups, params=None)
    np.testing.assert_array_equal(found[0].advantage, wanted[0].advantage)
    afresh, _ = small.make_batch_builder(advantage=config).build(
      groups, params=None
    )
    gap = np.abs(afresh[0].advantage - wanted[0].advantage).max()
    self.assertGreater(gap, 1e-3)


class CriticTest(parameterized.TestCase):
  def _batches(self, **changes):
    advantage = small.advantage_config(
      task_center=False, task_scale=False, **changes
    )
    builder = small.make_batch_builder(
      model=WITH_CRITIC,
      loss=small.loss_config(value_coefficient=0.5),
      advantage=advantage,
    )
    return builder.build(small.make_groups(), small.params_of(WITH_CRITIC))

  @parameterized.parameters("gae", "turn_gae", "bi_level_gae")
  def test_return_is_advantage_and_value(self, estimator):
    batches, _ = self._batches(estimator=estimator, gae_lambda=0.9)
    for micro_batch in batches:
      fitted = np.asarray(micro_batch.value_mask)
      self.assertTrue((micro_batch.batch.mask >= fitted).all())
      np.testing.assert_allclose(
        micro_batch.value_target[fitted],
        (micro_batch.advantage + micro_batch.old_value)[fitted],
        atol=1e-5,
      )
      self.assertGreater(np.abs(micro_batch.old_value[fitted]).max(), 0.1)
      if estimator == "turn_gae":
        self.assertLess(fitted.sum(), micro_batch.batch.mask.sum())
      else:
        np.testing.assert_array_equal(fitted, micro_batch.batch.mask)

  @pytest.mark.slow
  def test_gae_is_that_of_the_rows(self):
    batches, report = self._batches(
      estimator="gae", gae_lambda=0.9, discount=0.8
    )
    groups = small.make_groups()
    trajectories = [t for g in groups for t in g.trajectories]
    rows = pack(trajectories, row_length=48, rows_multiple=4)
    reward_NU = [
      [0.0, t.reward if t.group_id != "3" else -0.2] for t in trajectories
    ]
    value = np.concatenate([x.old_value for x in batches])
    wanted, _ = reference_gae.gae(
      place_rewards(rows, np.array(reward_NU)),
      value,
      rows.mask,
      discount=0.8,
      gae_lambda=0.9,
      segment_BT=rows.segment,
    )
    found = np.concatenate([x.advantage for x in batches])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    self.assertEqual(report["batch/trajectories"], 24)

  def test_rewards_stand_at_the_last_sampled_token_of_their_turn(self):
    groups = small.make_groups(num_groups=2)
    trajectories = [t for g in groups for t in g.trajectories]
    rows = pack(trajectories, row_length=48)
    placed = place_rewards(rows, np.tile([1.0, 2.0], (len(trajectories), 1)))
    np.testing.assert_array_equal(placed[~rows.mask], 0)
    for n, t in enumerate(trajectories):
      here = rows.mask & (rows.trajectory == n)
      expected = np.concatenate(
        [
          np.eye(1, len(turn.sampled), len(turn.sampled) - 1)[0] * (u + 1)
          for u, turn in enumerate(t.turns)
        ]
      )
      np.testing.assert_array_equal(placed[here], expected)

  @pytest.mark.slow
  def test_critic_learns_the_expected_reward(self):
    loss = small.loss_config(value_coefficient=1.0, value_clip=0.5)
    builder = small.make_batch_builder(
      model=WITH_CRITIC,
      loss=loss,
      advantage=small.advantage_config(estimator="gae", gae_lambda=1.0),
    )
    policy, learner = small.make_learner(model=WITH_CRITIC, loss=loss)
    state = learner.init(policy.init(jax.random.key(0)))
    groups = [
      make_group(np.random.default_rng(n), reward=0.8) for n in range(3)
    ]
    values = []
    for _ in range(12):
      batches, _ = builder.build(groups, state.params)
      mask = batches[0].batch.mask
      values.append(float(batches[0].old_value[mask].mean()))
      state, metrics = learner.update(state, batches)
    self.assertEqual(values[0], 0)
    self.assertAlmostEqual(values[-1], 0.8, delta=0.2)
    self.assertLess(metrics["critic/loss"], 0.05)
    self.assertLessEqual(metrics["critic/explained_variance"], 1)

  @pytest.mark.slow
  def test_whitened_over_the_batch(self):
    builder = small.make_batch_builder(
      model=WITH_CRITIC,
      loss=small.loss_config(value_coefficient=0.5),
      advantage=small.advantage_config(
        estimator="gae", whiten=True, task_center=False, task_scale=False
      ),
    )
    batches, _ = builder.build(
      small.make_groups(), small.params_of(WITH_CRITIC)
    )
    mask = np.concatenate([x.batch.mask for x in batches])
    found = np.concatenate([x.advantage for x in batches])
    np.testing.assert_allclose(found, losses.whiten(found, mask), atol=1e-5)
    self.assertGreater(np.abs(found).max(), 0.1)
