"""KnowledgeGraph: answers questions with queries to a graph of facts.

Tasks are generated (splits train and test), with graphs in memory, or read from
AgentBench's own file (split dev), and asked of a SPARQL endpoint with Freebase.
"""

import contextlib
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session
from agentrl_jax.env.task_sets import find_sets, read_sets
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.calls import KnowledgeBase
from environments.knowledgegraph.engines.endpoint import EndpointEngine
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.memory import MemoryEngine
from environments.knowledgegraph.engines.store import StoreEngine
from environments.knowledgegraph.expert import MISTAKES, KGExpert
from environments.knowledgegraph.generation.generator import WorldGenerator
from environments.knowledgegraph.generation.themes import ontology_of
from environments.knowledgegraph.problem import (
  Instance,
  KGProblem,
  Ontology,
  load_ontology,
  load_problems,
)
from environments.knowledgegraph.session import KGSession
from environments.options import KnowledgeGraphOptions


class KnowledgeGraph(IndexedEnvironment[Instance]):
  """Generated tasks and, with `source`, those of AgentBench's file.

  Its keyword arguments are the fields of `KnowledgeGraphOptions`.
  """

  name = "knowledgegraph"
  mistakes = MISTAKES
  cache_size = 512
  split_hint = (
    "`source` adds AgentBench's files; with `server` there are no generated "
    "tasks"
  )
  _engine: StoreEngine
  __signature__ = inspect.signature(KnowledgeGraphOptions)

  def __init__(self, **keywords: Any):
    self._options = options = KnowledgeGraphOptions(**keywords)
    super().__init__(
      num_tasks=options.num_tasks,
      loaded=read_sets(options.source, load_problems),
    )
    self._ontology = _ontology(options)
    self._generator = WorldGenerator(options)
    self.needs_one_loop = bool(options.server)
    self._engine = _engine(options)

  def splits(self) -> Mapping[str, int]:
    """Leaves out generated worlds, whose facts an endpoint does not have."""
    splits = super().splits()
    if self._options.server:
      splits = {
        s: n for s, n in splits.items() if s not in SPLITS or s in self._loaded
      }
    return splits

  def generate(self, split: str, index: int) -> Instance:
    """Draws a question about a generated world."""
    return self._generator.generate(split, index)

  def load(self, loaded: KGProblem) -> Instance:
    """Returns a loaded question, whose facts the endpoint has."""
    return Instance(loaded, Graph(), self._ontology)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session on the task's facts; the seed has no effect."""
    del seed
    instance = self.find(task)
    store = await self._engine.store(instance.graph)
    base = KnowledgeBase(
      store, instance.ontology, upstream_quirks=self._options.upstream_quirks
    )
    yield KGSession(instance.problem, base, self._options)

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    problem = self.find(task).problem
    return KGExpert(problem, seed=seed, mistakes=mistakes)


def _engine(options: KnowledgeGraphOptions) -> StoreEngine:
  if not options.server:
    if options.source:
      raise ConfigError(
        f"source={options.source!r} asks about Freebase: set `server` to the "
        "URL of a SPARQL endpoint that has it"
      )
    return MemoryEngine()
  if not options.server.startswith(("http://", "https://")):
    raise ConfigError(
      f"server={options.server!r} must begin with http:// or https://"
    )
  return EndpointEngine(options.server, query_limit_s=options.query_limit_s)


def _ontology(options: KnowledgeGraphOptions) -> Ontology:
  folder = options.ontology
  for path in () if folder else find_sets(options.source).values():
    beside = path if path.is_dir() else path.parent
    folder = folder or str(beside / "ontology")
  return load_ontology(folder) if folder else ontology_of(())
