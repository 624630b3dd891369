"""A replay of turns that earlier policies played, for critics off policy.

A turn is kept as state, answer, reward and next state: what holds whoever
played it. No return is kept, since the turns after it were played by a policy
of another version, and no log-probability, since no importance weight is made:
`twin_critic` says why none is needed if answers are drawn anew. Every
turn has the version of the policy that played it, and a sample says how old
its turns are, so that no mixture of versions goes unseen.
"""

import dataclasses

import numpy as np

from studies.credit.exact import Episodes, Rules


@dataclasses.dataclass(frozen=True)
class Turns:
  """Recorded turns; axis N."""

  turn_N: np.ndarray
  set_N: np.ndarray
  call_N: np.ndarray
  reward_N: np.ndarray
  ended_N: np.ndarray  # bool, the last of its episode
  next_set_N: np.ndarray  # means nothing where ended
  version_N: np.ndarray  # of the policy that played it

  def __len__(self) -> int:
    return len(self.turn_N)

  def at(self, place_N: np.ndarray) -> "Turns":
    """Returns the turns at places, in their order."""
    return Turns(*(x_N[place_N] for x_N in _columns(self)))


def recorded_turns(rules: Rules, episodes: Episodes, *, version: int) -> Turns:
  """Returns the turns that were played, of all episodes."""
  played_NU = episodes.played_NU
  n_N, turn_N = np.nonzero(played_NU)
  last = turn_N == rules.shape[0] - 1
  next_turn_N = np.where(last, turn_N, turn_N + 1)
  return Turns(
    turn_N=turn_N,
    set_N=episodes.set_NU[played_NU],
    call_N=episodes.call_NU[played_NU],
    reward_N=episodes.reward_NU[played_NU],
    ended_N=last | ~played_NU[n_N, next_turn_N],
    next_set_N=episodes.set_NU[n_N, next_turn_N],
    version_N=np.full(len(turn_N), version),
  )


class Replay:
  """The latest turns, of any version; the oldest go first.

  Args:
    capacity: in turns; 1 or more.

  Raises:
    ValueError: a capacity below 1.
  """

  def __init__(self, capacity: int):
    if capacity < 1:
      raise ValueError(
        f"capacity={capacity} must be 1 or more; to train without a replay, "
        "clear it before every batch"
      )
    self._capacity = capacity
    self._turns: Turns | None = None

  def __len__(self) -> int:
    return 0 if self._turns is None else len(self._turns)

  def add(self, turns: Turns) -> None:
    """Adds turns of one version, which may not be older than those kept.

    Raises:
      ValueError: turns of several versions, or of an older one.
    """
    versions = np.unique(turns.version_N)
    newest = -1 if self._turns is None else int(self._turns.version_N[-1])
    if len(versions) != 1 or versions[0] < newest:
      raise ValueError(
        f"turns of versions {versions.tolist()} were added after version "
        f"{newest}: add those of one version at a time, the oldest first"
      )
    kept = [turns] if self._turns is None else [self._turns, turns]
    self._turns = Turns(
      *(
        np.concatenate(columns)[-self._capacity :]
        for columns in zip(*map(_columns, kept), strict=True)
      )
    )

  def clear(self) -> None:
    """Forgets all turns."""
    self._turns = None

  def sample(
    self, rng: np.random.Generator, number: int, *, version: int
  ) -> tuple[Turns, float]:
    """Draws turns evenly, with repetition.

    Args:
      rng: source of the draw.
      number: of turns.
      version: of the present policy.

    Returns:
      The turns, and their mean age in versions: 0 if all are the present
      policy's.

    Raises:
      ValueError: there is no turn, or one of a later version than `version`.
    """
    if self._turns is None:
      raise ValueError("the replay is empty: add turns before sampling")
    if (newest := int(self._turns.version_N[-1])) > version:
      raise ValueError(
        f"the replay has turns of version {newest}, which is later than "
        f"version={version}: pass the version of the present policy"
      )
    turns = self._turns.at(rng.integers(len(self._turns), size=number))
    return turns, float((version - turns.version_N).mean())


def _columns(turns: Turns) -> list[np.ndarray]:
  return [getattr(turns, field.name) for field in dataclasses.fields(turns)]
