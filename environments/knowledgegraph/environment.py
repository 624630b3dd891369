"""KnowledgeGraph: answers questions with queries to a graph of facts.

Tasks are generated (splits train and test), or read from AgentBench's own file
(split dev). Queries run on a graph in memory, on Oxigraph in this process, or
on any SPARQL endpoint, such as a full Freebase.
"""

import contextlib
import functools
import pathlib
from collections.abc import AsyncIterator, Mapping, Sequence

from agentrl_jax.data.split import LOADED_SPLIT, SPLITS
from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.interface import Environment, Expert, Session
from agentrl_jax.env.scripted import ScriptedPolicies
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.calls import KnowledgeBase
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.memory import MemoryEngine
from environments.knowledgegraph.engines.store import Engine
from environments.knowledgegraph.expert import MISTAKES, KGExpert
from environments.knowledgegraph.generation.freebase import load_facts
from environments.knowledgegraph.generation.generator import (
  FactGenerator,
  Generator,
  WorldGenerator,
)
from environments.knowledgegraph.generation.synthesis import synthesise
from environments.knowledgegraph.generation.themes import ontology_of
from environments.knowledgegraph.problem import (
  Instance,
  Ontology,
  load_ontology,
  load_problems,
)
from environments.knowledgegraph.prompts import SYSTEM_PROMPTS
from environments.knowledgegraph.scripted import POLICIES
from environments.knowledgegraph.session import KGSession, Rules

ENGINES = ("memory", "oxigraph", "sparql")
SYNTHESISED_CACHE = 512  # graphs; the episodes of a group share one


class KnowledgeGraph(Environment):
  """Generated tasks and, with `source`, those of AgentBench's file.

  Args:
    source: path of AgentBench's dev.json, std.json or kg_rl_all.json.
    ontology: AgentBench's folder of that name, which `source` and `graph` need;
      by default the folder "ontology" beside `source`.
    graph: path of FB15k-237.tar.gz; train and test then ask about its facts.
    entity_names: path of entity2text.txt; by default the one beside `graph`.
    engine: "memory", "oxigraph" (in this process), "sparql" (an endpoint), or
      an `Engine` of your own.
    server: the endpoint's URL.
    query_limit_s: timeout of one query on oxigraph or an endpoint.
    one_shot: whether a solved example comes first, as in AgentBench's std.
    kinds, num_hops, num_entities: see `Generator`.
  """

  name = "knowledgegraph"
  mistakes = MISTAKES

  def __init__(
    self,
    *,
    source: str = "",
    ontology: str = "",
    graph: str = "",
    entity_names: str = "",
    engine: str | Engine = "memory",
    server: str = "",
    max_rounds: int = 15,
    query_limit_s: float = 30.0,
    system_prompt: str = "upstream",
    one_shot: bool = False,
    upstream_quirks: bool = False,
    kinds: Sequence[str] = (),
    num_hops: tuple[int, int] = (1, 2),
    num_entities: tuple[int, int] = (8, 14),
    num_tasks: int = 1 << 20,
  ):
    if system_prompt not in SYSTEM_PROMPTS:
      raise ConfigError(
        f"system_prompt={system_prompt!r} is not one of "
        f"{', '.join(SYSTEM_PROMPTS)}"
      )
    _require_positive(
      max_rounds=max_rounds, query_limit_s=query_limit_s, num_tasks=num_tasks
    )
    self._rules = Rules(
      max_rounds=max_rounds, system_prompt=system_prompt, one_shot=one_shot
    )
    self._upstream_quirks = upstream_quirks
    self._num_tasks = num_tasks
    self._loaded = load_problems(source) if source else ()
    self._ontology = _ontology(source, graph, ontology)
    self._generator: Generator = (
      FactGenerator(
        kinds=kinds,
        num_hops=num_hops,
        max_calls=max_rounds - 1,
        world=load_facts(graph, entity_names, self._ontology),
        ontology=self._ontology,
      )
      if graph
      else WorldGenerator(
        kinds=kinds,
        num_hops=num_hops,
        max_calls=max_rounds - 1,
        num_entities=num_entities,
      )
    )
    self._synthesised = functools.lru_cache(SYNTHESISED_CACHE)(self._synthesise)
    self.needs_one_loop = engine != "memory"
    self._engine = (
      engine
      if isinstance(engine, Engine)
      else _engine(engine, server, query_limit_s=query_limit_s)
    )
    self._has_facts = engine == "sparql"  # its own, for every task
    self._has_graph = bool(graph)

  def indices(self, split: str) -> Sequence[int]:
    """Returns the task indices: of `num_tasks`, or the source's problems."""
    if split not in self._splits():
      raise ConfigError(self._no_split(split))
    return range(
      len(self._loaded) if split == LOADED_SPLIT else self._num_tasks
    )

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session on the task's facts; the seed has no effect."""
    del seed
    instance = self._instance(task)
    store = await self._engine.store(instance.graph)
    base = KnowledgeBase(
      store, instance.ontology, upstream_quirks=self._upstream_quirks
    )
    yield KGSession(
      instance.problem,
      base,
      self._rules,
      is_synthesised=instance.is_synthesised,
    )

  async def close(self) -> None:
    await self._engine.close()

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    problem = self._instance(task).problem
    return KGExpert(problem, seed=seed, mistakes=mistakes)

  def scripted_policies(self) -> ScriptedPolicies:
    return POLICIES

  def _instance(self, task: Task) -> Instance:
    if task.split not in self._splits():
      raise ConfigError(self._no_split(task.split))
    if task.split != LOADED_SPLIT:
      return self._generator.generate(task.split, task.index)
    if not 0 <= task.index < len(self._loaded):
      raise ConfigError(
        f"{task} is outside the {len(self._loaded)} problems of `source`"
      )
    if self._has_facts:
      return Instance(self._loaded[task.index], Graph(), self._ontology)
    return self._synthesised(task.index)

  def _synthesise(self, index: int) -> Instance:
    problem = self._loaded[index]
    graph = synthesise(problem, self._ontology)
    return Instance(problem, graph, self._ontology, is_synthesised=True)

  def _splits(self) -> Sequence[str]:
    """Returns the splits; no endpoint has the facts of generated worlds."""
    generated = () if self._has_facts and not self._has_graph else SPLITS
    return (*generated, *((LOADED_SPLIT,) if self._loaded else ()))

  def _no_split(self, split: str) -> str:
    return (
      f"KnowledgeGraph has no split {split!r}; its splits are "
      f"{', '.join(self._splits()) or 'none'}. dev needs AgentBench's file as "
      "`source`; train and test need facts to ask about, which with "
      "engine='sparql' are those of `graph`"
    )


def _engine(kind: str, server: str, *, query_limit_s: float) -> Engine:
  if kind not in ENGINES:
    raise ConfigError(f"engine={kind!r} is not one of {', '.join(ENGINES)}")
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


def _ontology(source: str, graph: str, folder: str) -> Ontology:
  if not folder and source:
    folder = str(pathlib.Path(source).parent / "ontology")
  if not folder and graph:
    raise ConfigError(
      f"graph={graph!r} needs `ontology`, AgentBench's folder of that name, "
      "which has the reverse relations and the types of objects"
    )
  return load_ontology(folder) if folder else ontology_of(())


def _require_positive(**options: float) -> None:
  for key, value in options.items():
    if value <= 0:
      raise ConfigError(f"{key}={value} must be above 0")
