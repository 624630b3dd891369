"""One episode that an agent elsewhere plays, recorded as it was sampled.

What was said stays as it was sent and sampled: a call that does not go on where
the last one ended is refused by name.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.messages import Message, Tool, message_to_json
from agentrl_jax.data.trajectory import Status, Trajectory, Turn
from agentrl_jax.errors import ConfigError, PromptTooLong
from agentrl_jax.rollout.api import Answer
from agentrl_jax.rollout.openai.attempt import Attempt, PolicySlotDraw
from agentrl_jax.rollout.openai.choices import Choice
from agentrl_jax.rollout.openai.conversation_cache import (
  CallContext,
  TokenizedPrefix,
  conversation_keys,
  extended,
  rendered,
  tools_key,
)
from agentrl_jax.rollout.openai.repeated import Repeated
from agentrl_jax.rollout.openai.requests import CompletionRequest, ServingLimits
from agentrl_jax.rollout.server.errors import ApiError


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeRules:
  """What bounds an episode, as `controller.episode` bounds its own."""

  max_turns: int
  max_tokens: int  # prompt, observations and answers together
  max_answer_tokens: int  # of one answer
  temperature: float = 1.0  # of every draw
  idle_timeout_s: float = 600.0  # without a call: the agent is taken for gone

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if value <= 0:
        raise ConfigError(f"{name}={value} of an episode must be above 0")


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What an agent says of its attempt."""

  reward: float
  status: Status
  metrics: Mapping[str, float]


