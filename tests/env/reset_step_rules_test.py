"""What a wrapped object's steps come to, and what they pay."""

import types
import unittest

from agentrl_jax.env.reset_step import ResetStep
from agentrl_jax.env.reset_step_rules import Rules, read_outcome
from agentrl_jax.errors import ConfigError


class Nothing(ResetStep):
  name = "nothing"
  tools = ()

  def make(self, seed):
    return None


class RulesTest(unittest.TestCase):
  def test_what_rewards_are_worth(self):
    rewards = (1.0, -3.0, 0.5)
    for rules, value in (
      (Rules(), -1.5),
      (Rules(returns="last"), 0.5),
      (Rules(reward_range=(-2, 2)), 0.125),
      (Rules(reward_range=(0, 2)), 0.0),
      (Rules(reward_range=(-3, -2)), 1.0),
    ):
      with self.subTest(rules=rules):
        self.assertEqual(rules.value(rewards), value)

  def test_doing_nothing_is_worth_nothing(self):
    self.assertEqual(Rules(reward_range=(-10, 0)).value(()), 0.0)

  def test_bad_settings_are_refused(self):
    for options in (
      {"num_tasks": 0},
      {"max_rounds": 0},
      {"step_limit_s": 0},
      {"returns": "mean"},
      {"split_by": "luck"},
      {"reward_range": (1.0, 1.0)},
      {"no_such_rule": 1},
    ):
      with self.subTest(options=options), self.assertRaises(ConfigError):
        Nothing(**options)

  def test_outcomes_of_every_habit(self):
    for result, expected in (
      (("o", 1, True, False, {}), (1.0, True, False)),
      (("o", 1, False, True, {}), (1.0, False, True)),
      (("o", 1, True, {}), (1.0, True, False)),
      (("o", 1, True, {"TimeLimit.truncated": True}), (1.0, False, True)),
      (("o", 1, False), (1.0, False, False)),
      (_result(reward=1, done=True), (1.0, True, False)),
      (_result(reward=None, done=False), (0.0, False, False)),
    ):
      outcome = read_outcome(result)
      with self.subTest(result=str(result)):
        self.assertEqual(outcome.observation, "o")
        self.assertEqual(
          (outcome.reward, outcome.terminated, outcome.truncated), expected
        )

  def test_what_cannot_be_read_says_what_to_do(self):
    for result in (None, "text", ("o", 1), 7):
      with (
        self.subTest(result=result),
        self.assertRaisesRegex(TypeError, "override `outcome`"),
      ):
        read_outcome(result)


def _result(**fields):
  return types.SimpleNamespace(observation="o", **fields)


if __name__ == "__main__":
  unittest.main()
