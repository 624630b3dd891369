"""DBBench: questions about a database, answered with SQL.

Tasks are generated (splits train and test) or loaded from AgentBench's file
(split dev). They run on SQLite in memory or on a MariaDB server.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import Task
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session
from agentrl_jax.env.options import (
  engine_of,
  require_one_of,
  require_positive,
)
from agentrl_jax.env.task_sets import read_sets
from agentrl_jax.errors import ConfigError, EnvironmentFault
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
from environments.dbbench.problem import Problem, load_problems
from environments.dbbench.prompts import SYSTEM_PROMPTS
from environments.dbbench.scripted import POLICIES
from environments.dbbench.session import DBSession, Rules


class DBBench(IndexedEnvironment[Generated | Problem]):
  """AgentBench's DBBench, with AgentBench's defaults.

  Args:
    source: AgentBench's file, whose rows become the split dev, or several sets
      (see `agentrl_jax.env.task_sets`).
    engine: "sqlite", "mariadb" or an engine of the caller.
    server: MariaDB's address, host:port or user:password@host:port; if empty,
      the engine starts a server for this object alone.
    max_rounds: answers of the policy per episode.
    max_result_chars: length at which replies are cut.
    statement_limit_s: time limit of one statement.
    system_prompt: "upstream" or "short".
    upstream_quirks: grade answers exactly as AgentBench does; see `grading`.
    kinds: kinds of generated questions; None for the default mix.
    num_rows: bounds of generated tables, inclusive.
    num_columns: likewise.
    num_tables: bounds of the number of tables that a question joins.
    num_tasks: length of train and of test.
  """

  name = "dbbench"
  mistakes = MISTAKES
  policies = POLICIES
  baseline = "named_cell"
  split_hint = "`source` adds AgentBench's files"
  _engine: Engine

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
    require_one_of(SYSTEM_PROMPTS, system_prompt=system_prompt)
    require_positive(
      max_rounds=max_rounds,
      max_result_chars=max_result_chars,
      statement_limit_s=statement_limit_s,
    )
    super().__init__(
      num_tasks=num_tasks, loaded=read_sets(source, load_problems)
    )
    self._rules = Rules(
      max_rounds=max_rounds,
      system_prompt=system_prompt,
      upstream_quirks=upstream_quirks,
    )
    self._generator = Generator(
      kinds=DEFAULT_KINDS if kinds is None else kinds,
      num_rows=num_rows,
      num_columns=num_columns,
      num_tables=num_tables,
    )
    limits: dict[str, Any] = {
      "max_result_chars": max_result_chars,
      "statement_limit_s": statement_limit_s,
    }
    self._engine = engine_of(
      engine,
      {
        "sqlite": functools.partial(_sqlite_engine, server, limits),
        "mariadb": functools.partial(_mariadb_engine, server, limits),
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
      yield DBSession(problem, database, self._rules, gold_hash=self._gold_hash)

  def training_information(self, task: Task) -> str:
    """Returns the gold statement and the gold answer, where they are known."""
    problem = self._problem(task)
    return "\n".join(filter(None, [problem.gold_sql, *problem.label]))

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Returns an expert; it makes mistakes in generated tasks only."""
    content = self.find(task)
    if isinstance(content, Problem):
      return expert_for_loaded(content, mistakes=mistakes)
    return expert_for_generated(content, seed=seed, mistakes=mistakes)

  def _problem(self, task: Task) -> Problem:
    content = self.find(task)
    return content if isinstance(content, Problem) else content.problem

  async def _gold_hash(self, problem: Problem) -> str:
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


def _sqlite_engine(server: str, limits: Mapping[str, Any]) -> Engine:
  if server:
    raise ConfigError(f"server={server!r} needs engine='mariadb'")
  return SQLiteEngine(**limits)


def _mariadb_engine(server: str, limits: Mapping[str, Any]) -> Engine:
  # Imported here because only this engine needs the driver.
  from environments.dbbench.engines.mariadb import MariaDBEngine

  return MariaDBEngine(server, **limits)
