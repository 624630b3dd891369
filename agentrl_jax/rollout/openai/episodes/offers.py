"""Offers episodes to external agents, and the routes of that.

  POST /v1/episodes        {"wait_s": 30}: an episode to play; 204 if none came
  POST /v1/episodes/<id>   {"reward": 1.0, "status": ..., "metrics": {...}}

Calls between the two carry the id in the header `X-AgentRL-Episode`, in their
URL (`/episodes/<id>/v1/...`) or as their API key, and may name the agent that
makes them in `X-AgentRL-Role`. The agent owns its environment; this server
records its calls.
"""

import asyncio
import collections
import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from aiohttp import web
from pydantic import AfterValidator, FailFast

from agentrl_jax.data.records import LARGEST, EpisodeSpec, Status, Trajectory
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.http_requests import HttpLimits, read_body
from agentrl_jax.rollout.openai.episodes.episode import (
  ID_PREFIX,
  Episode,
  EpisodeRules,
  PolicySlotDraw,
  Verdict,
  conflict,
)
from agentrl_jax.rollout.openai.schema import ServingLimits
from agentrl_jax.rollout.openai.validation import (
  JsonObject,
  invalid,
  must_be,
  number_between,
  parse_object,
  read,
)
from agentrl_jax.rollout.server.auth import key_of
from agentrl_jax.rollout.server.errors import ApiError, is_api_path

_log = logging.getLogger(__name__)

HEADER = "X-AgentRL-Episode"
ROLE_HEADER = "X-AgentRL-Role"
ROUTE = "/v1/episodes"
_ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_WAIT_S = 300.0
_MAX_ENDED = 4096  # ended episodes that are still known by their id
_MOST_SAID = 1000  # characters of an agent's error
_FINAL = tuple(
  status.value
  for status in Status
  if status not in (Status.RUNNING, Status.UNKNOWN)
)


