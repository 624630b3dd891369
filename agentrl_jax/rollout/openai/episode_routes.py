"""Episodes over HTTP: taken, called under, and ended.

  POST /v1/episodes        {"wait_s": 30}: an attempt to play; 204 if none came
  POST /v1/episodes/<id>   {"reward": 1.0, "status": ..., "metrics": {...}}

Calls between the two carry the id in the header `X-AgentRL-Episode`.
"""

import dataclasses
import math
from typing import Any

from aiohttp import web

from agentrl_jax.data.trajectory import Status
from agentrl_jax.http_requests import BodyReader
from agentrl_jax.rollout.openai.episode import Episode, Verdict
from agentrl_jax.rollout.openai.episodes import Episodes
from agentrl_jax.rollout.openai.fields import Fields, is_number, wrong
from agentrl_jax.rollout.server.errors import ApiError

HEADER = "X-AgentRL-Episode"
ROUTE = "/v1/episodes"
_MAX_WAIT_S = 300.0
_ENDS = tuple(
  status.value
  for status in Status
  if status not in (Status.RUNNING, Status.UNKNOWN)
)


class EpisodeApi:
  """The HTTP face of `Episodes`; None: nothing is recorded here."""

  def __init__(self, episodes: Episodes | None, bodies: BodyReader):
    self._episodes, self._bodies = episodes, bodies

  def add_to(self, application: web.Application) -> None:
    """Adds the routes."""
    application.router.add_post(ROUTE, self.take)
    application.router.add_post(f"{ROUTE}/{{id}}", self.finish)

  def called_under(self, request: web.Request) -> Episode | None:
    """The episode that a call belongs to; None: to none."""
    id = request.headers.get(HEADER)
    return None if id is None else self._open().get(id)

  async def take(self, request: web.Request) -> web.Response:
    """Waits for an attempt that wants to be played."""
    async with self._bodies.body(request) as body:
      fields = Fields(body or b"{}")
    wait_s = fields.number("wait_s", 30.0, low=0.0, high=_MAX_WAIT_S)
    fields.close()
    episode = await self._open().take(wait_s)
    if episode is None:
      return web.Response(status=204)
    return web.json_response(_told(episode))

  async def finish(self, request: web.Request) -> web.Response:
    """Takes the agent's verdict; the attempt is over."""
    async with self._bodies.body(request) as body:
      fields = Fields(body)
    verdict = Verdict(
      reward=fields.number("reward", math.nan, low=-1e9, high=1e9),
      status=_status(fields.take("status", Status.COMPLETED.value)),
      metrics=_metrics(fields.take("metrics", {})),
    )
    fields.close()
    id = request.match_info["id"]
    self._open().finish(id, verdict)
    return web.json_response(
      {"id": id, "object": "episode", "status": verdict.status.value}
    )

  def _open(self) -> Episodes:
    if self._episodes is None:
      raise ApiError(
        "this server records no episodes: ask the learner's own, whose port is "
        "agents.port",
        code="no_episodes_here",
        status=404,
      )
    return self._episodes


def _status(found: Any) -> Status:
  if found not in _ENDS:
    raise wrong("status", found, f"one of {', '.join(_ENDS)}")
  return Status(found)


def _metrics(found: Any) -> dict[str, float]:
  if not isinstance(found, dict) or not all(map(is_number, found.values())):
    raise wrong("metrics", found, "an object of numbers")
  return {str(name): float(x) for name, x in found.items()}


def _told(episode: Episode) -> dict[str, Any]:
  """What an agent is told when it takes an episode."""
  spec = episode.spec
  return {
    "id": episode.id,
    "object": "episode",
    "task": dataclasses.asdict(spec.task),
    "group": spec.group_id,
    "attempt": spec.attempt,
    "seed": spec.seed,
    "max_turns": episode.rules.max_turns,
  }
