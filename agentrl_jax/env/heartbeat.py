"""How a worker stays on its controller's list.

Over HTTP the controller dials the worker, so the heartbeat carries the address
under which the worker is reached (`grpc_worker` is the other way round). A
controller that is away is waited for: sessions go on, and the next heartbeat
tells it everything anew.
"""

import abc
import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from agentrl_jax.env.wire import SESSION_HEADER
from agentrl_jax.env.worker_api import Reply

_log = logging.getLogger(__name__)

PERIOD_S = 8.0  # a controller gives a silent worker up after 11 s
DEADLINE_S = 5.0  # for the controller to answer

Answer = Callable[[str, Any], Awaitable[Reply]]


class Controller(abc.ABC):
  """The controller's side that a worker talks to."""

  @abc.abstractmethod
  async def keep_alive(
    self, announcement: Mapping[str, Any], answer: Answer
  ) -> None:
    """Sends heartbeats until cancelled.

    `answer` plays the requests that come the same way, if any do.
    """

  @abc.abstractmethod
  async def notice_cancelled(self, session: int) -> None:
    """Tells that a session, cancelled with notice, has been freed."""


class HttpController(Controller):
  """A controller that is told over HTTP, and asks over HTTP."""

  def __init__(
    self,
    http: aiohttp.ClientSession,
    url: str,
    *,
    period_s: float = PERIOD_S,
  ):
    self._http = http
    self._url = url.rstrip("/")
    self._period_s = period_s

  async def keep_alive(
    self, announcement: Mapping[str, Any], answer: Answer
  ) -> None:
    """Sends heartbeats until cancelled; requests come to the worker's port."""
    was_heard = True
    while True:
      is_heard = await self._post("receive_heartbeat", json=announcement)
      if is_heard != was_heard:
        _log.warning(
          "controller %s is %s", self._url, "back" if is_heard else "away"
        )
      was_heard = is_heard
      await asyncio.sleep(self._period_s)

  async def notice_cancelled(self, session: int) -> None:
    """Tells once; if it is lost, the controller sees so when it next asks."""
    await self._post("cancel_notice", headers={SESSION_HEADER: str(session)})

  async def _post(self, path: str, **request: Any) -> bool:
    try:
      async with self._http.post(
        f"{self._url}/{path}",
        timeout=aiohttp.ClientTimeout(total=DEADLINE_S),
        **request,
      ) as response:
        if response.ok:
          return True
        reason = f"HTTP {response.status}: {(await response.text())[:200]}"
    except (aiohttp.ClientError, TimeoutError) as error:
      reason = repr(error)
    _log.warning("%s to controller %s failed: %s", path, self._url, reason)
    return False
