"""What attempts and metrics say about policy slots is counted, and fades."""

import dataclasses
import itertools
import json

import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.controller import policy_slot_evidence
from agentrl_jax.controller.policy_slot_evidence import credit_of
from agentrl_jax.data.trajectory import Group, Status, Task, Trajectory, Turn
from agentrl_jax.errors import CheckpointError

TASKS = {"a": 0, "b": 1}


def a_turn(policy_slot, *, version=0, tokens=2):
  ids = np.zeros(tokens, np.int32)
  real = np.zeros(tokens, np.float32)
  return Turn(
    ids, ids, real, real, ids + np.int32(version), policy_slot=policy_slot
  )


def a_group(*members, task="a"):
  """Of (reward, policy slots of its turns) each."""
  played = tuple(
    Trajectory(
      Task(task, "train", 0),
      "g",
      n,
      n,
      tuple(turn if isinstance(turn, Turn) else a_turn(turn) for turn in turns),
      Status.COMPLETED,
      float(reward),
    )
    for n, (reward, turns) in enumerate(members)
  )
  return Group("g", played[0].task, played)


def count(groups, *, per_turn=True, exploration=0.0):
  return policy_slot_evidence.count_attempts(
    groups, TASKS, 2, per_turn=per_turn, exploration=exploration
  )


def metrics(policy_slot=1, task="a", *, share=0.5, kl=0.1, sample_size=0.8):
  where = f"policy_slot{policy_slot}/{task}"
  return {
    f"policy/share_of_tokens/{where}": share,
    f"policy/kl_to_behavior/{where}": kl,
    f"policy/effective_sample_size/{where}": sample_size,
  }


class CreditTest(parameterized.TestCase):
  @parameterized.parameters(
    ([1, 0, 0], 0.0, [1, -0.5, -0.5]),
    ([1, 1, 0], 0.0, [0.5, 0.5, -1]),
    ([1, 0, 0], 1.0, [1, 0, 0]),
    ([1, 1, 0], 1.0, [0, 0, 0]),
    ([0, 0], 0.5, [0, 0]),
    ([1, 1], 0.5, [0, 0]),
    ([1, 0], 0.5, [1, -0.5]),
    ([1], 0.5, [1]),
    ([0], 0.5, [0]),
  )
  def test_of_groups(self, success, exploration, expected):
    np.testing.assert_allclose(
      credit_of(np.array(success), exploration), expected
    )

  @parameterized.parameters(0.0, 0.3, 1.0)
  def test_is_the_gradient_of_what_the_group_achieves(self, exploration):
    """Against the derivative of the sum over everything that can happen."""
    win_Z = np.array([0.3, 0.6])  # success of an attempt that z plays
    size = 3

    def achieved(weight):
      w_Z = np.array([1 - weight, weight])
      p = w_Z @ win_Z
      best = 1 - (1 - p) ** size
      return (1 - exploration) * p + exploration * best / size

    weight, step = 0.4, 1e-6
    gradient = (achieved(weight + step) - achieved(weight - step)) / (2 * step)
    w_Z = np.array([1 - weight, weight])
    score_Z = np.array([-1 / (1 - weight), 1 / weight])  # d log w_z / d weight
    expected = 0.0
    for policy_slots in itertools.product((0, 1), repeat=size):
      for wins in itertools.product((0, 1), repeat=size):
        chance = np.prod(
          [
            w_Z[z] * (win_Z[z] if win else 1 - win_Z[z])
            for z, win in zip(policy_slots, wins, strict=True)
          ]
        )
        credit_G = credit_of(np.array(wins), exploration)
        expected += chance * (credit_G * score_Z[list(policy_slots)]).mean()
    self.assertAlmostEqual(expected, gradient, places=6)


