"""DBBench: questions about a database, answered with SQL.

Tasks are generated (splits train and test) or loaded from AgentBench's file
(split dev). They run on SQLite in memory or on a MariaDB server.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence

from agentrl_jax.data.split import LOADED_SPLIT, SPLITS
from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.interface import Environment, Expert, Session
from agentrl_jax.env.scripted import ScriptedPolicies
from agentrl_jax.errors import ConfigError
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

ENGINES = ("sqlite", "mariadb")
GENERATED_CACHE = 4096  # tasks; the episodes of a group share one


class DBBench(Environment):
  """AgentBench's DBBench, with AgentBench's defaults.

  Args:
    source: AgentBench's file, whose rows become the split dev.
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
    """Returns `num_tasks` indices for train and test, all rows for dev."""
    if split in SPLITS:
      return range(self._num_tasks)
    if split == LOADED_SPLIT and self._loaded:
      return range(len(self._loaded))
    raise ConfigError(self._no_split(split))

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session with a database of its own; the seed has no effect."""
    del seed
    problem = self._problem(task)
    async with self._engine.open(problem.tables) as database:
      yield DBSession(problem, database, self._rules, gold_hash=self._gold_hash)

  async def close(self) -> None:
    """Closes the engine, which stops the server that it started, if any."""
    await self._engine.close()

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Returns an expert; it makes mistakes in generated tasks only."""
    if task.split == LOADED_SPLIT:
      return expert_for_loaded(self._problem(task), mistakes=mistakes)
    return expert_for_generated(
      self._generated(task), seed=seed, mistakes=mistakes
    )

  def scripted_policies(self) -> ScriptedPolicies:
    """Returns baselines that ignore the question; see `scripted`."""
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
    """Returns the hash of fresh tables after the gold SQL has run."""
    async with self._engine.open(problem.tables) as database:
      await database.execute(problem.gold_sql)
      return await database.hash_of(problem.tables)

  def _no_split(self, split: str) -> str:
    known = [*SPLITS, *([LOADED_SPLIT] if self._loaded else [])]
    hint = "" if self._loaded else "; dev needs `source`, AgentBench's file"
    return f"DBBench has no split {split!r}, only {', '.join(known)}{hint}"


def _kinds(kinds: Sequence[str] | None) -> Sequence[str]:
  """Returns a tuple, or the text itself, which the generator refuses."""
  if kinds is None:
    return DEFAULT_KINDS
  return kinds if isinstance(kinds, str) else tuple(kinds)


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
  # Imported here because only this engine needs the driver.
  from environments.dbbench.engines.mariadb import MariaDBEngine

  return MariaDBEngine(
    server,
    max_result_chars=max_result_chars,
    statement_limit_s=statement_limit_s,
  )
