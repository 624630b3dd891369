"""ALFWorld: a household in text, one action per turn.

Tasks are generated (splits train and test) or read from ALFWorld's own game
files (split dev). The engine is plain Python, or TextWorld in processes of its
own.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence

from agentrl_jax.data.split import LOADED_SPLIT, SPLITS
from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.interface import Environment, Expert, Session
from agentrl_jax.env.scripted import ScriptedPolicies
from agentrl_jax.errors import ConfigError
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

ENGINES = ("python", "textworld")
GENERATED_CACHE = 256  # games; the episodes of a group share one


class ALFWorld(Environment):
  """Generated tasks and, with `games`, those of ALFWorld's own files.

  Defaults are AgentBench's. `games` is the folder of the files (by default the
  value of the variable ALFWORLD_DATA), `source` one of AgentBench's lists of
  them. `engine` is "python", "textworld" or an `Engine`.
  """

  name = "alfworld"
  mistakes = MISTAKES

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
    if system_prompt not in SYSTEM_PROMPTS:
      raise ConfigError(
        f"system_prompt={system_prompt!r} is not one of "
        f"{', '.join(SYSTEM_PROMPTS)}"
      )
    for key, value in {
      "num_processes": num_processes,
      "reply_limit_s": reply_limit_s,
      "max_rounds": max_rounds,
      "num_tasks": num_tasks,
    }.items():
      if value <= 0:
        raise ConfigError(f"{key}={value} must be above 0")
    self._rules = Rules(
      max_rounds=max_rounds,
      system_prompt=system_prompt,
      upstream_quirks=upstream_quirks,
    )
    self._generator = Generator(
      task_types=(
        tuple(task_types) if not isinstance(task_types, str) else task_types
      ),
      num_receptacles=num_receptacles,
      num_things=num_things,
    )
    self._num_tasks = num_tasks
    self._files = find_games(source, games)
    self._generate = functools.lru_cache(GENERATED_CACHE)(
      self._generator.generate
    )
    self.needs_one_loop = engine != "python"
    self._engine = (
      engine
      if isinstance(engine, Engine)
      else _engine(engine, num_processes, reply_limit_s)
    )

  def indices(self, split: str) -> Sequence[int]:
    """Returns `num_tasks` indices for train and test, one per file for dev."""
    if split in SPLITS:
      return range(self._num_tasks)
    if split == LOADED_SPLIT and self._files:
      return range(len(self._files))
    raise ConfigError(self._no_split(split))

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session with its own household; ignores the seed."""
    del seed
    game = self._game(task)
    spec = read_goal(game.goal)
    async with self._engine.open(game) as play:
      yield ALFSession(play, self._rules, kind=spec.type if spec else "other")

  async def close(self) -> None:
    """Stops the engine's idle processes, if it has any."""
    await self._engine.close()

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that knows the game; see `expert.MISTAKES`."""
    return HouseholdExpert(self._game(task), seed=seed, mistakes=mistakes)

  def scripted_policies(self) -> ScriptedPolicies:
    """Lists baselines that do not plan; see `scripted`."""
    return POLICIES

  def _game(self, task: Task) -> Game:
    if task.split == LOADED_SPLIT and self._files:
      if not 0 <= task.index < len(self._files):
        raise ConfigError(
          f"{task} is outside the {len(self._files)} games that were found"
        )
      return load_game(self._files[task.index])
    if task.split not in SPLITS:
      raise ConfigError(self._no_split(task.split))
    return self._generate(task.split, task.index).game

  def _no_split(self, split: str) -> str:
    known = [*SPLITS, *([LOADED_SPLIT] if self._files else [])]
    hint = "" if self._files else "; dev needs `games`, a folder of game files"
    return f"ALFWorld has no split {split!r}, only {', '.join(known)}{hint}"


def _engine(kind: str, num_processes: int, reply_limit_s: float) -> Engine:
  if kind not in ENGINES:
    raise ConfigError(f"engine={kind!r} is not one of {', '.join(ENGINES)}")
  if kind == "python":
    return PythonEngine()
  return TextWorldEngine(
    num_processes=num_processes, reply_limit_s=reply_limit_s
  )
