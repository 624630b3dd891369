"""Episodes that agents elsewhere play.

The controller offers attempts, as it would to a player of its own: `play` here
is a `controller.player.Player`. An agent takes one, makes its calls under the
episode's id, and tells what the attempt was worth. Its environment is its own
affair.
"""

import asyncio
import collections
import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

from aiohttp import web

from agentrl_jax.data.trajectory import Status, Task, Trajectory
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.http_requests import BodyReader
from agentrl_jax.rollout.openai.episode import (
  Attempt,
  Episode,
  EpisodeRules,
  FreshPolicySlot,
  PolicySlotDraw,
  Verdict,
  conflict,
)
from agentrl_jax.rollout.openai.fields import Fields, is_number, wrong
from agentrl_jax.rollout.openai.requests import ServingLimits
from agentrl_jax.rollout.server.errors import ApiError

_KEPT_ENDS = 4096  # ended episodes that are still known by their id


class Episodes:
  """Attempts on offer, and episodes that are being played. Of one loop.

  `draw_for` tells how an attempt at a task draws its policy slots if it begins
  now.
  """

  def __init__(
    self,
    rules: EpisodeRules,
    limits: ServingLimits,
    draw_for: Callable[[Task], PolicySlotDraw] = lambda task: FreshPolicySlot(),
  ):
    self._rules, self._limits = rules, limits
    self._draw_for = draw_for
    self._offered: collections.deque[Episode] = collections.deque()
    self._played: dict[str, Episode] = {}
    # What agents said at the end; None of those that were given up.
    self._ended: collections.OrderedDict[str, Verdict | None] = (
      collections.OrderedDict()
    )
    self._changed = asyncio.Condition()
    self._is_closed = False
    self.counts: collections.Counter[str] = collections.Counter()

  async def play(self, attempt: Attempt) -> Trajectory:
    """Waits until an agent has played the attempt; see `Player.play`.

    Raises `EnvironmentFault` if the agent is gone: the attempt is offered anew
    by whoever retries it. Cancelling takes the offer back.
    """
    episode = Episode(
      attempt, self._rules, self._limits, self._draw_for(attempt.task)
    )
    async with self._changed:
      self._offered.append(episode)
      self._changed.notify()
    try:
      return await episode.outcome
    finally:
      with contextlib.suppress(ValueError):
        self._offered.remove(episode)
      self._end(episode)

  async def take(self, wait_s: float) -> Episode | None:
    """The attempt that has been on offer the longest; None if none comes."""
    try:
      async with asyncio.timeout(wait_s), self._changed:
        await self._changed.wait_for(lambda: self._offered or self._is_closed)
        if self._is_closed:
          return None
        episode = self._offered.popleft()
    except TimeoutError:
      return None
    episode.touch()
    self._played[episode.id] = episode
    self.counts["taken"] += 1
    watch = asyncio.create_task(self._watch(episode))
    episode.outcome.add_done_callback(lambda _: watch.cancel())
    return episode

  async def close(self) -> None:
    """Hands nothing out any more; who waits for an attempt is told at once."""
    async with self._changed:
      self._is_closed = True
      self._changed.notify_all()

  def get(self, id: str) -> Episode:
    """An episode that is being played. Raises `ApiError` for any other."""
    if id in self._played:
      return self._played[id]
    if id in self._ended:
      raise ApiError(
        f"episode {id} has ended; take another one",
        code="episode_ended",
        status=410,
      )
    raise ApiError(
      f"there is no episode {id!r}; POST /v1/episodes hands them out",
      code="episode_not_found",
      status=404,
    )

  def finish(self, id: str, verdict: Verdict) -> None:
    """Ends an episode; to say the same twice changes nothing."""
    if id in self._ended and self._ended[id] == verdict:
      return
    episode = self.get(id)
    with episode.calling():  # nothing is being said
      if verdict.status.is_policys_doing and not episode.turns:
        raise conflict(
          f"episode {id} has no call to learn from, so it cannot end as "
          f"{verdict.status.value!r}; end it as {Status.CANCELLED.value!r}",
          "episode_empty",
        )
      episode.verdict = verdict
      episode.outcome.set_result(episode.trajectory(verdict))
    self.counts["finished"] += 1
    self._end(episode)

  @property
  def num_offered(self) -> int:
    """Attempts that wait for an agent."""
    return len(self._offered)

  @property
  def num_played(self) -> int:
    """Episodes that agents have."""
    return len(self._played)

  async def _watch(self, episode: Episode) -> None:
    await episode.abandoned()
    if not episode.outcome.done():
      self.counts["abandoned"] += 1
      attempt = episode.attempt
      episode.outcome.set_exception(
        EnvironmentFault(
          f"nothing was heard of the agent that plays episode {episode.id}, "
          f"attempt {attempt.number} in group {attempt.group_id}, for "
          f"agents.idle_timeout_s={self._rules.idle_timeout_s:g} s; look at "
          f"its log"
        )
      )
      self._end(episode)

  def _end(self, episode: Episode) -> None:
    if self._played.pop(episode.id, None) is None:
      return
    self._ended[episode.id] = episode.verdict
    if len(self._ended) > _KEPT_ENDS:
      self._ended.popitem(last=False)


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
  attempt = episode.attempt
  return {
    "id": episode.id,
    "object": "episode",
    "task": dataclasses.asdict(attempt.task),
    "group": attempt.group_id,
    "attempt": attempt.number,
    "seed": attempt.seed,
    "max_turns": episode.rules.max_turns,
  }
