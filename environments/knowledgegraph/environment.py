"""KnowledgeGraph: answers questions with queries to a graph of facts.

Tasks are generated (splits train and test), or read from AgentBench's own file
(split dev). Queries run on a graph in memory, on Oxigraph in this process, or
on any SPARQL endpoint, such as a full Freebase.
"""

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session
from agentrl_jax.env.options import engine_of
from agentrl_jax.env.task_sets import find_sets, read_sets
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.calls import KnowledgeBase
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.memory import MemoryEngine
from environments.knowledgegraph.engines.store import StoreEngine
from environments.knowledgegraph.expert import MISTAKES, KGExpert
from environments.knowledgegraph.generation.freebase import load_facts
from environments.knowledgegraph.generation.generator import (
  FactGenerator,
  ProblemGenerator,
  WorldGenerator,
)
from environments.knowledgegraph.generation.synthesis import synthesise
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
    "`source` adds AgentBench's files; train and test need facts to ask about, "
    "which with engine='sparql' are those of `graph`"
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
    self._generator = _generator(options, self._ontology)
    self.needs_one_loop = options.engine != "memory"
    self._engine = engine_of(
      options.engine,
      {
        kind: functools.partial(
          _engine, kind, options.server, options.query_limit_s
        )
        for kind in ("memory", "oxigraph", "sparql")
      },
    )
    self._has_facts = options.engine == "sparql"  # its own, for every task

  def splits(self) -> Mapping[str, int]:
    """Leaves out generated worlds where an endpoint has facts of its own."""
    splits = super().splits()
    if self._has_facts and not self._options.graph:
      splits = {
        s: n for s, n in splits.items() if s not in SPLITS or s in self._loaded
      }
    return splits

  def generate(self, split: str, index: int) -> Instance:
    """Draws a question about a generated world or the facts of `graph`."""
    return self._generator.generate(split, index)

  def load(self, loaded: KGProblem) -> Instance:
    """Synthesises facts for a loaded question, unless the endpoint has them."""
    if self._has_facts:
      return Instance(loaded, Graph(), self._ontology)
    graph = synthesise(loaded, self._ontology)
    return Instance(loaded, graph, self._ontology, is_synthesised=True)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session on the task's facts; the seed has no effect."""
    del seed
    instance = self.find(task)
    store = await self._engine.store(instance.graph)
    base = KnowledgeBase(
      store, instance.ontology, upstream_quirks=self._options.upstream_quirks
    )
    yield KGSession(
      instance.problem,
      base,
      self._options,
      is_synthesised=instance.is_synthesised,
    )

  def training_information(self, task: Task) -> str:
    """Returns the gold calls and the answers."""
    problem = self.find(task).problem
    calls = [f"{c.name}({', '.join(c.arguments)})" for c in problem.gold_calls]
    return "\n".join([*calls, *sorted(problem.answers)])

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    problem = self.find(task).problem
    return KGExpert(problem, seed=seed, mistakes=mistakes)


def _engine(kind: str, server: str, query_limit_s: float) -> StoreEngine:
  if (kind == "sparql") != bool(server):
    raise ConfigError(
      f"engine={kind!r} with server={server!r}: engine='sparql', and no other, "
      "needs as server the URL of an endpoint, such as "
      "http://localhost:3001/sparql"
    )
  if server and not server.startswith(("http://", "https://")):
    raise ConfigError(f"server={server!r} must begin with http:// or https://")
  if kind == "memory":
    return MemoryEngine()
  # The other engines need packages that may be missing.
  if kind == "oxigraph":
    from environments.knowledgegraph.engines.oxigraph import OxigraphEngine

    return OxigraphEngine(query_limit_s=query_limit_s)
  from environments.knowledgegraph.engines.endpoint import EndpointEngine

  return EndpointEngine(server, query_limit_s=query_limit_s)


def _generator(
  options: KnowledgeGraphOptions, ontology: Ontology
) -> ProblemGenerator:
  if not options.graph:
    return WorldGenerator(options)
  world = load_facts(options.graph, options.entity_names, ontology)
  return FactGenerator(options, world, ontology)


def _ontology(options: KnowledgeGraphOptions) -> Ontology:
  graph, folder = options.graph, options.ontology
  for path in () if folder else find_sets(options.source).values():
    beside = path if path.is_dir() else path.parent
    folder = folder or str(beside / "ontology")
  if not folder and graph:
    raise ConfigError(
      f"graph={graph!r} needs `ontology`, AgentBench's folder of that name, "
      "which has the reverse relations and the types of objects"
    )
  return load_ontology(folder) if folder else ontology_of(())
