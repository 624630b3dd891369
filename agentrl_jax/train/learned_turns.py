"""The learner's view of the tokens that it trained on, by trajectory.

The program of the gradient has their log-probabilities at hand. They stay on
the devices, and are copied for the trajectories that somebody asks for.

Axes: B rows of a micro-batch, T tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from agentrl_jax.data.compared import Compared
from agentrl_jax.data.records import LearnedTurn, Trajectory, Turn
from agentrl_jax.train.train_batch import TrainBatch

POLICY_LOGPROB = "policy/logprob"
_NOTHING = Compared((), {}, ())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenValues:
  """Values of tokens, which do not add up over micro-batches."""

  values_BT: jax.Array


class LearnedTurns:
  """Log-probabilities and advantages of one batch, by trajectory and turn."""

  def __init__(
    self,
    compared: Compared = _NOTHING,
    packed: Sequence[Trajectory] = (),
    micro_batches: Sequence[TrainBatch] = (),
  ):
    """`packed` are parts of `compared`, and `Batch.trajectory` their number.

    The micro-batches are on the host. Without any, nothing was computed.
    """
    self._compared = compared
    self._number = {id(part): n for n, part in enumerate(packed)}
    self._packed = packed  # so that no other object gets the id of one
    self._micro_batches = micro_batches
    self._logprob_BT: dict[int, jax.Array] = {}

  def add(self, number: int, values: Mapping[str, jax.Array]) -> None:
    """Keeps what the learner reports of the tokens of a micro-batch.

    `number` is its position in the batch; the arrays are replicated.
    """
    if POLICY_LOGPROB in values:
      self._logprob_BT[number] = values[POLICY_LOGPROB]

  def of(self, trajectory: Trajectory) -> tuple[LearnedTurn, ...] | None:
    """Returns a turn for each of the trajectory's; None if not computed.

    Turns that were not trained on have NaN and an advantage of 0. Every process
    may ask, alone.
    """
    found: dict[int, LearnedTurn] = {}
    for part, numbers in self._compared.parts.get(id(trajectory), ()):
      for number, learned in self._of_part(part).items():
        found[numbers[number]] = learned
    if not found:
      return None
    return tuple(
      found.get(number) or _not_computed(turn)
      for number, turn in enumerate(trajectory.turns)
    )

  def _of_part(self, part: Trajectory) -> dict[int, LearnedTurn]:
    """Returns the turns of a part by their numbers, from all micro-batches."""
    number = self._number.get(id(part))
    found: dict[int, LearnedTurn] = {}
    if number is None:
      return found
    for m, micro_batch in enumerate(self._micro_batches):
      batch = micro_batch.batch
      chosen_BT = np.asarray(batch.mask) & (batch.trajectory == number)
      if not chosen_BT.any() or m not in self._logprob_BT:
        continue
      turn = np.asarray(batch.turn)[chosen_BT]
      logprob = np.asarray(self._logprob_BT[m])[chosen_BT]
      advantage = np.asarray(micro_batch.advantage)[chosen_BT]
      for u in np.unique(turn).tolist():
        found[u] = LearnedTurn(
          logprob=logprob[turn == u], advantage=advantage[turn == u]
        )
    return found


def _not_computed(turn: Turn) -> LearnedTurn:
  size = len(turn.sampled)
  return LearnedTurn(
    logprob=np.full(size, np.nan, np.float32),
    advantage=np.zeros(size, np.float32),
  )
