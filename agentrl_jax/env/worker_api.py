"""AgentRL's worker protocol: from HTTP requests to the calls of a `Host`.

What a session does is not its business. Requests may carry our `split` and
`seed`; without them the worker's own split is meant, and the session's id
seeds it. `describe` is ours: it says what there is without writing out a range.
"""

import asyncio
import collections
import json
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env import wire
from agentrl_jax.env.heartbeat import Controller
from agentrl_jax.env.hosting import Host, HostFull, SessionRefused
from agentrl_jax.env.interface import Step
from agentrl_jax.errors import ConfigError, EnvironmentFault

MAX_REQUEST_BYTES = 64 << 20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WorkerApi:
  """The HTTP face of a `Host`."""

  def __init__(
    self,
    host: Host,
    *,
    split: str,
    indices: Sequence[int],
    controller: Controller | None,
  ):
    self._host = host
    self._split = split
    self._indices = list(indices)  # what is listed; others may be asked for
    self._controller = controller
    self._notices: set[asyncio.Task[None]] = set()

  def application(self) -> web.Application:
    """The routes, ready to be run; shutting it down frees every session."""
    application = web.Application(
      middlewares=[_explain_errors], client_max_size=MAX_REQUEST_BYTES
    )
    application.add_routes(
      [
        web.get("/api/get_indices", self.get_indices),
        web.get("/api/get_sessions", self.get_sessions),
        web.get("/api/worker_status", self.worker_status),
        web.get("/api/describe", self.describe),
        web.post("/api/start_sample", self.start_sample),
        web.post("/api/interact", self.interact),
        web.post("/api/sample_status", self.sample_status),
        web.post("/api/cancel", self.cancel),
        web.post("/api/cancel_with_notice", self.cancel_with_notice),
        web.post("/api/cancel_all", self.cancel_all),
        web.post("/api/cancel_all_with_notice", self.cancel_all_with_notice),
        web.post("/api/calculate_overall", self.calculate_overall),
      ]
    )
    application.on_shutdown.append(self._shut_down)
    return application

  async def get_indices(self, request: web.Request) -> web.Response:
    """The indices of the worker's own split, as many as it lists."""
    return web.json_response(self._indices)

  async def get_sessions(self, request: web.Request) -> web.Response:
    """The index that each open session plays."""
    tasks = self._host.tasks()
    return web.json_response({str(id): t.index for id, t in tasks.items()})

  async def worker_status(self, request: web.Request) -> web.Response:
    """How many sessions there may be, and are."""
    return web.json_response(
      {
        "concurrency": self._host.limits.concurrency,
        "current": self._host.num_open,
      }
    )

  async def describe(self, request: web.Request) -> web.Response:
    """The environment's name, and the indices of `?split=`."""
    split = request.query.get("split", self._split)
    environment = self._host.environment
    indices = wire.indices_to_json(environment.indices(split))
    return web.json_response(
      {"name": environment.name, "split": split, "indices": indices}
    )

  async def start_sample(self, request: web.Request) -> web.Response:
    """Opens a session and says what it first observes."""
    body = await _read_body(request)
    id = _read_int(body, "session_id")
    task = self._read_task(body)
    seed = _read_int(body, "seed") if "seed" in body else id
    session, step = await self._host.start(id, task, seed=seed)
    return web.json_response(
      wire.step_to_json(step, session.tools),
      headers={wire.SESSION_HEADER: str(id)},
    )

  async def interact(self, request: web.Request) -> web.Response:
    """Plays an answer. An environment that breaks reports `task error`."""
    body = await _read_body(request)
    id = _read_int(body, "session_id")
    answer = wire.answer_from_json(body.get("messages"))
    session = self._host.get(id)
    try:
      step = await self._host.step(id, answer)
    except EnvironmentFault as fault:
      broken = Step((), status=Status.TASK_ERROR)
      report = wire.step_to_json(broken, ()) | {"error": str(fault)}
    else:
      report = wire.step_to_json(step, session.tools)
    return web.json_response({"session_id": id, "env_out": report})

  async def sample_status(self, request: web.Request) -> web.Response:
    """Which task a session plays, and how it stands."""
    id = _read_int(await _read_body(request), "session_id")
    session = self._host.get(id)
    return web.json_response(
      {
        "session_id": id,
        "index": session.task.index,
        "status": session.status.value,
      }
    )

  async def cancel(self, request: web.Request) -> web.Response:
    """Frees a session, and answers when it is free."""
    id = _read_int(await _read_body(request), "session_id")
    self._host.get(id)
    await self._host.cancel(id)
    return web.json_response({"session_id": id})

  async def cancel_with_notice(self, request: web.Request) -> web.Response:
    """Answers at once, and tells the controller when the session is free."""
    id = _read_int(await _read_body(request), "session_id")
    self._host.get(id)
    self._cancel_later([id])
    return web.json_response({"session_id": id})

  async def cancel_all(self, request: web.Request) -> web.Response:
    """Frees every session, and answers when all are free."""
    await self._host.cancel_all()
    return web.json_response({})

  async def cancel_all_with_notice(self, request: web.Request) -> web.Response:
    """Answers at once, and tells the controller of each freed session."""
    self._cancel_later(list(self._host.tasks()))
    return web.json_response({})

  async def calculate_overall(self, request: web.Request) -> web.Response:
    """The mean reward and the count of each status among `results`."""
    results = (await _read_body(request)).get("results")
    if not isinstance(results, list):
      raise ValueError("results must be a list of {status, reward}")
    try:
      rewards = [float(result["reward"]) for result in results]
      statuses = collections.Counter(str(r["status"]) for r in results)
    except (KeyError, TypeError) as error:
      raise ValueError(
        f"each result needs a status and a reward: {error!r}"
      ) from error
    return web.json_response(
      {
        "total": len(results),
        "reward": statistics.fmean(rewards) if rewards else 0.0,
        "statuses": statuses,
      }
    )

  def _read_task(self, body: dict[str, Any]) -> Task:
    """The task to start, which must be one of the environment's."""
    environment = self._host.environment
    if body.get("custom_task") is not None:
      raise ValueError(
        f"{environment.name} takes no custom_task, only an index"
      )
    split = str(body.get("split", self._split))
    index = _read_int(body, "index")
    if index not in environment.indices(split):
      raise ValueError(
        f"{environment.name} has no index {index} in split {split}; "
        "get_indices and describe say which there are"
      )
    return Task(environment.name, split, index)

  def _cancel_later(self, ids: list[int]) -> None:
    for id in ids:
      notice = asyncio.create_task(self._cancel_and_tell(id))
      self._notices.add(notice)
      notice.add_done_callback(self._notices.discard)

  async def _cancel_and_tell(self, id: int) -> None:
    await self._host.cancel(id)
    if self._controller is not None:
      await self._controller.notice_cancelled(id)

  async def _shut_down(self, application: web.Application) -> None:
    await self._host.cancel_all()
    await asyncio.gather(*self._notices)


@web.middleware
async def _explain_errors(
  request: web.Request, handler: Handler
) -> web.StreamResponse:
  """Errors as AgentRL's clients expect them: a status and a `detail`."""
  try:
    return await handler(request)
  except HostFull as error:
    return _refusal(wire.FULL, error)
  except (SessionRefused, ConfigError, ValueError) as error:
    return _refusal(400, error)
  except EnvironmentFault as error:
    return _refusal(500, error)


def _refusal(status: int, error: Exception) -> web.Response:
  return web.json_response({"detail": str(error)}, status=status)


async def _read_body(request: web.Request) -> dict[str, Any]:
  body = json.loads(await request.read())
  if not isinstance(body, dict):
    raise ValueError(f"the body must be a JSON object, not {type(body)}")
  return body


def _read_int(body: dict[str, Any], key: str) -> int:
  value = body.get(key)
  if isinstance(value, bool) or not isinstance(value, int | str):
    raise ValueError(f"{key} must be an integer, found {value!r:.80}")
  return int(value)