class Episodes:
  """The episodes on offer and those being played; belongs to one event loop.

  The controller uses `play` as a `controller.player.Player`. `draw` chooses
  the policy slots that answer; `last_lines` returns what the agents' program
  wrote last, if its output is known.

  An agent that gives up, or makes no further call, where the policy has met a
  limit does so by the policy's doing: its episode is scored. A policy would
  else learn to be cut where it expects a low reward.
  """

  def __init__(
    self,
    rules: EpisodeRules,
    limits: ServingLimits,
    draw: PolicySlotDraw,
    last_lines: Callable[[], str] = lambda: "",
  ):
    self._rules, self._limits = rules, limits
    self._draw, self._last_lines = draw, last_lines
    self._offered: collections.deque[Episode] = collections.deque()
    self._played: dict[str, Episode] = {}
    # Verdicts of agents; None for episodes that were abandoned.
    self._ended: collections.OrderedDict[str, Verdict | None] = (
      collections.OrderedDict()
    )
    self._changed = asyncio.Condition()
    self._is_closed = False
    self._failure: Exception | None = None  # agents cannot go on
    self.counts: collections.Counter[str] = collections.Counter()

  async def play(
    self,
    spec: EpisodeSpec,
    *,
    rules: EpisodeRules | None = None,
    draw: PolicySlotDraw | None = None,
  ) -> Trajectory:
    """Waits until an agent has played the episode; see `Player.play`.

    An evaluation has `rules` and a `draw` of its own. Raises `EnvironmentFault`
    if the agent is gone; the caller may offer the episode again. Cancelling
    withdraws the offer.
    """
    if self._failure is not None:
      raise self._failure
    episode = Episode(
      spec, rules or self._rules, self._limits, draw or self._draw
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
    """Returns the oldest episode on offer; None if there is none in time."""
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
    """Stops offering episodes; agents that wait for one get None at once."""
    async with self._changed:
      self._is_closed = True
      self._changed.notify_all()

  def fail(self, failure: Exception) -> None:
    """Raises the failure in all who wait for an episode, now and later."""
    self._failure = failure
    for episode in (*self._offered, *self._played.values()):
      if not episode.outcome.done():
        episode.outcome.set_exception(failure)

  def knows(self, id: str) -> bool:
    """Returns whether an episode is being played, or has ended."""
    return id in self._played or id in self._ended

  def get(self, id: str) -> Episode:
    """Returns an episode that is being played. Raises `ApiError` otherwise."""
    if id in self._played:
      return self._played[id]
    if id in self._ended:
      raise ApiError(
        f"episode {id} has ended; take another one",
        code="episode_ended",
        status=410,
      )
    raise ApiError(
      f"there is no episode {id!r}; POST {ROUTE} returns one",
      code="episode_not_found",
      status=404,
    )

  def finish(self, id: str, verdict: Verdict) -> Status:
    """Ends an episode; the same verdict may come twice. Returns its status."""
    gave_up = verdict.status is Status.CANCELLED
    ended = self._ended.get(id)
    if ended and (ended == verdict or (gave_up and not ended.is_agents)):
      return ended.status
    episode = self.get(id)
    episode.require_idle()
    _require_roles(episode, verdict.role_rewards)
    if verdict.status.is_policys_doing and not episode.num_turns:
      raise conflict(
        f"episode {id} has no call to learn from, so it cannot end as "
        f"{verdict.status.value!r}; end it as {Status.CANCELLED.value!r}",
        "episode_empty",
      )
    fault = ""
    if not verdict.status.is_policys_doing:
      said = repr(verdict.error) if verdict.error else "no `error`"
      fault = self._described(episode, f"its agent gave {said}")
      if gave_up and _is_at_limit(episode):
        verdict, fault = self._at_limit(episode, fault), ""
    episode.verdict = verdict
    episode.outcome.set_result(episode.trajectory(verdict, fault))
    self.counts["finished"] += 1
    self.counts["lines"] += episode.num_lines
    self.counts["dropping"] += episode.num_dropping
    self._end(episode)
    return verdict.status

  @property
  def num_offered(self) -> int:
    """Number of episodes that wait for an agent."""
    return len(self._offered)

  @property
  def num_played(self) -> int:
    """Number of episodes that agents are playing."""
    return len(self._played)

  async def _watch(self, episode: Episode) -> None:
    await episode.abandoned()
    if not episode.outcome.done():
      self.counts["abandoned"] += 1
      idle = f"agents.idle_timeout_s={self._rules.idle_timeout_s:g} s"
      fault = self._described(episode, f"its agent made no call for {idle}")
      if _is_at_limit(episode):
        verdict = episode.verdict = self._at_limit(episode, fault)
        episode.outcome.set_result(episode.trajectory(verdict))
      else:
        episode.outcome.set_exception(EnvironmentFault(fault))
      self._end(episode)

  def _described(self, episode: Episode, why: str) -> str:
    """Describes an end that the agent did not choose."""
    spec, written = episode.spec, self._last_lines()
    lines = f". The agents' program wrote last:\n{written}" if written else ""
    return (
      f"episode {episode.id}, number {spec.attempt} in group {spec.group_id}: "
      f"{why}; {episode.described()}{lines or '; look at its log'}"
    )

  def _at_limit(self, episode: Episode, described: str) -> Verdict:
    self.counts["cut"] += 1
    if self.counts["cut"] == 1:
      _log.warning(
        "%s\nIt is scored as %r, and so are all like it (agents/cut): raise "
        "the limit, or let the agent catch its library's error and end the "
        "episode with a reward",
        described,
        episode.limit.value,
      )
    return Verdict(0.0, episode.limit, {}, is_agents=False)

  def _end(self, episode: Episode) -> None:
    if self._played.pop(episode.id, None) is None:
      return
    self._ended[episode.id] = episode.verdict
    if len(self._ended) > _MAX_ENDED:
      self._ended.popitem(last=False)


def _is_at_limit(episode: Episode) -> bool:
  return bool(episode.num_turns) and episode.limit is not Status.RUNNING


def _require_roles(episode: Episode, given: Mapping[str, float]) -> None:
  """Raises `ApiError` for rewards of roles that made no call."""
  if unknown := sorted(given.keys() - episode.roles):
    raise ApiError(
      f"role_rewards names {', '.join(map(repr, unknown))}, and episode "
      f"{episode.id} has calls of {', '.join(map(repr, sorted(episode.roles)))}"
      f": a call's role is its header {ROLE_HEADER}",
      param="role_rewards",
    )


def _final_status(value: str) -> str:
  if value not in _FINAL:
    raise invalid(f"one of {', '.join(_FINAL)}")
  return value


class TakeRequest(JsonObject):
  """The body of `POST /v1/episodes`."""

  wait_s: Annotated[float, number_between(0.0, _MAX_WAIT_S)] = 30.0


_Numbers = Annotated[
  dict[str, Annotated[float, number_between(-LARGEST, LARGEST)]],
  FailFast(),
  must_be("an object of numbers"),
]


class FinishRequest(JsonObject):
  """The body of `POST /v1/episodes/<id>`."""

  reward: Annotated[float, number_between(-1e9, 1e9)]
  status: Annotated[str, AfterValidator(_final_status)] = Status.COMPLETED.value
  metrics: _Numbers = {}
  role_rewards: _Numbers = {}
  error: str = ""


def identity_of(request: web.Request) -> tuple[str, bool]:
  """Returns a call's idempotency key, and whether its client says it is new.

  Without a key, clients of OpenAI and Anthropic count the repetitions of a
  call; others say nothing, and a call with the same body is then taken for one.
  """
  key = request.headers.get("Idempotency-Key", "")
  num_retries = request.headers.get("X-Stainless-Retry-Count")
  return key, not key and num_retries == "0"


class EpisodeApi:
  """The routes of `Episodes`; None: this server records no episodes."""

  def __init__(self, episodes: Episodes | None, http: HttpLimits):
    self._episodes, self._http = episodes, http

  def add_to(self, application: web.Application) -> None:
    """Adds the routes."""
    application.router.add_post(ROUTE, self.take)
    application.router.add_post(f"{ROUTE}/{{id}}", self.finish)

  def episode_of(self, request: web.Request) -> Episode | None:
    """Returns the episode that a call names, if it names one."""
    ids = {request.headers.get(HEADER), request.match_info.get("episode")}
    if (key := key_of(request)).startswith(ID_PREFIX):
      ids.add(key)
    if len(ids := ids - {None}) > 1:
      raise ApiError(
        f"the call names several episodes, {', '.join(sorted(map(str, ids)))}: "
        f"in its header {HEADER}, its URL and its API key. Name one"
      )
    for id in ids:
      return self._recorded().get(str(id))
    if ROLE_HEADER in request.headers:
      raise ApiError(
        f"{ROLE_HEADER} without {HEADER}: the call would be answered and not "
        "trained on. Name the episode as well, or leave out the role"
      )
    return None

  def has_key(self, request: web.Request) -> bool:
    """Returns whether the API key of a call is an episode's id.

    It is a secret that only its agent has. It opens calls of the episode, and
    neither its end nor other episodes.
    """
    path, episodes = request.path, self._episodes
    is_call = is_api_path(path) and not path.startswith(ROUTE)
    return is_call and episodes is not None and episodes.knows(key_of(request))

  @staticmethod
  def role_of(request: web.Request) -> str:
    """Returns the role that a call names in its header; "" without."""
    role = request.headers.get(ROLE_HEADER, "")
    if role and not _ROLE.fullmatch(role):
      raise ApiError(
        f"{ROLE_HEADER}: {role[:80]!r} must be a name of up to 64 letters, "
        "digits, dots, hyphens and underscores"
      )
    return role

  async def take(self, request: web.Request) -> web.Response:
    """Waits for an episode to be offered."""
    body = await read_body(request, self._http)
    fields = read(TakeRequest, parse_object(body or b"{}"))
    episode = await self._recorded().take(fields.wait_s)
    if episode is None:
      return web.Response(status=204)
    spec = episode.spec
    return web.json_response(
      {
        "id": episode.id,
        "object": "episode",
        "task": dataclasses.asdict(spec.task),
        "group": spec.group_id,
        "attempt": spec.attempt,
        "seed": spec.seed,
        "max_turns": episode.rules.limits.max_turns,
      }
    )

  async def finish(self, request: web.Request) -> web.Response:
    """Ends an episode with the agent's verdict."""
    body = await read_body(request, self._http)
    fields = read(FinishRequest, parse_object(body))
    verdict = Verdict(
      fields.reward,
      Status(fields.status),
      fields.metrics,
      fields.role_rewards,
      f"{fields.error:.{_MOST_SAID}}",
    )
    id = request.match_info["id"]
    status = self._recorded().finish(id, verdict)
    body_json: dict[str, Any] = {"id": id, "object": "episode"}
    return web.json_response(body_json | {"status": status.value})

  def _recorded(self) -> Episodes:
    if self._episodes is None:
      raise ApiError(
        "this server records no episodes: ask the learner's own server, whose "
        "port is agents.port",
        code="no_episodes_here",
        status=404,
      )
    return self._episodes