class Episode(CallContext):
  """The growing record of one attempt."""

  def __init__(
    self,
    attempt: Attempt,
    rules: EpisodeRules,
    limits: ServingLimits,
    draw: PolicySlotDraw,
  ):
    super().__init__(limits)
    self._draw = draw
    self._is_named = False  # the policy slot of this call, by the agent
    self._all_drawn = draw.is_drawn  # the policy slots of the turns so far
    self.id = uuid.uuid4().hex
    self.attempt, self.rules = attempt, rules
    self.outcome: asyncio.Future[Trajectory] = (
      asyncio.get_running_loop().create_future()
    )
    self.verdict: Verdict | None = None
    self.turns: list[Turn] = []
    self._said = TokenizedPrefix(np.empty(0, np.int32), None)
    self._spoken: Sequence[Message] = ()  # messages, the last answer included
    self._key = b""  # of them; empty after a call without messages
    self._tools = b""
    self._answer: Answer | None = None  # the last one
    self._body = b""  # digest of the last call that was answered
    self._asked = b""  # of the call that is being answered
    self._is_busy = False
    self._last_heard = asyncio.get_running_loop().time()

  @property
  def num_tokens(self) -> int:
    """Prompt, observations and answers together."""
    return len(self._said.stream)

  @contextlib.contextmanager
  def calling(self) -> Iterator[None]:
    """Around one call: they come one after the other."""
    if self._is_busy:
      raise conflict(
        f"episode {self.id} has a call that is not answered yet; wait for it, "
        "or hang up and ask again",
        "episode_busy",
      )
    self._is_busy = True
    try:
      yield
    finally:
      self._is_busy = False
      self._last_heard = asyncio.get_running_loop().time()

  def repeated(self, body: bytes) -> Repeated | None:
    """What the last call was answered with, if this one is the same.

    Clients repeat a call whose answer was lost on its way.
    """
    self._asked = hashlib.sha256(body).digest()
    if not self.turns or self._asked != self._body:
      return None
    assert self._answer is not None, "a turn was recorded without its answer"
    asked = self.num_tokens - len(self._answer.sampled)
    return Repeated(self, self._said.stream[:asked], self._answer)

  def room(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """What the episode leaves; asking for more gets as much as there is."""
    rules = self.rules
    left = min(rules.max_tokens, self.limits.context) - len(prompt)
    if left < 1:
      raise PromptTooLong(
        f"{len(prompt)} tokens stand before the answer, and an episode has "
        f"{min(rules.max_tokens, self.limits.context)}: end it, as "
        f"{Status.AGENT_CONTEXT_LIMIT.value!r}"
      )
    asked = request.max_tokens or rules.max_answer_tokens
    return min(left, asked, rules.max_answer_tokens)

  def policy_slot(self, named: int | None) -> int:
    """That which is named, or else the one that the run draws."""
    self._is_named = named is not None
    if named is not None:
      return named
    return self._draw(self.attempt.seed, len(self.turns))

  def complete(self, request: CompletionRequest) -> CompletionRequest:
    """At the run's temperature; the seed is by the attempt and the turn."""
    text = f"{self.attempt.seed} turn {len(self.turns)}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return dataclasses.replace(
      request,
      temperature=self.rules.temperature,
      seed=request.seed if request.has_seed else seed,
    )

  def check(
    self, request: CompletionRequest, prompts: Sequence[np.ndarray]
  ) -> None:
    """Refuses what has no place in a record of one line of talk."""
    if request.n > 1 or len(prompts) > 1:
      raise ApiError(
        f"n={request.n} and {len(prompts)} prompts: an episode has one answer "
        "per call. Play several episodes at once instead",
        param="n",
        code="unsupported_value",
      )
    self._refuse_other_draws(request)
    if len(self.turns) >= self.rules.max_turns:
      raise conflict(
        f"episode {self.id} has had its {self.rules.max_turns} answers: end "
        f"it, as {Status.TASK_LIMIT_REACHED.value!r}",
        "episode_turn_limit",
      )
    stream = self._said.stream
    (prompt,) = prompts
    if not np.array_equal(prompt[: len(stream)], stream):
      raise self._branched("prompt")

  def _refuse_other_draws(self, request: CompletionRequest) -> None:
    """The learner computes what the sampler drew from, for the whole run."""
    for name in ("frequency_penalty", "presence_penalty", "logit_bias"):
      if found := getattr(request, name):
        shown = dict(found) if name == "logit_bias" else found
        raise ApiError(
          f"{name}={shown}: what is trained on is drawn from the policy's own "
          "distribution, which is what the learner computes; it knows of no "
          "penalties and biases. Leave it out, or make the call without the "
          "episode's header: it is answered then and not trained on",
          param=name,
          code="unsupported_value",
        )
    asked = (request.temperature, request.top_p, request.top_k, request.min_p)
    run = self.rules.temperature
    if asked[1:] != (1.0, 0, 0.0) or asked[0] not in (None, run):
      raise ApiError(
        f"(temperature, top_p, top_k, min_p)={asked}: what is trained on is "
        f"drawn at the run's sampling.temperature={run:g}, from all tokens. "
        "Leave them out, or set that to what your agent wants",
        param="temperature",
        code="unsupported_value",
      )

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """What was said, verbatim, and the messages that are new."""
    if not self.turns:
      return rendered(codec, messages, tools)
    if tools_key(tools) != self._tools:
      raise conflict(
        f"episode {self.id} began with other tools, which the policy has read; "
        "give the same ones with every call",
        "episode_tools_changed",
      )
    known, keys = len(self._spoken), conversation_keys(messages, tools)
    if len(messages) <= known or not known or keys[known - 1] != self._key:
      raise self._branched("messages")
    return extended(self._said, messages[known:], codec)

  def heard(
    self,
    draw: Choice,
    messages: Sequence[Message] = (),
    tools: Sequence[Tool] = (),
  ) -> None:
    """Records an answer with what stood before it."""
    self._answer = answer = draw.answer
    self.turns.append(
      Turn(
        observation=_frozen(draw.prompt[self.num_tokens :], np.int32),
        sampled=_frozen(answer.sampled, np.int32),
        behavior_logprob=_frozen(answer.behavior_logprob, np.float32),
        raw_logprob=_frozen(answer.raw_logprob, np.float32),
        version=_frozen(answer.version, np.int32),
        policy_slot=answer.policy_slot,
        grammar=draw.spec.grammar,
      )
    )
    self._all_drawn &= not self._is_named
    self._said, self._body = TokenizedPrefix.by(draw), self._asked
    self._spoken, self._tools = messages, tools_key(tools)
    keys = conversation_keys(messages, tools)
    self._key = keys[-1] if keys else b""

  def trajectory(self, verdict: Verdict) -> Trajectory:
    """The record, closed, and checked token for token."""
    attempt, turns = self.attempt, list(self.turns)
    if turns:
      turns[-1] = dataclasses.replace(turns[-1], reward=verdict.reward)
    parts = [part for t in turns for part in (t.observation, t.sampled)]
    if not np.array_equal(np.concatenate([*parts, []]), self._said.stream):
      raise RuntimeError(
        f"the turns of episode {self.id} hold other tokens than were sent and "
        "sampled: the recorder has a bug"
      )
    return Trajectory(
      task=attempt.task,
      group_id=attempt.group_id,
      attempt=attempt.number,
      seed=attempt.seed,
      turns=tuple(turns),
      status=verdict.status,
      reward=verdict.reward,
      metrics=verdict.metrics,
      transcript=tuple(map(message_to_json, self._spoken)),
      policy_slot_weights=self._draw.weights if self._all_drawn else (),
    )

  async def abandoned(self) -> None:
    """Waits until nothing was heard of the agent for `idle_timeout_s`."""
    loop = asyncio.get_running_loop()
    while (
      self._is_busy
      or loop.time() < self._last_heard + self.rules.idle_timeout_s
    ):
      ends = self._last_heard + self.rules.idle_timeout_s - loop.time()
      await asyncio.sleep(max(ends, 0.05))

  def touch(self) -> None:
    """The agent was heard of."""
    self._last_heard = asyncio.get_running_loop().time()

  def _branched(self, param: str) -> ApiError:
    return conflict(
      f"this call does not go on where the last one of episode {self.id} "
      f"ended: its {param} must begin with all {len(self._spoken)} messages, "
      f"{self.num_tokens} tokens, that were sent and answered before, unchanged"
      ". An agent that rewrites its history or asks aside does so without the "
      "episode's header; that is answered and not trained on",
      "episode_branched",
      param,
    )


def conflict(message: str, code: str, param: str | None = None) -> ApiError:
  """A call that an episode has no place for."""
  return ApiError(message, code=code, param=param, status=409)


def _frozen(array: np.ndarray, dtype: type) -> np.ndarray:
  copy: np.ndarray = np.array(array, dtype)
  copy.setflags(write=False)
  return copy
