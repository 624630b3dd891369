"""Heartbeats and notices of a worker to its controller.

Over HTTP the controller dials the worker, so the heartbeat has the worker's
address (in `grpc` the worker dials). If the controller is away, sessions
continue, and the next heartbeat registers the worker anew.
"""

import abc
import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from agentrl_jax.service.protocol.wire import SESSION_HEADER
from agentrl_jax.service.worker.api import Reply

_log = logging.getLogger(__name__)

PERIOD_S = 8.0  # a controller drops a silent worker after 11 s
RETRY_S = 1.0  # while the controller cannot be reached
DEADLINE_S = 5.0  # timeout of the controller's reply

Answer = Callable[[str, Any], Awaitable[Reply]]


class Controller(abc.ABC):
  """The controller as a worker sees it."""

  @abc.abstractmethod
  async def keep_alive(
    self, announcement: Mapping[str, Any], answer: Answer
  ) -> None:
    """Sends heartbeats until cancelled.

    `answer` plays the requests that come the same way, if any do.
    """

  @abc.abstractmethod
  async def notice_cancelled(self, session: int) -> None:
    """Reports that a cancelled session is free."""


class HttpController(Controller):
  """A controller that is reached over HTTP, and asks over HTTP."""

  def __init__(self, http: aiohttp.ClientSession, url: str):
    self._http = http
    self._url = url.rstrip("/")

  async def keep_alive(
    self, announcement: Mapping[str, Any], answer: Answer
  ) -> None:
    """Sends heartbeats until cancelled.

    Requests come to the worker's port.
    """
    was_heard = True
    while True:
      failure = await self._post("receive_heartbeat", json=announcement)
      if failure is not None and was_heard:
        _log.warning("controller %s cannot be reached: %s", self._url, failure)
      elif failure is None and not was_heard:
        _log.info("controller %s answers again", self._url)
      was_heard = failure is None
      await asyncio.sleep(PERIOD_S if was_heard else min(RETRY_S, PERIOD_S))

  async def notice_cancelled(self, session: int) -> None:
    """Notifies once.

    If the notice is lost, the controller finds the session gone when it asks.
    """
    headers = {SESSION_HEADER: str(session)}
    failure = await self._post("cancel_notice", headers=headers)
    if failure is not None:
      _log.warning(
        "controller %s is not notified that session %d is free: %s",
        self._url,
        session,
        failure,
      )

  async def _post(self, path: str, **request: Any) -> str | None:
    """Returns why the controller has not taken the request, or None."""
    try:
      async with self._http.post(
        f"{self._url}/{path}",
        timeout=aiohttp.ClientTimeout(total=DEADLINE_S),
        **request,
      ) as response:
        if response.ok:
          return None
        return f"HTTP {response.status}: {(await response.text())[:200]}"
    except (aiohttp.ClientError, TimeoutError) as error:
      return repr(error)
