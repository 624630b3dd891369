"""Splits episodes into the parts whose rewards are compared with each other.

An episode of several agents has several lines of tokens. Their advantages come
from one of these comparisons, `COMPARE`:

- `episodes`: the episodes of a group; all lines of one have its advantage. An
  episode with more lines counts as much as any other.
- `roles`: what one role did in each episode of a group, by the role's own
  reward, or else the episode's. Each role is a group of its own.
- `lines`: all lines of a group, each by its episode's reward. An episode with
  more lines weighs more in the mean, as in the first releases of Agent
  Lightning (arXiv:2508.03680), whose agents learned to make fewer calls.

A part is a trajectory with some of the turns, so that everything after it works
as with whole episodes.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from agentrl_jax.data.records import Group, Line, Trajectory
from agentrl_jax.errors import ConfigError

COMPARE = ("episodes", "roles", "lines")

# A part, and the numbers of its turns in the whole trajectory.
Part = tuple[Trajectory, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
  """Groups of parts, and the parts of each whole trajectory by its `id`."""

  groups: tuple[Group, ...]
  parts: Mapping[int, Sequence[Part]]
  whole: tuple[Group, ...]  # keeps the trajectories alive, and so their ids


def compared_parts(
  groups: Sequence[Group],
  *,
  compare: str = "episodes",
  roles: Collection[str] = (),
) -> Compared:
  """Returns the parts of all trajectories, by one of `COMPARE`.

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
    for role, found in members.items():
      id_ = f"{group.id}/{role}" if role else group.id
      compared.append(
        dataclasses.replace(group, id=id_, trajectories=tuple(found))
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
  found = {
    line.role for g in groups for t in g.trajectories for line in t.lines
  }
  if found and not found.intersection(roles):
    raise ConfigError(
      f"train.roles={tuple(roles)!r} is to be trained on, and the episodes of "
      f"this batch have lines of {', '.join(map(repr, sorted(found)))}: name "
      "some of these, or () for all. An agent gives its role with each call, "
      "in the header X-AgentRL-Role"
    )
