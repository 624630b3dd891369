"""Records say what may be trained on, and refuse what does not fit."""

import dataclasses
import decimal
import fractions

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.data.records import (
  Group,
  Message,
  Status,
  Task,
  ToolCall,
  Trajectory,
  Turn,
  message_from_json,
  message_to_json,
)
from agentrl_jax.data.split import split_of
from agentrl_jax.env.interface import Step
from agentrl_jax.errors import EnvironmentFault
from tests.data.records import make_trajectory, make_turn

RECORDS = {
  "step": Step(()),
  "trajectory": make_trajectory(np.random.default_rng(0)),
}
NUMBERS = {
  "int": 1,
  "bool": True,
  "float64": np.float64(1),
  "float32": np.float32(1),
  "int64": np.int64(1),
  "numpy's bool": np.bool_(True),
  "array": np.array(1.0),
  "array of jax": jnp.array(1.0),
  "bfloat16": jnp.bfloat16(1),
  "fraction": fractions.Fraction(3, 3),
  "decimal": decimal.Decimal("1.0"),
}
NOT_NUMBERS = {
  "nan": float("nan"),
  "inf": float("inf"),
  "beyond float32": -1e39,
  "nan of numpy": np.float32("nan"),
  "inf of jax": jnp.array(jnp.inf),
  "nan of decimal": decimal.Decimal("sNaN"),
  "huge int": 10**400,
  "int too long to print": 10**5000,
  "huge fraction": fractions.Fraction(10**400, 3),
  "complex": 1j,
  "text": "1.0",
  "text of numpy": np.array("1.0"),
  "bytes": b"1",
  "none": None,
  "array of one": np.ones(1),
  "list": [1.0],
}


class ScoredTest(parameterized.TestCase):
  """Rewards and metrics are finite floats, whichever record has them."""

  @parameterized.product(kind=tuple(RECORDS), given=tuple(NUMBERS))
  def test_numbers_become_floats(self, kind, given):
    number = NUMBERS[given]
    record = dataclasses.replace(
      RECORDS[kind], reward=number, metrics={"success": number}
    )
    self.assertEqual(
      [(type(x), x) for x in (record.reward, *record.metrics.values())],
      [(float, 1.0)] * 2,
    )

  @parameterized.product(kind=tuple(RECORDS), given=tuple(NOT_NUMBERS))
  def test_others_are_faults(self, kind, given):
    for name, field in (
      ("reward", NOT_NUMBERS[given]),
      (r"metrics\['x'\]", {"x": NOT_NUMBERS[given]}),
    ):
      with self.assertRaisesRegex(EnvironmentFault, f"^{name}=.*no number"):
        dataclasses.replace(RECORDS[kind], **{name.partition("\\")[0]: field})

  def test_rewards_of_turns_and_roles_are_checked_too(self):
    trajectory = RECORDS["trajectory"]
    with self.assertRaisesRegex(EnvironmentFault, r"role_rewards\['plan'\]"):
      dataclasses.replace(trajectory, role_rewards={"plan": np.nan})
    with self.assertRaisesRegex(EnvironmentFault, "reward=6"):
      dataclasses.replace(trajectory.turns[0], reward=3e38 - -3e38)

  def test_metrics_without_names_are_a_fault(self):
    with self.assertRaisesRegex(EnvironmentFault, "metrics=None is no mapping"):
      Step((), metrics=None)

  def test_a_status_is_one_of_ours(self):
    self.assertIs(Step((), status="completed").status, Status.COMPLETED)
    with self.assertRaisesRegex(EnvironmentFault, "status='won' is not one"):
      Step((), status="won")


class TrajectoryTest(absltest.TestCase):
  def test_whose_doing(self):
    ours = {s for s in Status if not s.is_policys_doing}
    self.assertEqual(
      ours,
      {Status.RUNNING, Status.TASK_ERROR, Status.CANCELLED, Status.UNKNOWN},
    )

  def test_full_reward_is_success_unless_the_environment_says(self):
    trajectory = make_trajectory(np.random.default_rng(0))
    for reward, metrics, expected in (
      (1.0, {}, True),
      (0.9, {}, False),
      (0.9, {"success": 1.0}, True),
      (1.0, {"success": 0.0}, False),
    ):
      changed = dataclasses.replace(trajectory, reward=reward, metrics=metrics)
      with self.subTest(reward=reward, metrics=metrics):
        self.assertEqual(changed.is_success, expected)

  def test_counts(self):
    trajectory = make_trajectory(np.random.default_rng(0), turns=3)
    sampled = [len(t.sampled) for t in trajectory.turns]
    self.assertEqual(trajectory.num_sampled, sum(sampled))
    self.assertEqual(
      trajectory.num_tokens,
      sum(sampled) + sum(len(t.observation) for t in trajectory.turns),
    )

  def test_staleness_is_that_of_policy_slot_0(self):
    rng = np.random.default_rng(0)
    turns = [
      dataclasses.replace(
        make_turn(rng, observed=1, sampled=2, version=version),
        policy_slot=policy_slot,
      )
      for version, policy_slot in ((9, 0), (2, 1), (7, 0))
    ]
    task = Task("a", "train", 0)

    def group(*turns):
      member = Trajectory(task, "g", 0, 0, turns, Status.COMPLETED, 1.0)
      return Group("g", task, (member,))

    self.assertEqual(group(*turns).oldest_version, 7)
    self.assertEqual(group(turns[1]).oldest_version, 2)
    self.assertEqual(group().oldest_version, -1)

  def test_turn_needs_one_entry_per_token(self):
    turn = make_turn(np.random.default_rng(0), observed=2, sampled=3)
    with self.assertRaisesRegex(ValueError, "one entry per sampled token"):
      Turn(
        turn.observation,
        turn.sampled,
        turn.behavior_logprob[:2],
        turn.raw_logprob,
        turn.version,
      )


class MessageTest(absltest.TestCase):
  def test_round_trip(self):
    for message in (
      Message("assistant", "x", (ToolCall("f", "{}", "1"),)),
      Message("tool", "y", tool_call_id="1"),
      Message("user", "z"),
    ):
      self.assertEqual(message_from_json(message_to_json(message)), message)

  def test_parts_and_null(self):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    self.assertEqual(
      message_from_json({"role": "user", "content": parts}).content, "ab"
    )
    self.assertEqual(
      message_from_json({"role": "assistant", "content": None}).content, ""
    )
    for content in (5, True, {"text": "a"}, 0.5):
      with self.assertRaisesRegex(TypeError, "content must be a text"):
        message_from_json({"role": "user", "content": content})

  def test_unknown_role(self):
    with self.assertRaisesRegex(ValueError, "not one of system"):
      Message("robot")


class SplitTest(absltest.TestCase):
  def test_halves_the_texts_for_ever(self):
    sides = [split_of(f"text {n}") for n in range(2000)]
    self.assertBetween(sides.count("test"), 900, 1100)
    self.assertEqual(split_of("a fixed text"), "test")
