"""The verdict on single turns, where a rule shows by itself."""

import unittest

from environments.bfcl.apis import APIs
from environments.bfcl.scoring import Failure, Referee
from tests.environments.bfcl.packages import require_packages

FILES = ("GorillaFileSystem",)


class RefereeTest(unittest.TestCase):
  def setUp(self):
    require_packages()
    self.apis = APIs(FILES, {}, is_long=False)

  def _verdicts(self, gold, played):
    """What is said of each turn, given the calls that were made in it."""
    referee = Referee(gold, APIs(FILES, {}, is_long=False))
    return [
      referee.judge(
        turn,
        [self.apis.call(name, (), arguments) for name, arguments in calls],
        self.apis,
      )
      for turn, calls in enumerate(played)
    ]

  def test_a_result_is_wanted_as_often_as_gold_has_it(self):
    gold = [["pwd()", "pwd()"]]
    self.assertEqual(self._verdicts(gold, [[("pwd", {})]]), [Failure.RESULTS])
    self.assertEqual(self._verdicts(gold, [[("pwd", {})] * 2]), [None])

  def test_results_of_earlier_turns_count(self):
    gold = [["pwd()"], ["pwd()", "ls()"]]
    played = [[("pwd", {})] * 2, [("ls", {})]]
    self.assertEqual(self._verdicts(gold, played), [None, None])

  def test_order_does_not_count_and_more_is_allowed(self):
    gold = [["ls()", "pwd()"]]
    played = [[("pwd", {}), ("ls", {"a": True}), ("ls", {}), ("cd", {})]]
    self.assertEqual(self._verdicts(gold, played), [None])

  def test_the_state_is_compared_first(self):
    gold = [["touch(file_name='a')", "pwd()"]]
    played = [[("touch", {"file_name": "b"})]]
    self.assertEqual(self._verdicts(gold, played), [Failure.STATE])

  def test_a_call_is_wanted_even_where_nothing_changes(self):
    self.assertEqual(self._verdicts([["pwd()"]], [[]]), [Failure.NO_CALL])

  def test_a_turn_without_gold_is_right_but_leaves_its_traces(self):
    gold = [[], ["pwd()"]]
    played = [[("touch", {"file_name": "a"})], [("pwd", {})]]
    self.assertEqual(self._verdicts(gold, played), [None, Failure.STATE])


if __name__ == "__main__":
  unittest.main()
