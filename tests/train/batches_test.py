"""Groups become lessons: what each token is worth, and where it stands."""

import dataclasses

import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.data.trajectory import Status
from agentrl_jax.train import batches
from tests.data.records import make_group
from tests.train import small


def _by_hand(groups, config):
  """AgentRL's two normalisations, in float64, one token at a time."""
  shaped = [
    [
      t.reward if t.status is Status.COMPLETED else config.incomplete_reward
      for t in group.trajectories
    ]
    for group in groups
  ]
  within = [
    [(r - np.mean(rs)) / (np.std(rs, ddof=1) + config.epsilon) for r in rs]
    if len(set(rs)) > 1
    else [0.0] * len(rs)
    for rs in shaped
  ]
  result = []
  for group, advantages in zip(groups, within, strict=True):
    tokens = [
      a
      for other, values in zip(groups, within, strict=True)
      if other.task.name == group.task.name
      for t, a in zip(other.trajectories, values, strict=True)
      for _ in range(t.num_sampled)
    ]
    mean, std = np.mean(tokens), np.std(tokens, ddof=1)
    result += [(a - mean) / (std + config.epsilon) for a in advantages]
  return result


class AdvantagesTest(parameterized.TestCase):
  def test_match_the_paper(self):
    groups = small.make_groups()
    np.testing.assert_allclose(
      batches.advantages(groups, small.TASK_IDS, small.ADVANTAGE),
      _by_hand(groups, small.ADVANTAGE),
      atol=1e-5,
    )

  def test_a_lone_task_is_normalised_as_if_alone(self):
    groups = small.make_groups()
    mine = [g for g in groups if g.task.name == "a"]
    together = batches.advantages(groups, small.TASK_IDS, small.ADVANTAGE)
    of_a = [t.task.name == "a" for group in groups for t in group.trajectories]
    np.testing.assert_allclose(
      together[of_a],
      batches.advantages(mine, small.TASK_IDS, small.ADVANTAGE),
      atol=1e-6,
    )

  def test_groups_without_signal_can_be_left_out(self):
    rng = np.random.default_rng(0)
    flat = make_group(rng, id="flat", reward=0.5)
    rest = small.make_groups()
    config = dataclasses.replace(small.ADVANTAGE, drop_no_signal=True)
    found = batches.advantages([flat, *rest], small.TASK_IDS, config)
    np.testing.assert_array_equal(found[:4], 0)
    # The one whose attempts were all cut off by a limit is flat as well.
    without = [g for g in rest if g.id != "3"]
    kept = np.concatenate([found[4:16], found[20:]])
    np.testing.assert_allclose(
      kept,
      batches.advantages(without, small.TASK_IDS, config),
      atol=1e-6,
    )
    centred = batches.advantages([flat, *rest], small.TASK_IDS, small.ADVANTAGE)
    self.assertGreater(np.abs(centred[:4]).min(), 0)

  def test_incomplete_scores_less_whatever_it_earned(self):
    (trajectory,) = make_group(
      np.random.default_rng(0), size=1, status=Status.AGENT_INVALID_ACTION
    ).trajectories
    self.assertEqual(batches.shaped_reward(trajectory, -0.2), -0.2)


class LessonsTest(absltest.TestCase):
  def test_every_trained_token_carries_its_trajectorys_advantage(self):
    groups = small.make_groups()
    lessons, report = batches.reinforcement_lessons(
      groups,
      task_ids=small.TASK_IDS,
      advantage=small.ADVANTAGE,
      batch=small.batch_config(micro_batch=2),
    )
    wanted = batches.advantages(groups, small.TASK_IDS, small.ADVANTAGE)
    trajectories = [t for g in groups for t in g.trajectories]
    found = [
      (token, advantage)
      for lesson in lessons
      for token, advantage in zip(
        lesson.batch.token[lesson.batch.mask],
        lesson.advantage[lesson.batch.mask],
        strict=True,
      )
    ]
    expected = [
      (token, np.float32(advantage))
      for t, advantage in zip(trajectories, wanted, strict=True)
      for turn in t.turns
      for token in turn.sampled
    ]
    self.assertCountEqual(found, expected)
    self.assertEqual(report["batch/trained_tokens"], len(expected))
    for lesson in lessons:
      self.assertEqual(lesson.batch.token.shape, (2, 48))
      self.assertEqual(np.abs(lesson.advantage[~lesson.batch.mask]).max(), 0)

  def test_nothing_but_flat_groups(self):
    flat = [make_group(np.random.default_rng(0), reward=1.0)]
    lessons, report = batches.reinforcement_lessons(
      flat,
      task_ids=small.TASK_IDS,
      advantage=small.ADVANTAGE,
      batch=small.batch_config(),
    )
    self.assertEqual(lessons, [])
    self.assertEqual(report["batch/trajectories_with_signal"], 0)


if __name__ == "__main__":
  absltest.main()
