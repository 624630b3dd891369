"""ALFWorld: a household in text, one action per turn.

Tasks are generated (splits train and test) or read from ALFWorld's own game
files (split dev). The engine is plain Python, or TextWorld in processes of its
own.
"""

import contextlib
import functools
import pathlib
from collections.abc import AsyncIterator, Mapping, Sequence

from agentrl_jax.data.records import Task
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session
from agentrl_jax.env.options import (
  engine_of,
  require_one_of,
  require_positive,
)
from environments.alfworld.engines.engine import Engine, PythonEngine
from environments.alfworld.engines.textworld_engine import TextWorldEngine
from environments.alfworld.expert import MISTAKES, HouseholdExpert
from environments.alfworld.games.game import Game
from environments.alfworld.games.game_files import find_games, load_game
from environments.alfworld.games.tasks import TASK_TYPES, read_goal
from environments.alfworld.generation.generator import Generator
from environments.alfworld.prompts import SYSTEM_PROMPTS
from environments.alfworld.scripted import POLICIES
from environments.alfworld.session import ALFSession, Rules


class ALFWorld(IndexedEnvironment[Game]):
  """Generated tasks and, with `games`, those of ALFWorld's own files.

  Defaults are AgentBench's. `games` is the folder of the files (by default the
  value of the variable ALFWORLD_DATA), `source` one of AgentBench's lists of
  them, or several sets (see `agentrl_jax.env.task_sets`). `engine` is "python",
  "textworld" or an `Engine`.
  """

  name = "alfworld"
  mistakes = MISTAKES
  policies = POLICIES
  cache_size = 256
  split_hint = "`games` adds a folder of game files"
  _engine: Engine

  def __init__(
    self,
    *,
    source: str = "",
    games: str = "",
    engine: str | Engine = "python",
    num_processes: int = 4,
    reply_limit_s: float = 60.0,
    max_rounds: int = 20,
    system_prompt: str = "upstream",
    upstream_quirks: bool = False,
    task_types: Sequence[str] = TASK_TYPES,
    num_receptacles: tuple[int, int] = (8, 32),
    num_things: tuple[int, int] = (10, 48),
    num_tasks: int = 1 << 20,
  ):
    require_one_of(SYSTEM_PROMPTS, system_prompt=system_prompt)
    require_positive(
      num_processes=num_processes,
      reply_limit_s=reply_limit_s,
      max_rounds=max_rounds,
    )
    super().__init__(num_tasks=num_tasks, loaded=find_games(source, games))
    self._rules = Rules(
      max_rounds=max_rounds,
      system_prompt=system_prompt,
      upstream_quirks=upstream_quirks,
    )
    self._generator = Generator(
      task_types=task_types,
      num_receptacles=num_receptacles,
      num_things=num_things,
    )
    self.needs_one_loop = engine != "python"
    textworld = functools.partial(
      TextWorldEngine, num_processes=num_processes, reply_limit_s=reply_limit_s
    )
    self._engine = engine_of(
      engine, {"python": PythonEngine, "textworld": textworld}
    )

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
    async with self._engine.open(game) as play:
      yield ALFSession(play, self._rules, kind=spec.type if spec else "other")

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that knows the game; see `expert.MISTAKES`."""
    return HouseholdExpert(self.find(task), seed=seed, mistakes=mistakes)
