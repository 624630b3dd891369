"""A critic that reads more than the policy: training-time information.

An environment may know in training what a policy never gets to see, such as the
solution. A critic that reads it before the trajectory can judge a turn that the
rest of the episode leaves open (asymmetric actor-critic, arXiv:1710.06542;
SWEET-RL, arXiv:2503.15478). Policy and critic then have rows of their own: the
critic's have the information as first tokens of each line. Advantages are
computed on them, and carried over to the same tokens of the policy's rows.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agentrl_jax.data.packing import Rows
from agentrl_jax.data.records import Trajectory, Turn
from agentrl_jax.errors import ConfigError
from agentrl_jax.train.train_batch import TrainBatch, add_fields

Encode = Callable[[str], np.ndarray]


def informed(
  trajectories: Sequence[Trajectory], encode: Encode
) -> list[Trajectory]:
  """Returns the trajectories as the critic reads them.

  Each line of tokens begins with its trajectory's information. Raises
  `ConfigError` for a trajectory that has none.
  """
  return [_informed(trajectory, encode) for trajectory in trajectories]


def carried_over(x_RT: np.ndarray, source: Rows, target: Rows) -> np.ndarray:
  """Returns the numbers of the sampled tokens where `target` has the tokens.

  Both have the turns of the same trajectories, numbered alike; other tokens get
  0. The shape is that of `target`.
  """
  carried_RT = np.zeros(target.mask.shape, x_RT.dtype)
  carried_RT.flat[_sampled(target)] = x_RT.flat[_sampled(source)]
  return carried_RT


def for_critic(
  micro_batches: Sequence[TrainBatch], fields: Mapping[str, np.ndarray]
) -> list[TrainBatch]:
  """Returns the micro-batches as ones that only the critic learns from.

  `fields` are those of `critic_advantages`, of the whole batch.
  """
  of_critic = {name: x for name, x in fields.items() if name != "advantage"}
  return [
    dataclasses.replace(x, advantage=None, left_out=None)
    for x in add_fields(micro_batches, of_critic)
  ]


def _informed(trajectory: Trajectory, encode: Encode) -> Trajectory:
  if not trajectory.information:
    raise ConfigError(
      f"an episode of {trajectory.task.name} has no training-time information, "
      "and advantage.critic_input='information' has the critic read it: see "
      "Environment.training_information, or set --config.advantage."
      "critic_input=trajectory"
    )
  first = {line.numbers[0] for line in trajectory.lines}
  tokens = encode(trajectory.information + "\n")

  def begun(turn: Turn) -> Turn:
    observation = np.concatenate([tokens, turn.observation])
    return dataclasses.replace(turn, observation=observation)

  turns = (
    begun(turn) if number in first else turn
    for number, turn in enumerate(trajectory.turns)
  )
  return dataclasses.replace(trajectory, turns=tuple(turns))


def _sampled(rows: Rows) -> np.ndarray:
  """Returns the places of all sampled tokens, turn by turn."""
  places = np.flatnonzero(rows.mask)
  turn_X = rows.turn.flat[places]
  trajectory_X = rows.trajectory.flat[places]
  # Stable: the tokens of a turn lie in one row, in their order.
  return places[np.lexsort((turn_X, trajectory_X))]
