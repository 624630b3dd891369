"""Where facts are kept, and programs answered: one interface, three engines.

A store that cannot be reached raises `EnvironmentFault`. A query that it will
not run, or not within the time allowed, is the policy's doing: `QueryRefused`,
whose text the policy is told.
"""

import abc

from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.memory import Evaluation
from environments.knowledgegraph.engines.program import Program

MAX_ROWS = 20_000  # read of one result; no question has so many answers
TOO_SLOW = "the query did not finish within {seconds} seconds"


class QueryRefused(Exception):
  """The store does not run this query; its text is for the policy."""


class Store(abc.ABC):
  """Facts, as one session sees them; it holds nothing that must be freed."""

  @abc.abstractmethod
  async def predicates(self, program: Program) -> frozenset[str]:
    """The relations and attributes of the answers of what is no count."""

  @abc.abstractmethod
  async def answers(self, program: Program) -> frozenset[str]:
    """The texts of the program's answers."""


class Engine(abc.ABC):
  """A maker of stores."""

  @abc.abstractmethod
  async def store(self, graph: Graph) -> Store:
    """A store of these facts, or of those that the engine has."""

  @abc.abstractmethod
  async def close(self) -> None:
    """Frees what the engine holds; it may not be used again."""


class MemoryEngine(Engine):
  """Graphs in this process; never waits."""

  async def store(self, graph: Graph) -> Store:
    """See `Engine`."""
    return MemoryStore(graph)

  async def close(self) -> None:
    """Nothing is held."""


class MemoryStore(Store):
  """A graph, and what was asked of it in one session."""

  def __init__(self, graph: Graph):
    self._evaluation = Evaluation(graph)

  async def predicates(self, program: Program) -> frozenset[str]:
    """See `Store`."""
    return self._evaluation.predicates(program)

  async def answers(self, program: Program) -> frozenset[str]:
    """See `Store`."""
    return self._evaluation.answers(program)
