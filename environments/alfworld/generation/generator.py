"""Generates games: the content is a pure function of (split, index).

A hash of the room decides its split, and a game is drawn again until its room
belongs to the split asked for: train and test share no room. Every game can be
won, and none is won from the start.
"""

import dataclasses
import random

from agentrl_jax.data.split import split_of
from agentrl_jax.env.options import require_bounds, require_some_of
from environments.alfworld.games import tasks
from environments.alfworld.games.game import Game
from environments.alfworld.generation import catalogue
from environments.alfworld.generation.room import Room, draw_room
from environments.options import ALFWorldOptions


@dataclasses.dataclass(frozen=True)
class GeneratedGame:
  """A game with the parameters that it was made from."""

  game: Game
  spec: tasks.TaskSpec
  room: Room
  room_kind: str


class GameGenerator:
  """Draws games with tasks of some types in rooms of some size (inclusive)."""

  def __init__(self, options: ALFWorldOptions = ALFWorldOptions()):  # noqa: B008
    self._options = options
    types = options.task_types
    self._task_types = tasks.TASK_TYPES if types is None else types
    require_some_of(tasks.TASK_TYPES, task_types=self._task_types)
    require_bounds(num_receptacles=options.num_receptacles, least=4, most=60)
    require_bounds(num_things=options.num_things, least=4, most=100)

  def generate(self, split: str, index: int) -> GeneratedGame:
    """Draws the game of (split, index)."""
    rng = random.Random(f"alfworld/{split}/{index}")
    kind = rng.choice(self._task_types)
    while True:  # a room belongs to the split with probability 1/2
      room_kind = rng.choice(_rooms_for(kind))
      room = draw_room(
        rng,
        room_kind,
        num_receptacles=self._options.num_receptacles,
        num_things=self._options.num_things,
      )
      spec = _draw_spec(rng, kind, room)
      if spec is None:
        continue
      room = room.prepared(rng, spec)
      if split_of(room.canonical) != split:
        continue
      task = rng.choice(tasks.PHRASES[kind]).format(o=spec.thing, r=spec.target)
      game = room.game(goal=tasks.goal_of(spec), task=task)
      return GeneratedGame(game, spec, room, room_kind)


def _rooms_for(kind: str) -> list[str]:
  """Lists the kinds of room that have the furniture for a type of task."""
  tool = tasks.TOOL_FOR.get(tasks.REQUIRED_STATE[kind])
  return [
    name
    for name, room in catalogue.ROOM_KINDS.items()
    if (tool is None or tool in room.furniture)
    and (kind != tasks.LOOK or "desklamp" in room.things)
  ]


def _draw_spec(
  rng: random.Random, kind: str, room: Room
) -> tasks.TaskSpec | None:
  """Draws a task that this room allows; None if it allows none of the type."""
  things = sorted({name for name, _ in room.things if name in catalogue.FITS})
  if kind == tasks.LOOK:
    if not any(name == "desklamp" for name, _ in room.things) or not things:
      return None
    return tasks.TaskSpec(kind, rng.choice(things), "desklamp")
  furniture = {name for name, _ in room.receptacles}
  state = tasks.REQUIRED_STATE[kind]
  tool = tasks.TOOL_FOR.get(state)
  if tool is not None and tool not in furniture:
    return None
  specs = []
  for thing in things:
    if state and tasks.TRAIT_FOR[state] not in catalogue.TRAITS_OF[thing]:
      continue
    targets = sorted(set(catalogue.FITS[thing]) & furniture)
    if len(targets) < 2:  # the thing must start in another receptacle
      continue
    specs += [tasks.TaskSpec(kind, thing, r) for r in targets if r != tool]
  return rng.choice(specs) if specs else None
