"""A SPARQL endpoint over HTTP for tests: Oxigraph behind aiohttp."""

import asyncio
import contextlib
import json

import pyoxigraph
from aiohttp import web

from environments.knowledgegraph.engines.graph import XSD, Literal
from environments.knowledgegraph.engines.sparql import iri, strip_namespace

ESCAPES = str.maketrans(
  {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
)
RESULTS = pyoxigraph.QueryResultsFormat.JSON


def store_of(graph):
  """Loads a graph into Oxigraph."""
  store = pyoxigraph.Store()
  store.load(n_triples(graph), pyoxigraph.RdfFormat.N_TRIPLES)
  return store


def select(graph, query):
  """Returns the results of a query with one variable."""
  rows = store_of(graph).query(query)
  return {strip_namespace(row[0].value) for row in rows}


class Endpoint:
  """Answers and counts queries, or fails as `status` and `body` say."""

  def __init__(self, graph, *, max_rows=10_000):
    self._store = store_of(graph)
    self._max_rows = max_rows  # truncates silently, as Virtuoso does
    self.num_queries = 0
    self.status = 200
    self.body = None
    self.delay_s = 0.0

  async def answer(self, request):
    """Handles a query by POST with URL-encoded parameters."""
    self.num_queries += 1
    query = (await request.post())["query"]
    await asyncio.sleep(self.delay_s)
    if self.status != 200:
      return web.Response(status=self.status, text="no, thank you")
    if self.body is not None:
      return web.Response(text=self.body)
    try:
      results = await asyncio.to_thread(self._run, query)
    except SyntaxError as error:
      return web.Response(status=400, text=str(error))
    return web.Response(
      body=results, content_type="application/sparql-results+json"
    )

  def _run(self, query):
    body = json.loads(self._store.query(query).serialize(format=RESULTS))
    del body["results"]["bindings"][self._max_rows :]
    return json.dumps(body).encode()


@contextlib.asynccontextmanager
async def serving(endpoint):
  """Serves the endpoint, and yields its URL."""
  app = web.Application()
  app.router.add_post("/sparql", endpoint.answer)
  runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
  await runner.setup()
  site = web.TCPSite(runner, "127.0.0.1", 0)
  await site.start()
  try:
    port = runner.addresses[0][1]
    yield f"http://127.0.0.1:{port}/sparql"
  finally:
    await runner.cleanup()


def n_triples(graph):
  """Writes a graph as N-Triples, which every SPARQL store can load."""
  return "".join(
    f"{iri(subject)} {iri(relation)} {_n_triples_term(object_)} .\n"
    for subject, relation, object_ in graph
  )


def _n_triples_term(term):
  if not isinstance(term, Literal):
    return iri(term)
  text = f'"{term.text.translate(ESCAPES)}"'
  if term.language:
    return f"{text}@{term.language}"
  return f"{text}^^<{XSD}{term.datatype}>"
