"""AgentRL's worker protocol: maps requests to the calls of a `Host`.

A request is an endpoint's name and a JSON body; both transports (`main` and
`grpc`) answer from this table. Requests may have our `split` and `seed`;
without them the worker's own split is played, with the session's id as seed.
`describe` is ours: it reports indices without writing out a range. So is the
`turn` of an answer, with which a repeated one is told from the next.
"""

import asyncio
import collections
import dataclasses
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import Status, Task, finite_number
from agentrl_jax.env.interface import Step
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.protocol import wire
from agentrl_jax.service.worker.hosting import Host, HostFull, SessionRefused
from agentrl_jax.service.worker.turns import PlayedTurns

# Endpoints that change nothing, so HTTP's GET; the others are POST.
GETTERS = frozenset(
  {"get_indices", "get_sessions", "worker_status", "describe"}
)


@dataclasses.dataclass(frozen=True)
class Reply:
  """A reply for a transport to send: HTTP's code, and a JSON body."""

  code: int
  body: Any
  session: int | None = None  # opened by start_sample

  @property
  def is_ok(self) -> bool:
    """Returns whether the request was played."""
    return self.code == wire.OK


class WorkerApi:
  """Endpoints of a worker, for any transport."""

  def __init__(
    self,
    host: Host,
    *,
    split: str,
    indices: Sequence[int],
    tell_cancelled: Callable[[int], Awaitable[None]] | None,
  ):
    self._host = host
    self._split = split
    self._indices = list(indices)  # listed; other indices may be played
    self._tell_cancelled = tell_cancelled
    self._notices: set[asyncio.Task[None]] = set()
    self._turns = PlayedTurns(host.is_open)
    self._handlers: dict[str, Callable[[Any], Awaitable[Any]]] = {
      "get_indices": self._get_indices,
      "get_sessions": self._get_sessions,
      "worker_status": self._worker_status,
      "describe": self._describe,
      "start_sample": self._start_sample,
      "interact": self._interact,
      "sample_status": self._sample_status,
      "cancel": self._cancel,
      "cancel_with_notice": self._cancel_with_notice,
      "cancel_all": self._cancel_all,
      "cancel_all_with_notice": self._cancel_all_with_notice,
      "calculate_overall": self._calculate_overall,
    }

  async def answer(self, endpoint: str, body: Any) -> Reply:
    """Plays a request; errors are as AgentRL's clients expect them."""
    handler = self._handlers.get(endpoint)
    if handler is None:
      return _refusal(404, ValueError(f"there is no endpoint {endpoint!r:.80}"))
    try:
      answer = await handler(body)
    except HostFull as error:
      return _refusal(wire.FULL, error)
    except (SessionRefused, ConfigError, ValueError) as error:
      return _refusal(400, error)
    except EnvironmentFault as error:
      return _refusal(500, error)
    started = body["session_id"] if endpoint == "start_sample" else None
    return Reply(wire.OK, answer, None if started is None else int(started))

  async def shut_down(self) -> None:
    """Frees every session, and sends the notices that were promised."""
    await self._host.cancel_all()
    await asyncio.gather(*self._notices)

  async def _get_indices(self, body: Any) -> Any:
    """Returns the listed indices of the worker's own split."""
    return self._indices

  async def _get_sessions(self, body: Any) -> Any:
    """Returns the index that each open session plays."""
    return {str(id): task.index for id, task in self._host.tasks().items()}

  async def _worker_status(self, body: Any) -> Any:
    """Returns the limit and the number of sessions."""
    return {
      "concurrency": self._host.limits.concurrency,
      "current": self._host.num_open,
    }

  async def _describe(self, body: Any) -> Any:
    """Returns the environment's name, and the indices of `split`."""
    split = _read_split(_require_object(body or {}), self._split)
    environment = self._host.environment
    indices = wire.indices_to_json(environment.indices(split))
    return {"name": environment.name, "split": split, "indices": indices}

  async def _start_sample(self, body: Any) -> Any:
    """Opens a session and returns its first step."""
    id = _read_int(body, "session_id")
    task = self._read_task(body)
    seed = _read_seed(body) if "seed" in body else id
    session, step = await self._host.start(id, task, seed=seed)
    self._turns.forget(id)
    return wire.step_to_json(step, session.tools) | {wire.PLAYS_ONCE: True}

  async def _interact(self, body: Any) -> Any:
    """Plays an answer, once if it has the number of its turn."""
    id = _read_int(body, "session_id")
    if "turn" not in body:
      return await self._play(id, body)
    turn = _read_int(body, "turn")
    return await self._turns.play(id, turn, lambda: self._play(id, body))

  async def _play(self, id: int, body: Any) -> Any:
    """Plays an answer; a broken environment is the status `task error`."""
    answer = wire.answer_from_json(body.get("messages"))
    session = self._host.get(id)
    try:
      step = await self._host.step(id, answer)
    except EnvironmentFault as fault:
      broken = Step((), status=Status.TASK_ERROR)
      report = wire.step_to_json(broken, ()) | {"error": str(fault)}
    else:
      report = wire.step_to_json(step, session.tools)
    return {"session_id": id, "env_out": report}

  async def _sample_status(self, body: Any) -> Any:
    """Returns a session's task and status."""
    id = _read_int(body, "session_id")
    session = self._host.get(id)
    return {
      "session_id": id,
      "index": session.task.index,
      "status": session.status.value,
    }

  async def _cancel(self, body: Any) -> Any:
    """Frees a session, and answers when it is free."""
    id = self._read_session(body)
    await self._host.cancel(id)
    return {"session_id": id}

  async def _cancel_with_notice(self, body: Any) -> Any:
    """Answers at once; notifies the controller when it is free."""
    id = self._read_session(body)
    self._cancel_later([id])
    return {"session_id": id}

  async def _cancel_all(self, body: Any) -> Any:
    """Frees every session, and answers when all are free."""
    await self._host.cancel_all()
    return {}

  async def _cancel_all_with_notice(self, body: Any) -> Any:
    """Answers at once; notifies the controller of each end."""
    self._cancel_later(list(self._host.tasks()))
    return {}

  async def _calculate_overall(self, body: Any) -> Any:
    """Returns the mean reward and the counts of statuses."""
    results = _require_object(body).get("results")
    if not isinstance(results, list):
      raise ValueError("results must be a list of {status, reward}")
    try:
      rewards = [finite_number(result["reward"]) for result in results]
      mean = statistics.fmean(rewards) if rewards else 0.0
      statuses = collections.Counter(str(r["status"]) for r in results)
    except (KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f"each result needs a status and a reward that is a number: {error!r}"
      ) from error
    return {"total": len(results), "reward": mean, "statuses": statuses}

  def _read_session(self, body: Any) -> int:
    """Returns the id of a session that is open."""
    id = _read_int(body, "session_id")
    self._host.get(id)
    return id

  def _read_task(self, body: Mapping[str, Any]) -> Task:
    """Returns the task to start, which must be one of the environment's."""
    environment = self._host.environment
    if body.get("custom_task") is not None:
      raise ValueError(
        f"{environment.name} takes no custom_task, only an index"
      )
    split = _read_split(body, self._split)
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
    if self._tell_cancelled is not None:
      await self._tell_cancelled(id)


def _refusal(code: int, error: Exception) -> Reply:
  return Reply(code, {"detail": str(error)})


def _require_object(body: Any) -> Mapping[str, Any]:
  if not isinstance(body, dict):
    raise ValueError(f"the body must be a JSON object, not {type(body)}")
  return body


def _read_int(body: Any, key: str) -> int:
  value = _require_object(body).get(key)
  if isinstance(value, bool) or not isinstance(value, int | str):
    raise ValueError(f"{key} must be an integer, found {value!r:.80}")
  return int(value)


def _read_seed(body: Any) -> int:
  seed = _read_int(body, "seed")
  if not -(2**63) <= seed < 2**64:
    raise ValueError(f"seed must have 64 bits at most, found {seed!r:.80}")
  return seed


def _read_split(body: Mapping[str, Any], default: str) -> str:
  split = body.get("split", default)
  if not isinstance(split, str):
    raise ValueError(f"split must be a text, found {split!r:.80}")
  return split
