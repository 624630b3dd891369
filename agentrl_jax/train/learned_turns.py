"""The learner's view of the tokens that it trained on, by trajectory.

The program of the gradient has their log-probabilities at hand. They stay on
the devices, and are copied for the trajectories that somebody asks for.

Axes: B rows of a micro-batch, T tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from agentrl_jax.data.records import LearnedTurn, Trajectory
from agentrl_jax.train.train_batch import TrainBatch

POLICY_LOGPROB = "policy/logprob"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenValues:
  """Values of tokens, which do not add up over micro-batches."""

  values_BT: jax.Array


class LearnedTurns:
  """Log-probabilities and advantages of one batch, by trajectory and turn."""

  def __init__(
    self,
    packed: Sequence[Trajectory] = (),
    micro_batches: Sequence[TrainBatch] = (),
  ):
    """`Batch.trajectory` counts along `packed`; micro-batches are on the host.

    Without any, nothing was computed.
    """
    self._number = {id(t): n for n, t in enumerate(packed)}
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

    Every process may ask, alone.
    """
    number = self._number.get(id(trajectory))
    if number is None:
      return None
    for m, micro_batch in enumerate(self._micro_batches):
      batch = micro_batch.batch
      chosen_BT = np.asarray(batch.mask) & (batch.trajectory == number)
      if not chosen_BT.any() or m not in self._logprob_BT:
        continue
      turn = np.asarray(batch.turn)[chosen_BT]
      logprob = np.asarray(self._logprob_BT[m])[chosen_BT]
      advantage = np.asarray(micro_batch.advantage)[chosen_BT]
      return tuple(
        LearnedTurn(logprob=logprob[turn == u], advantage=advantage[turn == u])
        for u in range(len(trajectory.turns))
      )
    return None
