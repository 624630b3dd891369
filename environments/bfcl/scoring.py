"""BFCL's verdict on a multi-turn attempt, turn by turn.

A turn with gold calls is right if the policy called something, if afterwards
both states are equal, and if the result of every gold call of the turn is among
the policy's results so far. A turn without gold calls is always right: whatever
is called there must only not spoil the turns that follow.
"""

import enum
from collections.abc import Sequence

from environments.bfcl.apis import APIs
from environments.bfcl.calls import parse_source


class Failure(enum.Enum):
  """What was wrong, in the words that end BFCL's `error_type`."""

  NO_CALL = "empty_turn_model_response"
  STATE = "instance_state_mismatch"
  RESULTS = "execution_response_mismatch"
  STEP_LIMIT = "force_terminated"


class Referee:
  """Plays the gold calls beside the policy's and compares."""

  def __init__(self, gold: Sequence[Sequence[str]], apis: APIs):
    self._gold = gold
    self._apis = apis  # in the state that the policy's began in
    self._results: list[str] = []  # of the policy's calls, of all turns

  def judge(
    self, turn: int, results: Sequence[str], apis: APIs
  ) -> Failure | None:
    """What is wrong with the turn; each is judged once, in their order.

    `results` are those of the calls that the policy made in it, `apis` what it
    made them on.
    """
    self._results += results
    wanted = [self._play(source) for source in self._gold[turn]]
    if not wanted:
      return None
    if not results:
      return Failure.NO_CALL
    if not apis.agrees_with(self._apis):
      return Failure.STATE
    return None if _is_part(wanted, self._results) else Failure.RESULTS

  def _play(self, source: str) -> str:
    call = parse_source(source)
    return self._apis.call(call.name, call.positional, call.named)


def _is_part(wanted: Sequence[str], results: Sequence[str]) -> bool:
  """Whether every wanted result is there, as often as it is wanted."""
  left = list(results)
  for result in wanted:
    if result not in left:
      return False
    left.remove(result)
  return True
