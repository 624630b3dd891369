"""KnowledgeGraph: questions answered by walking a graph of facts.

Tasks are generated (splits train and test), or read from AgentBench's own file
(split dev). They run on a graph in memory, on Oxigraph in this process, or on
any SPARQL endpoint, such as a full Freebase.
"""

import contextlib
import functools
import pathlib
from collections.abc import AsyncIterator, Mapping, Sequence

from agentrl_jax.data.split import SPLITS
from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.interface import Environment, Expert, Session
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.agentbench import load_problems
from environments.knowledgegraph.calls import KnowledgeBase
from environments.knowledgegraph.expert import expert_for
from environments.knowledgegraph.generator import Generator
from environments.knowledgegraph.ontology import Ontology, load_ontology
from environments.knowledgegraph.problem import Scene
from environments.knowledgegraph.prompts import SYSTEM_PROMPTS
from environments.knowledgegraph.questions import KINDS
from environments.knowledgegraph.schema import ontology_of
from environments.knowledgegraph.session import KGSession, Rules
from environments.knowledgegraph.store import Engine, MemoryEngine
from environments.knowledgegraph.synthesis import synthesise

LOADED_SPLIT = "dev"
ENGINES = ("memory", "oxigraph", "sparql")
SYNTHESISED_CACHE = (
  512  # graphs kept at hand; the attempts of a group share one
)
SYNTHESISED = "synthesised"  # metric: 1 where the facts were made up to fit


class KnowledgeGraph(Environment):
  """Generated tasks; with `source`, also those of AgentBench's file.

  Args:
    source: path of AgentBench's dev.json, std.json or kg_rl_all.json.
    ontology: AgentBench's folder of that name, which `source` and `graph` need;
      by default the folder "ontology" beside `source`.
    graph: path of FB15k-237.tar.gz; train and test then ask about its facts.
    entity_names: path of entity2text.txt; by default the one beside `graph`.
    engine: "memory", "oxigraph" (in this process), "sparql" (an endpoint), or
      one that you made.
    server: the endpoint's URL.
    query_limit_s: seconds that one query may take on oxigraph or an endpoint.
    one_shot: whether a solved example comes first, as in AgentBench's std.
    kinds, num_hops, num_entities: see `Generator`.
  """

  name = "knowledgegraph"

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
    kinds: Sequence[str] = KINDS,
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
    self._generator = Generator(
      kinds=kinds,
      num_hops=num_hops,
      num_entities=num_entities,
      max_calls=max_rounds - 1,
    )
    self._loaded = load_problems(source) if source else ()
    self._ontology = _ontology(source, ontology)
    self._synthesised = functools.lru_cache(SYNTHESISED_CACHE)(self._synthesise)
    self._engine = MemoryEngine()

  def indices(self, split: str) -> Sequence[int]:
    """Train and test are as long as asked for; dev is the source's rows."""
    if split in SPLITS:
      return range(self._num_tasks)
    if split == LOADED_SPLIT and self._loaded:
      return range(len(self._loaded))
    raise ConfigError(self._no_split(split))

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """A session on the task's facts; the seed changes nothing."""
    del seed
    scene = self._scene(task)
    store = await self._engine.store(scene.graph)
    base = KnowledgeBase(
      store, scene.ontology, upstream_quirks=self._upstream_quirks
    )
    yield KGSession(scene.problem, base, self._rules)

  async def close(self) -> None:
    """Frees the engine."""
    await self._engine.close()

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Plays the gold calls; it knows `expert.MISTAKES`."""
    problem = self._scene(task).problem
    return expert_for(problem, seed=seed, mistakes=mistakes)

  def _scene(self, task: Task) -> Scene:
    if task.split in SPLITS:
      return self._generator.generate(task.split, task.index)
    if task.split != LOADED_SPLIT or not self._loaded:
      raise ConfigError(self._no_split(task.split))
    if not 0 <= task.index < len(self._loaded):
      raise ConfigError(
        f"{task} is outside the {len(self._loaded)} problems of `source`"
      )
    return self._synthesised(task.index)

  def _synthesise(self, index: int) -> Scene:
    problem = self._loaded[index]
    return Scene(problem, synthesise(problem, self._ontology), self._ontology)

  def _no_split(self, split: str) -> str:
    known = [*SPLITS, *([LOADED_SPLIT] if self._loaded else [])]
    hint = "" if self._loaded else "; dev needs `source`, AgentBench's file"
    return (
      f"KnowledgeGraph has no split {split!r}, only {', '.join(known)}{hint}"
    )


def _ontology(source: str, folder: str) -> Ontology:
  if not folder and source:
    folder = str(pathlib.Path(source).parent / "ontology")
  return load_ontology(folder) if folder else ontology_of(())


def _require_positive(**options: float) -> None:
  for key, value in options.items():
    if value <= 0:
      raise ConfigError(f"{key}={value} must be above 0")
