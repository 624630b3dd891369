"""Tests of `train.weights.policy_slot_schedule`: versions, and bad lines."""

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.train.weights.policy_slot_schedule import read_schedules


def _schedule(line):
  return read_schedules(("fresh", line))[1]


class PolicySlotScheduleTest(parameterized.TestCase):
  @parameterized.parameters(
    ("every 3", [0, 0, 0, 3, 3, 3, 6, 6]),
    ("every 3 lag 3", [0, 0, 0, 0, 0, 0, 3, 3]),
    ("every 2 lag 3", [0, 0, 0, 0, 0, 2, 2, 4]),
    ("steps 0", [0] * 8),
    ("steps 2,3,6", [0, 0, 2, 3, 3, 3, 6, 6]),
    ("steps 2, 5 of runs/other/rl", [2, 2, 2, 2, 2, 5, 5, 5]),
  )
  def test_serves(self, line, expected):
    schedule = _schedule(line)
    self.assertEqual([schedule.step(v) for v in range(8)], expected)

  def test_fresh_is_every_version(self):
    (fresh,) = read_schedules(("fresh",))
    self.assertEqual([fresh.step(v) for v in range(4)], [0, 1, 2, 3])

  @parameterized.product(
    every=(1, 2, 3, 5, 7), lag=(0, 1, 4, 7), stride=(1, 2, 3, 5)
  )
  def test_serves_the_newest_version_that_is_old_enough(
    self, every, lag, stride
  ):
    schedule = _schedule(f"every {every} lag {lag}")
    versions = range(0, 60, stride)
    # The learner's first version at or after each multiple.
    candidates = {
      min(v for v in versions if v >= m) for m in range(0, 50, every)
    }
    for version in versions[: 40 // stride]:
      old = [c for c in candidates if c <= max(version - lag, 0)]
      step = schedule.step(version, stride=stride)
      self.assertEqual(step, max(old), version)
      self.assertEqual(
        schedule.awaited(version, stride=stride),
        {c for c in candidates if step < c <= version},
        version,
      )

  def test_what_is_served_later_was_awaited_ever_since_it_was_made(self):
    schedule = _schedule("every 4 lag 10")
    for version in range(40):
      step = schedule.step(version)
      for earlier in range(step, version):
        kept = schedule.awaited(earlier) | {schedule.step(earlier)}
        self.assertIn(step, kept, (version, earlier))

  @parameterized.parameters(
    ((), "policy slot 0 follows the learner"),
    (("every 5",), "policy slot 0 follows the learner"),
    (("fresh", "fresh"), "raise engine.slots"),
    (("fresh", "every 0"), r"policy_slots\[1\]='every 0' is no schedule"),
    (("fresh", "every -5"), "is no schedule"),
    (("fresh", "every 5 lag"), "is no schedule"),
    (("fresh", "steps"), "is no schedule"),
    (("fresh", "steps 5,2"), "that grow"),
    (("fresh", "steps 5,5"), "that grow"),
    (
      ("fresh", "every 5", "stale"),
      r"policy_slots\[2\]='stale' is no schedule",
    ),
  )
  def test_refuses(self, lines, message):
    with self.assertRaisesRegex(ConfigError, message):
      read_schedules(lines)
