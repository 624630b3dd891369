"""AgentRL's controller API over HTTP, endpoint for endpoint.

The session's id travels in the header `session_id`. Extensions that AgentRL's
clients do not know are optional in both directions: `split`, `seed` and
`wait_s` in `start_sample`, the session's state in its response, and the `turn`
of `interact`. The endpoints `describe` and `overview` are extensions too.
"""

import asyncio
import datetime
import itertools
import json
import time
from collections.abc import Mapping
from typing import Any

import prometheus_client
from aiohttp import web
from aiohttp.typedefs import Handler

from agentrl_jax import bearer_token
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.http_requests import (
  SHORT,
  HttpLimits,
  RequestRefused,
  explaining,
  read_json,
)
from agentrl_jax.service.controller.access import (
  Access,
  NotAllowed,
  WorkerHosts,
)
from agentrl_jax.service.controller.capacity import NoCapacity, Overloaded
from agentrl_jax.service.controller.dashboard.overview import overview
from agentrl_jax.service.controller.dashboard.routes import (
  ForeignPage,
  add_page,
  require_our_page,
)
from agentrl_jax.service.controller.dispatcher import RUNNING, Dispatcher
from agentrl_jax.service.controller.metrics import PATH, ControllerMetrics
from agentrl_jax.service.controller.registry import Index, Refused, Worker, now
from agentrl_jax.service.controller.session_table import SessionEntry
from agentrl_jax.service.protocol import wire
from agentrl_jax.service.protocol.link import MAX_VALUES, WorkerRefusal

_MAX_WAIT_S = 86_400.0
_MANY_VALUES = 1000
_MAX_ID_DIGITS = 19  # of 64 bits
_OURS = ("error", wire.PLAYS_ONCE)  # of a worker's report
VERSION = {"variant": "nova", "version": 1}  # which AgentRL's tools expect


