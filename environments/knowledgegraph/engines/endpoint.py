"""The endpoint engine: any SPARQL server by its URL, such as Virtuoso.

Long results are read in pages, because servers truncate them silently (Virtuoso
at 10,000 rows). An endpoint that cannot be reached, or sends something other
than results, is an `EnvironmentFault`. A query that it rejects, or does not
finish in time, is an error of the policy.
"""

import json
from typing import Any

import aiohttp

from agentrl_jax.errors import EnvironmentFault
from environments.knowledgegraph.engines import sparql, store
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.program import Program

CONNECT_LIMIT_S = 10.0
PAGE_ROWS = 1000  # below the limit of every server
MAX_ERROR_CHARS = 400  # of an endpoint's error that are repeated
RESULTS = "application/sparql-results+json"
# HTTP statuses and AgentBench's messages for them; it exits on all others.
REFUSALS = {
  400: "QueryBadFormed: A bad request has been sent to the endpoint: probably "
  "the SPARQL query is badly formed",
  414: "URITooLong: The URI requested by the client is longer than the server "
  "is willing to interpret",
  500: "EndPointInternalError: The endpoint returned the HTTP status code 500",
}


class EndpointEngine(store.StoreEngine):
  """One endpoint for all sessions, which share its connections."""

  def __init__(self, url: str, *, query_limit_s: float):
    self._url = url
    self._query_limit_s = query_limit_s
    self._client: aiohttp.ClientSession | None = None

  async def store(self, graph: Graph) -> store.Store:
    """Opens the endpoint's own facts, and ignores the graph."""
    del graph
    if self._client is None:
      self._client = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(
          total=self._query_limit_s, sock_connect=CONNECT_LIMIT_S
        ),
        headers={"Accept": RESULTS},
      )
    return EndpointStore(
      self._client, self._url, query_limit_s=self._query_limit_s
    )

  async def close(self) -> None:
    if self._client is not None:
      await self._client.close()


class EndpointStore(store.Store):
  """The facts of the endpoint, over HTTP."""

  def __init__(
    self, client: aiohttp.ClientSession, url: str, *, query_limit_s: float
  ):
    self._client = client
    self._url = url
    self._query_limit_s = query_limit_s

  async def predicates(self, program: Program) -> frozenset[str]:
    return await self._select(sparql.predicates_query(program), "?name")

  async def answers(self, program: Program) -> frozenset[str]:
    query = sparql.answers_query(program)
    return await self._select(query, sparql.RESULT)

  async def _select(self, query: str, variable: str) -> frozenset[str]:
    """Reads all rows: in one query if they fit in a page, else sorted pages."""
    rows = await self._rows(f"{query} LIMIT {PAGE_ROWS}")
    if len(rows) < PAGE_ROWS:
      return frozenset(rows)
    pages: list[str] = []
    while len(rows) >= PAGE_ROWS and len(pages) < store.MAX_ROWS:
      rows = await self._rows(
        f"SELECT {variable} WHERE {{ {{ {query} ORDER BY {variable} }} }} "
        f"LIMIT {PAGE_ROWS} OFFSET {len(pages)}"
      )
      pages += rows
    return frozenset(pages)

  async def _rows(self, query: str) -> list[str]:
    try:
      async with self._client.post(self._url, data={"query": query}) as reply:
        body = await reply.read()
        if reply.status in REFUSALS:
          raise store.QueryRefused(
            f"{REFUSALS[reply.status]}. \n\nResponse:\n"
            f"{body[:MAX_ERROR_CHARS]!r}"
          )
        if reply.status != 200:
          raise self._fault(f"answered with HTTP status {reply.status}")
        return _values(json.loads(body))
    except (aiohttp.ServerTimeoutError, aiohttp.ClientError) as error:
      raise self._fault(f"cannot be reached ({error!r})") from error
    except (ValueError, LookupError, TypeError) as error:
      raise self._fault(f"sent no results in JSON ({error!r})") from error
    except TimeoutError as error:
      raise store.QueryRefused(
        store.TOO_SLOW.format(seconds=self._query_limit_s)
      ) from error

  def _fault(self, reason: str) -> EnvironmentFault:
    return EnvironmentFault(
      f"the SPARQL endpoint {self._url} {reason}; check that it is up, and "
      "that `server` is its URL"
    )


def _values(results: Any) -> list[str]:
  """Returns the value of the only variable in each row."""
  rows: list[str] = []
  for row in results["results"]["bindings"]:
    (binding,) = row.values()
    rows.append(sparql.strip_namespace(str(binding["value"])))
  return rows
