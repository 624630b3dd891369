"""Serves the page of a run and the JSON that it asks for, or writes both.

Nothing of the run's process is needed: the server reads the run's folder, of a
run that is going on, or has ended, or was stopped. What takes long runs beside
the event loop.
"""

import asyncio
import ipaddress
import os
import pathlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.pretrained import ChatConfig
from agentrl_jax.errors import AgentRLError, ConfigError
from launch.config.chat import codec_of
from launch.reports.episodes import trajectory_page
from launch.reports.html import (
  page_json,
  viewer_chunks,
  viewer_page,
  viewer_script,
)
from launch.reports.schema import TrajectoryPage
from launch.storage.run_config import run_config
from launch.viewing.run_state import RunState
from launch.viewing.trajectory_index import (
  TrajectoryIndex,
  UnknownTrajectoryError,
)

# The page's own files, and nothing else: what a policy wrote cannot load or
# run anything, even if it were to become part of the page.
_POLICY = (
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
  "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
  "frame-ancestors 'none'"
)
_FILES = {"/": "text/html", "/viewer.js": "text/javascript"}


class Viewer:
  """Answers the questions of the page about one run."""

  def __init__(self, run: pathlib.Path):
    """Raises `ConfigError` if `run` is not the folder of a run."""
    self._run = run
    self._index = TrajectoryIndex(run)
    self._codec: ChatCodec | None = None
    state = RunState(run)
    self.kept = self._index.trajectory
    self.listing, self.now, self.curves = (
      self._index.listing,
      state.now,
      state.curves,
    )

  def trajectory(self, id: str) -> TrajectoryPage:
    """Returns a trajectory. Raises `UnknownTrajectoryError`."""
    self._index.listing()  # it may have been kept since the page asked
    kept = self.kept(id)
    return trajectory_page(kept.trajectory, self._tokens(), kept.learned)

  def _tokens(self) -> ChatCodec | None:
    """Returns the run's tokenizer, or None before the run has made one."""
    if self._codec is None:
      config = run_config(self._run)
      try:
        self._codec = codec_of(self._run, ChatConfig(**config.chat.to_dict()))
      except ConfigError:
        return None
    return self._codec


def write_file(viewer: Viewer, path: pathlib.Path) -> int:
  """Writes the page in one step; returns its size in bytes."""
  partial = path.with_name(path.name + ".partial")
  with partial.open("w", encoding="utf-8") as file:
    file.writelines(viewer_chunks(_answers(viewer)))
    file.flush()
    os.fsync(file.fileno())
  partial.replace(path)
  return path.stat().st_size


def _answers(viewer: Viewer) -> Iterator[tuple[str, object]]:
  """Yields each question that the page may ask, and its answer."""
  listing = viewer.listing()
  yield "trajectories", listing
  yield "now", viewer.now()
  yield "curves", viewer.curves()
  for listed in listing.trajectories:
    yield f"trajectories/{listed.id}", viewer.trajectory(listed.id)


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
  for path in _FILES:
    app.router.add_get(path, _file)
  return app


def _answered(
  answer: Callable[[web.Request], Any],
) -> Callable[[web.Request], Awaitable[web.Response]]:
  async def handle(request: web.Request) -> web.Response:
    try:
      body = await asyncio.to_thread(lambda: page_json(answer(request)))
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
  text = await asyncio.to_thread(
    viewer_script if request.path.endswith(".js") else viewer_page
  )
  return web.Response(text=text, content_type=_FILES[request.path])


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