class ControllerApi:
  """HTTP handlers of a `Dispatcher`."""

  def __init__(
    self,
    dispatcher: Dispatcher,
    http: HttpLimits,
    access: Access,
    worker_hosts: WorkerHosts,
  ):
    self._dispatcher, self._limits = dispatcher, http
    self._access, self._worker_hosts = access, worker_hosts
    self._metrics = ControllerMetrics(dispatcher)

  def application(self) -> web.Application:
    """Returns the application with all routes."""
    application = web.Application(middlewares=[explaining("message")])
    add_page(application.router)
    application.router.add_get(PATH, self.metrics)
    add_get, add_post = application.router.add_get, application.router.add_post
    for name, handler in {
      "list_workers": self.list_workers,
      "list_sessions": self.list_sessions,
      "overview": self.overview,
      "get_indices": self.get_indices,
      "describe": self.describe,
      "version": self.version,
    }.items():
      add_get(f"/api/{name}", self._guarded(name, handler))
    for name, handler in {
      "start_sample": self.start_sample,
      "interact": self.interact,
      "cancel": self.cancel,
      "cancel_all": self.cancel_all,
      "cancel_notice": self.cancel_notice,
      "receive_heartbeat": self.receive_heartbeat,
      "mark_stale": self.mark_stale,
      "clean_worker": self.clean,
      "clean_session": self.clean,
      "sync_all": self.sync_all,
    }.items():
      add_post(f"/api/{name}", self._guarded(name, handler))
    return application

  def _guarded(self, endpoint: str, handler: Handler) -> Handler:
    """Returns the handler, for those whose token allows the endpoint."""

    async def allowed(request: web.Request) -> web.StreamResponse:
      header = request.headers.get(bearer_token.HEADER, "")
      self._access.check(endpoint, header)  # before the body is read
      require_our_page(request, is_open=self._access.is_open)
      return await handler(request)

    async def guarded(request: web.Request) -> web.StreamResponse:
      answering = _explain_errors(request, allowed)
      return await self._metrics.observe(endpoint, answering)

    return guarded

  async def metrics(self, request: web.Request) -> web.Response:
    """Returns the metrics, to everybody: they tell of no session's contents."""
    return web.Response(
      body=self._metrics.page(),
      headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST},
    )

  async def list_workers(self, request: web.Request) -> web.Response:
    """Lists every task with its indices and workers."""
    tasks = self._dispatcher.registry.tasks
    return web.json_response(
      {
        name: {
          "indices": entry.indices,
          "workers": {str(w.id): _show(w) for w in entry.workers.values()},
        }
        for name, entry in tasks.items()
      }
    )

  async def list_sessions(self, request: web.Request) -> web.Response:
    """Lists the open sessions."""
    return web.json_response(
      {str(s.id): _show_session(s) for s in self._dispatcher.table}
    )

  async def overview(self, request: web.Request) -> web.Response:
    """Returns what the page shows, of task `?name=` or of all."""
    name = request.query.get("name") or None
    return web.json_response(overview(self._dispatcher, self._metrics, name))

  async def get_indices(self, request: web.Request) -> web.Response:
    """Returns the indices of task `?name=`."""
    name = request.query.get("name", "")
    return web.json_response(self._dispatcher.registry.task(name).indices)

  async def describe(self, request: web.Request) -> web.Response:
    """Returns the indices of `?split=` of `?name=`; a range stays a range."""
    name, split = request.query.get("name", ""), request.query.get("split", "")
    return web.json_response(await self._dispatcher.describe(name, split))

  async def version(self, request: web.Request) -> web.Response:
    """Returns the version of the protocol."""
    return web.json_response(VERSION)

  async def start_sample(self, request: web.Request) -> web.Response:
    """Starts a session as soon as a place is free, within `wait_s`."""
    body = await self._read(request)
    session, report = await self._dispatcher.start(
      _text(body, "name"),
      _index(body),
      custom_task=body.get("custom_task"),
      extras=_extras(body),
      wait_s=_wait_s(body, self._dispatcher.timers.queue_s),
    )
    session.tools = report.get("tools")
    self._metrics.count_report(session.worker.task, report)
    return await _respond(
      {"session_id": session.id, "tools": session.tools, **_out(report)},
      headers={wire.SESSION_HEADER: str(session.id)},
    )

  async def interact(self, request: web.Request) -> web.Response:
    """Plays the assistant's messages; returns the tools if they changed."""
    id, given = _session_id(request), await self._read(request)
    turn = _integer(given, "turn", 0) if "turn" in given else None
    session = self._dispatcher.table.find(id)
    report = await self._dispatcher.interact(
      id, given.get("messages"), turn=turn
    )
    body, tools = _out(report), report.get("tools")
    if session is None:  # of the controller before this one
      return await _respond(body | ({"tools": tools} if tools else {}))
    self._metrics.count_report(session.worker.task, report)
    if tools and tools != session.tools:
      session.tools = body["tools"] = tools
    return await _respond(body)

  async def cancel(self, request: web.Request) -> web.Response:
    """Cancels a session, and answers at once."""
    self._dispatcher.cancel(_session_id(request))
    return web.json_response(None)

  async def cancel_all(self, request: web.Request) -> web.Response:
    """Cancels the sessions of `?name=`, or all with `?force=true`."""
    name = request.query.get("name") or None
    is_forced = request.query.get("force", "").lower() in ("1", "t", "true")
    num_tasks = len(self._dispatcher.registry.tasks)
    if num_tasks > 1 and name is None and not is_forced:
      return _explain(
        403,
        "multiple tasks are running! confirmation required: say which with "
        "?name=, or ?force=true",
      )
    self._dispatcher.cancel_all(name)
    return web.json_response(None)

  async def cancel_notice(self, request: web.Request) -> web.Response:
    """Takes a worker's notice that a session has ended."""
    self._dispatcher.end_session(_session_id(request))
    return web.json_response(None)

  async def receive_heartbeat(self, request: web.Request) -> web.Response:
    """Registers a worker's heartbeat."""
    announcement = await self._read(request)
    address = announcement.get("address")
    if isinstance(address, str) and address:
      is_known = bool(self._dispatcher.registry.find(address))
      await self._worker_hosts.check(address, request.remote, is_known=is_known)
    self._dispatcher.receive_heartbeat(announcement)
    return web.json_response(None)

  async def mark_stale(self, request: web.Request) -> web.Response:
    """Drains a worker, or admits sessions to it again."""
    body = await self._read(request)
    stale = body.get("stale", False)
    if not isinstance(stale, bool):
      raise ValueError(f"stale must be true or false, found {stale!r:.80}")
    self._dispatcher.mark_stale(
      _text(body, "name"), _integer(body, "worker_id", 0), stale=stale
    )
    return web.json_response(None)

  async def clean(self, request: web.Request) -> web.Response:
    """Checks every timer now."""
    self._dispatcher.check_timers()
    return web.json_response(None)

  async def sync_all(self, request: web.Request) -> web.Response:
    """Reconciles sessions with every worker now."""
    self._dispatcher.sync_all()
    return web.json_response(None)

  async def _read(self, request: web.Request) -> dict[str, Any]:
    body = await read_json(request, self._limits, max_values=MAX_VALUES)
    if not isinstance(body, dict):
      raise ValueError(f"the body must be a JSON object, not {type(body)}")
    return body


