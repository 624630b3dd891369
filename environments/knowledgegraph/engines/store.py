"""Interface of the engines: stores of facts that answer programs.

A store that cannot be reached raises `EnvironmentFault`. A query that the store
rejects, or does not finish in time, is an error of the policy: `QueryRefused`.
"""

import abc

from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.program import Program

MAX_ROWS = 20_000  # read of one result; no question has so many answers
TOO_SLOW = "the query did not finish within {seconds} seconds"


class QueryRefused(Exception):
  """The store does not run this query; the policy reads the message."""


class Store(abc.ABC):
  """The facts of one session; a store holds no resource to be freed."""

  @abc.abstractmethod
  async def predicates(self, program: Program) -> frozenset[str]:
    """Returns the relations and attributes of the answers.

    The program is no count. Waits for the query.
    """

  @abc.abstractmethod
  async def answers(self, program: Program) -> frozenset[str]:
    """Returns the texts of the program's answers. Waits for the query."""


class StoreEngine(abc.ABC):
  """A factory of stores."""

  @abc.abstractmethod
  async def store(self, graph: Graph) -> Store:
    """Opens a store of these facts, or of the engine's own facts."""

  async def close(self) -> None:  # noqa: B027 - memory has none
    """Frees the engine's resources; the engine may not be used again."""
