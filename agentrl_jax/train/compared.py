"""Splits episodes into the parts whose rewards are compared with each other.

An episode of several agents has several lines of tokens. Their advantages come
from one of these comparisons, `advantage.compare`:

- `episodes`: the episodes of a group; all lines of one have its advantage. An
  episode with more lines counts as much as any other.
- `roles`: what one role did in each episode of a group, by the role's own
  reward, or else the episode's. Each role is a group of its own.
- `lines`: all lines of a group, each by its episode's reward. An episode with
  more lines weighs more in the mean, as in the first releases of Agent
  Lightning (arXiv:2508.03680), whose agents learned to make fewer calls.

A part is a trajectory with some of the turns, so that everything after it works
as with whole episodes. `LearnedTurns` leads back: from the tokens that the
learner trained on to the turns of the whole episodes.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import jax
import numpy as np

from agentrl_jax.data.records import Group, LearnedTurn, Line, Trajectory, Turn
from agentrl_jax.errors import ConfigError
from agentrl_jax.train.metrics import POLICY_LOGPROB
from agentrl_jax.train.train_batch import TrainBatch

# A part, and the numbers of its turns in the whole trajectory.
Part = tuple[Trajectory, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
  """Groups of parts, and the parts of each whole trajectory by its `id`."""

  groups: tuple[Group, ...]
  parts: Mapping[int, Sequence[Part]]
  whole: tuple[Group, ...]  # keeps the trajectories alive, and so their ids

  @property
  def trajectories(self) -> list[Trajectory]:
    """All parts, in the order of their groups."""
    return [t for group in self.groups for t in group.trajectories]


_NOTHING = Compared((), {}, ())


def compared_parts(
  groups: Sequence[Group],
  *,
  compare: str = "episodes",
  roles: Collection[str] = (),
) -> Compared:
  """Returns the parts of all trajectories, by one of these.

  With `roles` the turns of other roles are left out. An episode without a turn
  of these is compared and not trained on, unless parts are smaller than
  episodes: then it has no part.
  """
  parts: dict[int, list[Part]] = {}
  compared: list[Group] = []
  for group in groups:
    members: dict[str, list[Trajectory]] = {}
    for trajectory in group.trajectories:
      own = list(_parts(trajectory, compare, roles))
      parts[id(trajectory)] = own
      for part, numbers in own:
        line = trajectory.turns[numbers[0]].line if numbers else 0
        role = trajectory.role_of(line) if compare == "roles" else ""
        members.setdefault(role, []).append(part)
    for role, own_parts in members.items():
      id_ = f"{group.id}/{role}" if role else group.id
      compared.append(
        dataclasses.replace(group, id=id_, trajectories=tuple(own_parts))
      )
  return Compared(tuple(compared), parts, tuple(groups))


def _parts(
  trajectory: Trajectory, compare: str, roles: Collection[str]
) -> Iterator[Part]:
  lines = [x for x in trajectory.lines if not roles or x.role in roles]
  if compare == "lines":
    for line in lines:
      yield _part(trajectory, [line], trajectory.reward)
  elif compare == "roles":
    for role in dict.fromkeys(line.role for line in lines):
      reward = trajectory.role_rewards.get(role, trajectory.reward)
      own = [line for line in lines if line.role == role]
      yield _part(trajectory, own, reward)
  else:
    yield _part(trajectory, lines, trajectory.reward)


def _part(trajectory: Trajectory, lines: Sequence[Line], reward: float) -> Part:
  numbers = tuple(sorted(u for line in lines for u in line.numbers))
  if len(numbers) == len(trajectory.turns) and reward == trajectory.reward:
    return trajectory, numbers
  turns = tuple(trajectory.turns[u] for u in numbers)
  return dataclasses.replace(trajectory, turns=turns, reward=reward), numbers


def require_roles(roles: Sequence[str], groups: Sequence[Group]) -> None:
  """Raises `ConfigError` if no line has one of the roles."""
  present = {
    line.role for g in groups for t in g.trajectories for line in t.lines
  }
  if present and not present.intersection(roles):
    raise ConfigError(
      f"train.roles={tuple(roles)!r} is to be trained on, and the episodes of "
      f"this batch have lines of {', '.join(map(repr, sorted(present)))}: name "
      "some of these, or () for all. An agent gives its role with each call, "
      "in the header X-AgentRL-Role"
    )


class LearnedTurns:
  """Log-probabilities and advantages of one batch, by trajectory and turn.

  The program of the gradient has the log-probabilities at hand. They stay on
  the devices, and are copied for the trajectories that somebody asks for.
  """

  def __init__(
    self,
    compared: Compared = _NOTHING,
    packed: Sequence[Trajectory] = (),
    whole: TrainBatch | None = None,
  ):
    """`packed` are parts of `compared`, and `Batch.trajectory` their number.

    The batch is on the host. Without one, nothing was computed.
    """
    self._compared = compared
    self._number = {id(part): n for n, part in enumerate(packed)}
    self._packed = packed  # so that no other object gets the id of one
    self._whole = whole
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
    turns: dict[int, LearnedTurn] = {}
    for part, numbers in self._compared.parts.get(id(trajectory), ()):
      for number, learned in self._of_part(part).items():
        turns[numbers[number]] = learned
    if not turns:
      return None
    return tuple(
      turns.get(number) or _not_computed(turn)
      for number, turn in enumerate(trajectory.turns)
    )

  def _of_part(self, part: Trajectory) -> dict[int, LearnedTurn]:
    """Returns the turns of a part by their numbers, from all micro-batches."""
    number = self._number.get(id(part))
    turns: dict[int, LearnedTurn] = {}
    if number is None or self._whole is None:
      return turns
    batch = self._whole.batch
    chosen_RT = np.asarray(batch.mask) & (batch.trajectory == number)
    for m, logprob_BT in self._logprob_BT.items():
      size = len(logprob_BT)
      rows = slice(m * size, (m + 1) * size)
      chosen_BT = chosen_RT[rows]
      if not chosen_BT.any():
        continue
      turn = np.asarray(batch.turn)[rows][chosen_BT]
      logprob = np.asarray(logprob_BT)[chosen_BT]
      advantage = np.asarray(self._whole.advantage)[rows][chosen_BT]
      for u in np.unique(turn).tolist():
        turns[u] = LearnedTurn(
          logprob=logprob[turn == u], advantage=advantage[turn == u]
        )
    return turns


def _not_computed(turn: Turn) -> LearnedTurn:
  size = len(turn.sampled)
  return LearnedTurn(
    logprob=np.full(size, np.nan, np.float32),
    advantage=np.zeros(size, np.float32),
  )