async def _explain_errors(
  request: web.Request, handler: Handler
) -> web.StreamResponse:
  """Errors as AgentRL's clients expect them: a status and a `message`."""
  try:
    return await handler(request)
  except RequestRefused as error:
    return _explain(error.status, str(error))
  except NotAllowed as error:
    return _explain(401, str(error))
  except ForeignPage as error:
    return _explain(403, str(error))
  except NoCapacity as error:
    status = 429 if isinstance(error, Overloaded) else 400  # as AgentRL's
    return _explain(status, str(error))
  except (Refused, WorkerRefusal, ValueError) as error:
    return _explain(400, str(error))
  except EnvironmentFault as error:
    return _explain(500, str(error))


def _explain(status: int, reason: str) -> web.Response:
  return web.json_response({"message": reason}, status=status)


def _session_id(request: web.Request) -> int:
  text = request.headers.get(wire.SESSION_HEADER, "")
  if not text.isdecimal() or len(text) > _MAX_ID_DIGITS:
    raise ValueError(f"invalid session id {text!r:.80} in the header")
  return int(text)


def _text(body: Mapping[str, Any], key: str) -> str:
  if not isinstance(body.get(key), str):
    raise ValueError(f"{key} must be a text, found {body.get(key)!r:.80}")
  return str(body[key])


def _index(body: Mapping[str, Any]) -> Index:
  index = body.get("index")
  if isinstance(index, bool) or not isinstance(index, int | str):
    raise ValueError(f"index must be a number or a text, found {index!r:.80}")
  return index


def _wait_s(body: Mapping[str, Any], default_s: float) -> float:
  wait_s = body.get("wait_s", default_s)
  is_number = isinstance(wait_s, int | float) and not isinstance(wait_s, bool)
  if not is_number or not 0 <= wait_s <= _MAX_WAIT_S:
    raise ValueError(
      f"wait_s={wait_s!r:.80} must be a number of seconds from 0 to "
      f"{_MAX_WAIT_S:g}"
    )
  return float(wait_s)


def _extras(body: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields that go to the worker unchanged."""
  extras: dict[str, Any] = {}
  if "split" in body:
    extras["split"] = _text(body, "split")
  if "seed" in body:
    extras["seed"] = _integer(body, "seed", 0)
  return extras


def _integer(body: Mapping[str, Any], key: str, default: int) -> int:
  value = body.get(key, default)
  if isinstance(value, bool) or not isinstance(value, int):
    raise ValueError(f"{key} must be an integer, found {value!r:.80}")
  return value


def _out(report: Mapping[str, Any]) -> dict[str, Any]:
  """Converts a worker's report to the controller's response."""
  status = report.get("status", RUNNING)
  shown = {
    "finish": status != RUNNING,
    "reward": report.get("reward") or 0,
    "status": status,
    "messages": report.get("messages") or [],
    "metrics": report.get("metric") or {},
  }
  ours = {key: report[key] for key in _OURS if key in report}
  return shown | ours


async def _respond(
  body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> web.Response:
  """Responds with a report, written beside the event loop where it is long."""
  if _is_long(body):
    text = await asyncio.to_thread(json.dumps, body)
    return web.json_response(text=text, headers=headers)
  return web.json_response(body, headers=headers)


def _is_long(body: Any) -> bool:
  """Returns whether JSON has a thousand values or 64 KiB of text; looks at
  no more of it.
  """
  values, num_values, num_chars = [body], 0, 0
  while values and num_values < _MANY_VALUES and num_chars < SHORT:
    value = values.pop()
    num_values += 1
    if isinstance(value, str):
      num_chars += len(value)
    elif isinstance(value, dict | list):
      inner = value.values() if isinstance(value, dict) else value
      values += itertools.islice(inner, _MANY_VALUES)
  return bool(values)


def _show(worker: Worker) -> dict[str, Any]:
  return {
    "id": worker.id,
    "address": worker.address,
    "capacity": worker.capacity,
    "current": worker.num_sessions,
    "last_visit": _when(worker.last_visit),
    "status": worker.health.value,
    "stale": worker.is_stale,
    "locked": False,
  }


def _show_session(session: SessionEntry) -> dict[str, Any]:
  return {
    "name": session.worker.task,
    "index": session.index,
    "custom_task": session.custom_task,
    "start": _when(session.started),
    "last_update": _when(session.updated),
    "worker_id": session.worker.id,
    "locked": session.is_busy or session.is_cancelling,
    "cancelling": session.is_cancelling,
  }


def _when(moment: float) -> str:
  """Converts a time of the event loop's clock to RFC 3339."""
  seconds = time.time() - (now() - moment)
  moment_utc = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
  return moment_utc.isoformat(timespec="milliseconds")
