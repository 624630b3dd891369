"""The Oxigraph engine: a SPARQL store in this process.

Each graph is loaded once, and its sessions share it; they cannot write. Queries
run in threads. A query that is too slow is abandoned between two rows. Oxigraph
cannot be stopped inside a sort or a count, so such a thread ends later.
"""

import asyncio
import itertools
import time
import weakref

import pyoxigraph

from environments.knowledgegraph.engines import sparql
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.program import Program
from environments.knowledgegraph.engines.store import (
  MAX_ROWS,
  TOO_SLOW,
  QueryRefused,
  Store,
  StoreEngine,
)


class OxigraphEngine(StoreEngine):
  """One Oxigraph store per graph; it is dropped together with the graph."""

  def __init__(self, *, query_limit_s: float):
    self._query_limit_s = query_limit_s
    self._stores: weakref.WeakKeyDictionary[Graph, pyoxigraph.Store] = (
      weakref.WeakKeyDictionary()
    )
    self._loading = asyncio.Lock()

  async def store(self, graph: Graph) -> Store:
    """Opens a store of the graph; waits while the facts are loaded."""
    async with self._loading:
      store = self._stores.get(graph)
      if store is None:
        store = await asyncio.to_thread(_load, graph)
        self._stores[graph] = store
    return OxigraphStore(store, query_limit_s=self._query_limit_s)

  async def close(self) -> None:
    self._stores.clear()


class OxigraphStore(Store):
  """The facts of one graph, which sessions share."""

  def __init__(self, store: pyoxigraph.Store, *, query_limit_s: float):
    self._store = store
    self._query_limit_s = query_limit_s

  async def predicates(self, program: Program) -> frozenset[str]:
    return await self._select(sparql.predicates_query(program))

  async def answers(self, program: Program) -> frozenset[str]:
    return await self._select(sparql.answers_query(program))

  async def _select(self, query: str) -> frozenset[str]:
    deadline = time.monotonic() + self._query_limit_s
    try:
      async with asyncio.timeout(self._query_limit_s):
        return await asyncio.to_thread(self._run, query, deadline)
    except TimeoutError as error:
      raise QueryRefused(
        TOO_SLOW.format(seconds=self._query_limit_s)
      ) from error

  def _run(self, query: str, deadline: float) -> frozenset[str]:
    values: set[str] = set()
    results = self._store.query(query)
    if not isinstance(results, pyoxigraph.QuerySolutions):
      raise TypeError(f"not a SELECT: {query}")
    for row in itertools.islice(results, MAX_ROWS):
      values.add(sparql.strip_namespace(row[0].value))
      if time.monotonic() > deadline:
        raise TimeoutError
    return frozenset(values)


def _load(graph: Graph) -> pyoxigraph.Store:
  store = pyoxigraph.Store()
  store.load(sparql.n_triples(graph), pyoxigraph.RdfFormat.N_TRIPLES)
  return store
