"""Serves the page of a run and the JSON that it asks for; only reads.

Nothing of the run's process is needed: the server reads the run's folder, of a
run that is going on, or has ended, or was stopped. What takes long runs beside
the event loop.
"""

import asyncio
import dataclasses
import ipaddress
import json
import pathlib
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.errors import AgentRLError, ConfigError
from launch.config.chat import codec_of, read_chat
from launch.reports.html import TEMPLATES
from launch.storage.run_config import run_config
from launch.viewing.run_state import RunState
from launch.viewing.trajectory_index import (
  TrajectoryIndex,
  UnknownTrajectoryError,
)
from launch.viewing.trajectory_page import trajectory_to_page

PAGE = pathlib.Path(__file__).parent / "page"
# The page's own files, and nothing else: what a policy wrote cannot load or
# run anything, even if it were to become part of the page.
_POLICY = (
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
  "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
  "frame-ancestors 'none'"
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def page_file(name: str) -> str:
  """Returns one of the page's files; its colours are those of the report."""
  text = (PAGE / name).read_text("utf-8")
  if name == "viewer.css":
    return (TEMPLATES / "colours.css").read_text("utf-8") + text
  return text


class Viewer:
  """Answers the questions of the page about one run."""

  def __init__(self, run: pathlib.Path):
    """Raises `ConfigError` if `run` is not the folder of a run."""
    self._run = run
    self._index = TrajectoryIndex(run)
    self._state = RunState(run)
    self._codec: ChatCodec | None = None
    self._listed: dict[str, Any] = {}

  def listing(self) -> dict[str, Any]:
    """Returns the list of all kept trajectories."""
    listing = self._index.listing()
    if self._listed.get("tag") != listing.tag:  # asked for every few seconds
      self._listed = dataclasses.asdict(listing)
    return self._listed

  def now(self) -> dict[str, Any]:
    """Returns the newest numbers of the run."""
    return self._state.now()

  def curves(self) -> list[dict[str, str]]:
    """Returns the curves of the run as SVG."""
    return self._state.curves()

  def trajectory(self, id: str) -> dict[str, Any]:
    """Returns a trajectory. Raises `UnknownTrajectoryError`."""
    self._index.listing()  # it may have been kept since the page asked
    kept = self._index.trajectory(id)
    return trajectory_to_page(kept.trajectory, self._tokens(), kept.learned)

  def _tokens(self) -> ChatCodec | None:
    """Returns the run's tokenizer, or None before the run has made one."""
    if self._codec is None:
      config = run_config(self._run)
      try:
        self._codec = codec_of(self._run, read_chat(config))
      except ConfigError:
        return None
    return self._codec


def application(viewer: Viewer, host: str) -> web.Application:
  """Makes the routes, for browsers that name `host` or an address.

  A page elsewhere whose name was made to point to this machine would name its
  own host, and is refused.
  """
  app = web.Application(middlewares=[_guard(host)])
  answers: dict[str, Callable[[web.Request], Any]] = {
    "/api/trajectories": lambda request: viewer.listing(),
    "/api/now": lambda request: viewer.now(),
    "/api/curves": lambda request: viewer.curves(),
    "/api/trajectories/{id}": lambda request: viewer.trajectory(
      request.match_info["id"]
    ),
  }
  for path, answer in answers.items():
    app.router.add_get(path, _answered(answer))
  for path in ("/", "/viewer.css", "/viewer.js"):
    app.router.add_get(path, _file)
  return app


def _answered(
  answer: Callable[[web.Request], Any],
) -> Callable[[web.Request], Awaitable[web.Response]]:
  async def handle(request: web.Request) -> web.Response:
    try:
      body = await asyncio.to_thread(lambda: json.dumps(answer(request)))
    except UnknownTrajectoryError as error:
      return web.json_response({"message": str(error)}, status=404)
    except AgentRLError as error:
      return web.json_response({"message": str(error)}, status=500)
    tag = f'"{hash(body) & (2**64 - 1):016x}"'
    if request.headers.get("If-None-Match") == tag:
      return web.Response(status=304, headers={"ETag": tag})
    response = web.Response(
      text=body, content_type="application/json", headers={"ETag": tag}
    )
    response.enable_compression()
    return response

  return handle


async def _file(request: web.Request) -> web.Response:
  name = request.path.lstrip("/") or "viewer.html"
  return web.Response(
    text=await asyncio.to_thread(page_file, name),
    content_type=_TYPES[pathlib.PurePath(name).suffix],
  )


def _guard(host: str) -> Any:
  @web.middleware
  async def guard(
    request: web.Request,
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
  ) -> web.StreamResponse:
    if not _is_ours(request.url.host or "", host):
      return web.json_response(
        {"message": f"this server is not {request.url.host}: open {host}"},
        status=403,
      )
    response = await handler(request)
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "no-cache"
    return response

  return guard


def _is_ours(named: str, host: str) -> bool:
  if named in ("localhost", host):
    return True
  try:
    ipaddress.ip_address(named)
  except ValueError:
    return False
  return True
