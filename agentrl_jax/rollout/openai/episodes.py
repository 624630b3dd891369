"""Episodes that agents elsewhere play.

The controller offers attempts, as it would to a player of its own: `play` here
is a `controller.player.Player`. An agent takes one, makes its calls under the
episode's id, and tells what the attempt was worth. Its environment is its own
affair.
"""

import asyncio
import collections
import contextlib
from collections.abc import Callable

from agentrl_jax.data.trajectory import EpisodeSpec, Status, Task, Trajectory
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.rollout.openai.episode import (
  Episode,
  EpisodeRules,
  PolicySlotDraw,
  Verdict,
  conflict,
)
from agentrl_jax.rollout.openai.requests import ServingLimits
from agentrl_jax.rollout.server.errors import ApiError

_KEPT_ENDS = 4096  # ended episodes that are still known by their id


class FreshPolicySlot:
  """Policy slot 0, always."""

  weights, is_drawn = (1.0,), False

  def __call__(self, seed: int, turn: int) -> int:
    """See `PolicySlotDraw`."""
    return 0


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

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """Waits until an agent has played the attempt; see `Player.play`.

    Raises `EnvironmentFault` if the agent is gone: the attempt is offered anew
    by whoever retries it. Cancelling takes the offer back.
    """
    episode = Episode(
      spec, self._rules, self._limits, self._draw_for(spec.task)
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
      if verdict.status.is_policys_doing and not episode.num_turns:
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
      spec = episode.spec
      episode.outcome.set_exception(
        EnvironmentFault(
          f"nothing was heard of the agent that plays episode {episode.id}, "
          f"attempt {spec.attempt} in group {spec.group_id}, for "
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
