"""DBBench: questions about a database, answered with SQL.

Tasks are generated (splits train and test), or read from AgentBench's own file
(split dev). They run on SQLite in memory, or on a real MariaDB server.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence

from agentrl_jax.data.split import LOADED_SPLIT, SPLITS
from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.interface import Environment, Expert, Session
from agentrl_jax.env.scripted import ScriptedPolicies
from agentrl_jax.errors import ConfigError
from environments.dbbench.agentbench import load_problems
from environments.dbbench.engines.base import Engine
from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.expert import (
  MISTAKES,
  expert_for_generated,
  expert_for_loaded,
)
from environments.dbbench.generation.generator import (
  DEFAULT_KINDS,
  Generated,
  Generator,
)
from environments.dbbench.problem import Problem
from environments.dbbench.prompts import SYSTEM_PROMPTS
from environments.dbbench.scripted import POLICIES
from environments.dbbench.session import DBSession, Rules

ENGINES = ("sqlite", "mariadb")
GENERATED_CACHE = 4096  # tasks kept at hand; the attempts of a group share one


class DBBench(Environment):
  """Generated tasks; with `source`, also those of AgentBench's file.

  Defaults are AgentBench's. `engine` is "sqlite", "mariadb" or one that you
  made. `server` is MariaDB's, host:port or user:password@host:port; without it
  the engine starts a server of its own, for the tasks of this object alone.
  """

  name = "dbbench"
  mistakes = MISTAKES

  def __init__(
    self,
    *,
    source: str = "",
    engine: str | Engine = "sqlite",
    server: str = "",
    max_rounds: int = 15,
    max_result_chars: int = 800,
    statement_limit_s: float = 60.0,
    system_prompt: str = "upstream",
    upstream_quirks: bool = False,
    kinds: Sequence[str] | None = None,
    num_rows: tuple[int, int] = (4, 8),
    num_columns: tuple[int, int] = (3, 5),
    num_tables: tuple[int, int] = (1, 1),
    num_tasks: int = 1 << 20,
  ):
    if system_prompt not in SYSTEM_PROMPTS:
      raise ConfigError(
        f"system_prompt={system_prompt!r} is not one of "
        f"{', '.join(SYSTEM_PROMPTS)}"
      )
    for key, value in {
      "max_rounds": max_rounds,
      "max_result_chars": max_result_chars,
      "statement_limit_s": statement_limit_s,
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
      kinds=_kinds(kinds),
      num_rows=num_rows,
      num_columns=num_columns,
      num_tables=num_tables,
    )
    self._num_tasks = num_tasks
    self._loaded = load_problems(source) if source else ()
    self._generate = functools.lru_cache(GENERATED_CACHE)(
      self._generator.generate
    )
    self._engine = (
      engine
      if isinstance(engine, Engine)
      else _engine(
        engine,
        server,
        max_result_chars=max_result_chars,
        statement_limit_s=statement_limit_s,
      )
    )

  def indices(self, split: str) -> Sequence[int]:
    """Train and test are as long as asked for; dev is the source's rows."""
    if split in SPLITS:
      return range(self._num_tasks)
    if split == LOADED_SPLIT and self._loaded:
      return range(len(self._loaded))
    raise ConfigError(self._no_split(split))

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """A session with a database of its own; the seed changes nothing."""
    del seed
    problem = self._problem(task)
    async with self._engine.open(problem.tables) as database:
      yield DBSession(problem, database, self._rules, gold_hash=self._gold_hash)

  async def close(self) -> None:
    """Stops the engine; only a server of its own has anything to stop."""
    await self._engine.close()

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Plays the gold SQL; `expert.MISTAKES` are for generated tasks only."""
    if task.split == LOADED_SPLIT:
      return expert_for_loaded(self._problem(task), mistakes=mistakes)
    return expert_for_generated(
      self._generated(task), seed=seed, mistakes=mistakes
    )

  def scripted_policies(self) -> ScriptedPolicies:
    """Answerers who do not think about the question; see `scripted`."""
    return POLICIES

  def _problem(self, task: Task) -> Problem:
    if task.split != LOADED_SPLIT:
      return self._generated(task).problem
    if not 0 <= task.index < len(self._loaded):
      raise ConfigError(
        f"{task} is outside the {len(self._loaded)} problems of `source`"
      )
    return self._loaded[task.index]

  def _generated(self, task: Task) -> Generated:
    if task.split not in SPLITS:
      raise ConfigError(self._no_split(task.split))
    return self._generate(task.split, task.index)

  async def _gold_hash(self, problem: Problem) -> str:
    """The hash after the gold SQL has run on fresh tables."""
    async with self._engine.open(problem.tables) as database:
      await database.execute(problem.gold_sql)
      return await database.hash_of(problem.tables)

  def _no_split(self, split: str) -> str:
    known = [*SPLITS, *([LOADED_SPLIT] if self._loaded else [])]
    hint = "" if self._loaded else "; dev needs `source`, AgentBench's file"
    return f"DBBench has no split {split!r}, only {', '.join(known)}{hint}"


def _kinds(kinds: Sequence[str] | None) -> Sequence[str]:
  """Those to ask, where a config or a command line may have named them."""
  if kinds is None:
    return DEFAULT_KINDS
  return kinds if isinstance(kinds, str) else tuple(kinds)  # refused: a str


def _engine(
  kind: str, server: str, *, max_result_chars: int, statement_limit_s: float
) -> Engine:
  if kind not in ENGINES:
    raise ConfigError(f"engine={kind!r} is not one of {', '.join(ENGINES)}")
  if kind == "sqlite":
    if server:
      raise ConfigError(f"server={server!r} needs engine='mariadb'")
    return SQLiteEngine(
      max_result_chars=max_result_chars, statement_limit_s=statement_limit_s
    )
  # Its driver is needed for this engine alone.
  from environments.dbbench.engines.mariadb import MariaDBEngine

  return MariaDBEngine(
    server,
    max_result_chars=max_result_chars,
    statement_limit_s=statement_limit_s,
  )
