"""A verifier that is cut short runs again, and beside a control."""

import unittest

from agentrl_jax.errors import EnvironmentFault
from environments.os_interaction.judging.repeats import Unfinished, to_the_end
from environments.os_interaction.machines.machine import MachineLost

LATE, LOST, ODD = Unfinished("late"), MachineLost("lost"), ValueError("odd")


class RepeatsTest(unittest.IsolatedAsyncioTestCase):
  async def test_only_what_the_policy_does_is_a_failure(self):
    for runs, control, wanted in (
      ([0.5], None, 0.5),
      ([ODD], None, ODD),  # an end, too
      ([LATE, 0.5], LATE, 0.5),
      ([LOST, 0.5], 0.0, 0.5),
      ([LATE, ODD], LATE, ODD),
      ([LATE, LATE], 0.0, LATE),  # the policy hangs its verifier
      ([LATE, LOST], ODD, LOST),
      ([LOST, LATE], LATE, EnvironmentFault),
      ([LATE, LATE], LOST, EnvironmentFault),
      ([LATE, LATE], EnvironmentFault("no engine"), EnvironmentFault),
      ([LATE, EnvironmentFault("no engine")], 0.0, EnvironmentFault),
    ):
      with self.subTest(runs=runs, control=control):
        left = [*runs]
        try:
          found = await to_the_end(
            lambda left=left: said(left.pop(0)),
            lambda control=control: said(control),
            "the tests",
          )
        except Exception as error:  # noqa: BLE001 - compared
          found = error
        if wanted is EnvironmentFault:
          self.assertIsInstance(found, EnvironmentFault)
        else:
          self.assertIs(found, wanted)
        self.assertEqual(left, [])


async def said(value):
  if isinstance(value, Exception):
    raise value
  return value
