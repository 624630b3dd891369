"""ALFWorld: a household in text, one action per turn.

Tasks are generated (splits train and test) or read from ALFWorld's own game
files (split dev).
"""

import contextlib
import inspect
import pathlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Task
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session
from environments.alfworld.expert import MISTAKES, HouseholdExpert
from environments.alfworld.games.game import Game
from environments.alfworld.games.game_files import find_games, load_game
from environments.alfworld.games.tasks import read_goal
from environments.alfworld.generation.generator import GameGenerator
from environments.alfworld.household import Household
from environments.alfworld.session import ALFSession
from environments.options import ALFWorldOptions


class ALFWorld(IndexedEnvironment[Game]):
  """Generated tasks and, with `games`, those of ALFWorld's own files.

  Its keyword arguments are the fields of `ALFWorldOptions`.
  """

  name = "alfworld"
  mistakes = MISTAKES
  cache_size = 256
  split_hint = "`games` adds a folder of game files"
  __signature__ = inspect.signature(ALFWorldOptions)

  def __init__(self, **keywords: Any):
    self._options = options = ALFWorldOptions(**keywords)
    super().__init__(
      num_tasks=options.num_tasks,
      loaded=find_games(options.source, options.games),
    )
    self._generator = GameGenerator(options)

  def generate(self, split: str, index: int) -> Game:
    """Draws a household and a goal."""
    return self._generator.generate(split, index).game

  def load(self, loaded: pathlib.Path) -> Game:
    """Reads a game file."""
    return load_game(loaded)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session with its own household; ignores the seed."""
    del seed
    game = self.find(task)
    spec = read_goal(game.goal)
    kind = spec.type if spec else "other"
    yield ALFSession(Household(game), self._options, kind=kind)

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that knows the game; see `expert.MISTAKES`."""
    return HouseholdExpert(self.find(task), seed=seed, mistakes=mistakes)
