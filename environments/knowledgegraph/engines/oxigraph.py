"""Oxigraph, a SPARQL store, in this process.

Each graph is loaded once and shared by its sessions, who cannot write. Queries
run in threads. One that is too slow is given up between two rows; inside a sort
or a count Oxigraph cannot be stopped, and its thread ends when it ends.
"""

import asyncio
import itertools
import time
import weakref

import pyoxigraph

from environments.knowledgegraph.engines import rdf, sparql
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.program import Program
from environments.knowledgegraph.engines.store import (
  MAX_ROWS,
  TOO_SLOW,
  Engine,
  QueryRefused,
  Store,
)


class OxigraphEngine(Engine):
  """Stores by graph; those of graphs that nobody has any more are dropped."""

  def __init__(self, *, query_limit_s: float):
    self._query_limit_s = query_limit_s
    self._stores: weakref.WeakKeyDictionary[Graph, pyoxigraph.Store] = (
      weakref.WeakKeyDictionary()
    )
    self._loading = asyncio.Lock()

  async def store(self, graph: Graph) -> Store:
    """A store with these facts; waits while they are loaded."""
    async with self._loading:
      loaded = self._stores.get(graph)
      if loaded is None:
        loaded = await asyncio.to_thread(_load, graph)
        self._stores[graph] = loaded
    return OxigraphStore(loaded, query_limit_s=self._query_limit_s)

  async def close(self) -> None:
    """Drops all stores."""
    self._stores.clear()


class OxigraphStore(Store):
  """One loaded graph."""

  def __init__(self, store: pyoxigraph.Store, *, query_limit_s: float):
    self._store = store
    self._query_limit_s = query_limit_s

  async def predicates(self, program: Program) -> frozenset[str]:
    """See `Store`; waits for the query."""
    return await self._select(sparql.predicates_query(program))

  async def answers(self, program: Program) -> frozenset[str]:
    """See `Store`; waits for the query."""
    return await self._select(sparql.answers_query(program))

  async def _select(self, query: str) -> frozenset[str]:
    stop_at = time.monotonic() + self._query_limit_s
    try:
      async with asyncio.timeout_at(
        asyncio.get_running_loop().time() + self._query_limit_s
      ):
        return await asyncio.to_thread(self._run, query, stop_at)
    except TimeoutError as error:
      raise QueryRefused(
        TOO_SLOW.format(seconds=self._query_limit_s)
      ) from error

  def _run(self, query: str, stop_at: float) -> frozenset[str]:
    found: set[str] = set()
    results = self._store.query(query)
    if not isinstance(results, pyoxigraph.QuerySolutions):
      raise TypeError(f"not a SELECT: {query}")
    for row in itertools.islice(results, MAX_ROWS):
      found.add(sparql.bare(row[0].value))
      if time.monotonic() > stop_at:
        raise TimeoutError
    return frozenset(found)


def _load(graph: Graph) -> pyoxigraph.Store:
  store = pyoxigraph.Store()
  store.load(rdf.n_triples(graph), pyoxigraph.RdfFormat.N_TRIPLES)
  return store