class CountTest(absltest.TestCase):
  def test_a_draw_is_a_turn(self):
    groups = [
      a_group((1, [0, 0, 1]), (0, [1])),
      a_group((1, [0]), (1, [0]), task="b"),
    ]
    found = count(groups)
    np.testing.assert_array_equal(found.draws, [[2, 2], [2, 0]])
    np.testing.assert_array_equal(found.successes, [[2, 1], [2, 0]])
    np.testing.assert_array_equal(found.credit, [[2, 0], [0, 0]])
    np.testing.assert_array_equal(found.tokens, [[4, 4], [4, 0]])

  def test_a_draw_is_an_attempt(self):
    found = count([a_group((1, [1, 1, 1]), (0, [0]))], per_turn=False)
    np.testing.assert_array_equal(found.draws[0], [1, 1])
    np.testing.assert_array_equal(found.credit[0], [-1, 1])
    np.testing.assert_array_equal(found.tokens[0], [2, 6])

  def test_an_attempt_without_turns_tells_nothing(self):
    self.assertEqual(count([a_group((0, []))], per_turn=False).draws.sum(), 0)

  def test_the_version_of_most_tokens(self):
    old, new = a_turn(1, version=3, tokens=2), a_turn(1, version=5, tokens=4)
    found = policy_slot_evidence.versions_of([a_group((0, [old, new, old]))], 3)
    np.testing.assert_array_equal(found, [-1, 5, -1])


class DriftTest(absltest.TestCase):
  def test_weighs_by_draws_and_leaves_out_what_was_not_trained(self):
    draws = np.array([[3.0, 5.0], [1.0, 1.0]])
    told = metrics() | metrics(0, "b", share=0.0, kl=9.0, sample_size=0.0)
    found = policy_slot_evidence.measure_drift(told, TASKS, draws)
    np.testing.assert_array_equal(found.draws, [[0, 5], [0, 0]])
    np.testing.assert_allclose(found.kl, [[0, 0.5], [0, 0]])
    np.testing.assert_allclose(found.inverse, [[0, 6.25], [0, 0]])

  def test_an_update_that_was_not_made_tells_nothing(self):
    found = policy_slot_evidence.measure_drift({}, TASKS, np.ones((2, 2)))
    self.assertEqual(found.draws.sum(), 0)


class EvidenceTest(absltest.TestCase):
  def _added(self, evidence, *, version=0, memory=0.5):
    group = a_group((1, [1]), (0, [a_turn(1, version=version, tokens=9)]))
    found = count([group])
    return policy_slot_evidence.add_batch(
      evidence,
      found,
      policy_slot_evidence.measure_drift(metrics(), TASKS, found.draws),
      policy_slot_evidence.versions_of([group], 2),
      memory=memory,
    )

  def test_fades(self):
    evidence = policy_slot_evidence.no_evidence(2, 2)
    for draws in (2, 3, 3.5):
      evidence = self._added(evidence)
      self.assertEqual(evidence.attempts.draws[0, 1], draws)
      self.assertEqual(evidence.drift.draws[0, 1], draws)

  def test_another_version_drifts_from_anew(self):
    evidence = self._added(policy_slot_evidence.no_evidence(2, 2), version=1)
    evidence = self._added(evidence, version=4)
    self.assertEqual(evidence.drift.draws[0, 1], 2)
    self.assertEqual(evidence.attempts.draws[0, 1], 3)
    np.testing.assert_array_equal(evidence.version, [-1, 4])

  def test_comes_back_from_json_to_the_bit(self):
    evidence = self._added(policy_slot_evidence.no_evidence(2, 2), memory=0.3)
    evidence = self._added(evidence, memory=1 / 3)
    again = policy_slot_evidence.evidence_from_json(
      json.loads(json.dumps(evidence.to_json())),
      policy_slot_evidence.no_evidence(2, 2),
    )
    self.assertEqual(again.to_json(), evidence.to_json())
    np.testing.assert_array_equal(again.drift.inverse, evidence.drift.inverse)

  def test_refuses_what_is_of_another_run(self):
    body = policy_slot_evidence.no_evidence(2, 3).to_json()
    with self.assertRaisesRegex(CheckpointError, r"\(2, 3\).*\(2, 2\)"):
      policy_slot_evidence.evidence_from_json(
        body, policy_slot_evidence.no_evidence(2, 2)
      )
    with self.assertRaisesRegex(CheckpointError, "cannot be read"):
      policy_slot_evidence.evidence_from_json(
        {}, policy_slot_evidence.no_evidence(2, 2)
      )

  def test_every_field_of_a_batch_fades(self):
    names = {f.name for f in dataclasses.fields(policy_slot_evidence.Attempts)}
    self.assertEqual(names, {"draws", "credit", "successes", "tokens"})


if __name__ == "__main__":
  absltest.main()
