"""Client of a worker's API, with a deadline for each request.

Every failure of a request becomes an `EnvironmentFault` that names the worker
and the request; no request is repeated.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from agentrl_jax.data.records import Message, Tool, message_to_json
from agentrl_jax.env.interface import Step
from agentrl_jax.env.options import require_positive
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.protocol import wire
from agentrl_jax.service.protocol.link import HttpLink, reading


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientDeadlines:
  """Deadlines of the kinds of requests, the network included."""

  place_s: float = 600.0  # until the worker has room for a session
  # Longer than the worker's own deadlines, so that the worker tells why.
  start_timeout_s: float = 150.0
  step_s: float = 270.0
  ask_s: float = (
    20.0  # requests without the environment: status, indices, cancel
  )

  def __post_init__(self) -> None:
    require_positive(**dataclasses.asdict(self))


class WorkerClient:
  """Client of one worker, over the caller's connection pool."""

  def __init__(
    self, http: aiohttp.ClientSession, url: str, deadlines: ClientDeadlines
  ):
    self._link = HttpLink(http, url)
    self.url = self._link.url
    self._deadlines = deadlines

  async def describe(self, split: str) -> tuple[str, Sequence[int]]:
    """Returns the environment's name and the indices of a split.

    Raises `WorkerRefusal` if there is no such split, or if the worker is not
    one of ours.
    """
    body = await self._get("describe", split=split)
    with self._reading("describe", body):
      return str(body["name"]), wire.indices_from_json(body["indices"])

  async def indices(self) -> Sequence[int]:
    """Returns the indices that the worker lists."""
    body = await self._get("get_indices")
    with self._reading("get_indices", body):
      return tuple(int(index) for index in body)

  async def concurrency(self) -> int:
    """Returns the number of sessions that the worker holds at once."""
    body = await self._get("worker_status")
    with self._reading("worker_status", body):
      return int(body["concurrency"])

  async def start(
    self, session: int, *, index: int, split: str | None, seed: int | None
  ) -> tuple[Step, tuple[Tool, ...]]:
    """Opens a session; only our workers know `split` and `seed`.

    Raises `WorkerFull` if there is no room.
    """
    request: dict[str, Any] = {"session_id": session, "index": index}
    request |= {} if split is None else {"split": split}
    request |= {} if seed is None else {"seed": seed}
    body = await self._post(
      "start_sample", request, self._deadlines.start_timeout_s
    )
    with self._reading("start_sample", body):
      return wire.step_from_json(body), wire.tools_from_json(body)

  async def interact(
    self, session: int, answer: Message
  ) -> tuple[Step, tuple[Tool, ...]]:
    """Plays an answer; raises a fault if the worker's environment broke.

    The tools are those of the next turn; none if the worker names none.
    """
    request = {"session_id": session, "messages": [message_to_json(answer)]}
    body = await self._post("interact", request, self._deadlines.step_s)
    with self._reading("interact", body):
      report = body["env_out"]
      step, tools = wire.step_from_json(report), wire.tools_from_json(report)
    if step.status in wire.FAULTS:
      reason = report.get("error", "it gives no reason; see its log")
      raise EnvironmentFault(
        f"worker {self.url} ended session {session} with "
        f"{step.status.value!r}: {reason}"
      )
    return step, tools

  async def cancel(self, session: int) -> None:
    """Frees a session and waits until it is free."""
    await self._post("cancel", {"session_id": session}, self._deadlines.ask_s)

  async def _get(self, path: str, **query: str) -> Any:
    return await self._link.ask(
      "GET", path, query, deadline_s=self._deadlines.ask_s
    )

  async def _post(
    self, path: str, request: Mapping[str, Any], deadline_s: float
  ) -> Any:
    return await self._link.ask("POST", path, request, deadline_s=deadline_s)

  def _reading(
    self, path: str, body: Any
  ) -> contextlib.AbstractContextManager[None]:
    return reading(f"worker {self.url}", path, body)
