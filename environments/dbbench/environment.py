"""DBBench: questions about a database, answered with SQL.

Tasks are generated (splits train and test) or loaded from AgentBench's file
(split dev). They run on SQLite in memory or on a MariaDB server.
"""

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Task
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session
from agentrl_jax.env.options import engine_of
from agentrl_jax.env.task_sets import read_sets
from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.dbbench.engines.base import DatabaseEngine
from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.expert import (
  MISTAKES,
  expert_for_generated,
  expert_for_loaded,
)
from environments.dbbench.generation.generator import (
  Generated,
  QuestionGenerator,
)
from environments.dbbench.problem import DBProblem, load_problems
from environments.dbbench.scripted import POLICIES
from environments.dbbench.session import DBSession
from environments.options import DBBenchOptions


class DBBench(IndexedEnvironment[Generated | DBProblem]):
  """AgentBench's DBBench, with AgentBench's defaults.

  Its keyword arguments are the fields of `DBBenchOptions`.
  """

  name = "dbbench"
  mistakes = MISTAKES
  policies = POLICIES
  baseline = "named_cell"
  split_hint = "`source` adds AgentBench's files"
  _engine: DatabaseEngine
  __signature__ = inspect.signature(DBBenchOptions)

  def __init__(self, **keywords: Any):
    self._options = options = DBBenchOptions(**keywords)
    super().__init__(
      num_tasks=options.num_tasks,
      loaded=read_sets(options.source, load_problems),
    )
    self._generator = QuestionGenerator(options)
    self._engine = engine_of(
      options.engine,
      {
        "sqlite": functools.partial(_sqlite_engine, options),
        "mariadb": functools.partial(_mariadb_engine, options),
      },
    )

  def generate(self, split: str, index: int) -> Generated:
    """Draws tables and a question about them."""
    return self._generator.generate(split, index)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session with a database of its own; the seed has no effect."""
    del seed
    problem = self._problem(task)
    async with self._engine.open(problem.tables) as database:
      yield DBSession(
        problem, database, self._options, gold_hash=self._gold_hash
      )

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Returns an expert; it makes mistakes in generated tasks only."""
    content = self.find(task)
    if isinstance(content, DBProblem):
      return expert_for_loaded(content, mistakes=mistakes)
    return expert_for_generated(content, seed=seed, mistakes=mistakes)

  def _problem(self, task: Task) -> DBProblem:
    content = self.find(task)
    return content if isinstance(content, DBProblem) else content.problem

  async def _gold_hash(self, problem: DBProblem) -> str:
    """Returns the hash of fresh tables after the gold SQL has run."""
    async with self._engine.open(problem.tables) as database:
      reply = await database.execute(problem.gold_sql)
      gold_hash = await database.hash_of(problem.tables)
    if not gold_hash:
      raise EnvironmentFault(
        f"the gold statement leaves tables that cannot be read ({reply}): "
        f"{problem.gold_sql!r}"
      )
    return gold_hash


def _sqlite_engine(options: DBBenchOptions) -> DatabaseEngine:
  if options.server:
    raise ConfigError(f"server={options.server!r} needs engine='mariadb'")
  return SQLiteEngine(options)


def _mariadb_engine(options: DBBenchOptions) -> DatabaseEngine:
  # Imported here because only this engine needs the driver.
  from environments.dbbench.engines.mariadb import MariaDBEngine

  return MariaDBEngine(options.server, options)
