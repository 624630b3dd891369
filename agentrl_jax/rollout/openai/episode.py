"""Records an episode that an external agent plays through OpenAI calls.

The tokens stay as they were sent and sampled: a call that does not continue
where the last one ended is refused with the reason.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.messages import Message, Tool, message_to_json
from agentrl_jax.data.recorder import Recorder
from agentrl_jax.data.trajectory import EpisodeSpec, Status, Trajectory
from agentrl_jax.errors import ConfigError, PromptTooLong
from agentrl_jax.rollout.api import Answer
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
  """Limits of an episode, as `controller.episode` has for its own."""

  max_turns: int
  max_tokens: int  # prompt, observations and answers together
  max_answer_tokens: int  # of one answer
  temperature: float = 1.0  # of every draw
  idle_timeout_s: float = 600.0  # without a call; the agent then counts as gone

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if value <= 0:
        raise ConfigError(f"{name}={value} of an episode must be above 0")


@dataclasses.dataclass(frozen=True)
class Verdict:
  """An agent's result of its episode."""

  reward: float
  status: Status
  metrics: Mapping[str, float]


class PolicySlotDraw(Protocol):
  """Draws policy slots; `controller.cross_policy.CrossPolicy` is one."""

  @property
  def weights(self) -> tuple[float, ...]: ...

  @property
  def is_drawn(self) -> bool:
    """Whether policy slots are drawn at random."""
    ...

  def __call__(self, seed: int, turn: int) -> int:
    """Returns the policy slot that answers a turn of the episode."""
    ...


class Episode(CallContext):
  """The growing record of one episode, and the state of its calls."""

  def __init__(
    self,
    spec: EpisodeSpec,
    rules: EpisodeRules,
    limits: ServingLimits,
    draw: PolicySlotDraw,
  ):
    super().__init__(limits)
    self._draw = draw
    self._is_named = False  # the agent named the policy slot of this call
    self._all_drawn = draw.is_drawn  # all policy slots so far were drawn
    self.id = uuid.uuid4().hex
    self.spec, self.rules = spec, rules
    self.outcome: asyncio.Future[Trajectory] = (
      asyncio.get_running_loop().create_future()
    )
    self.verdict: Verdict | None = None
    self._record = Recorder(spec)
    self._ended_by: int | None = None  # the last answer's stop token
    self._messages: Sequence[Message] = ()  # the last answer included
    self._key = b""  # of the messages; empty after a call without messages
    self._tools = b""
    self._answer: Answer | None = None  # the last one
    self._answered_body = b""  # digest of the last call that was answered
    self._body = b""  # digest of the call that is being answered
    self._is_busy = False
    self._last_call = asyncio.get_running_loop().time()

  @property
  def num_turns(self) -> int:
    """Answers so far."""
    return self._record.num_turns

  @property
  def num_tokens(self) -> int:
    """Prompt, observations and answers together."""
    return len(self._record.stream)

  @contextlib.contextmanager
  def calling(self) -> Iterator[None]:
    """Wraps one call; a second call at the same time is refused."""
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
      self.touch()

  def repeated(self, body: bytes) -> Repeated | None:
    """Returns the answer of the last call, if this one is the same.

    Clients repeat a call whose answer was lost on its way.
    """
    self._body = hashlib.sha256(body).digest()
    if self._answer is None or self._body != self._answered_body:
      return None
    prompt_length = self.num_tokens - len(self._answer.sampled)
    return Repeated(self, self._record.stream[:prompt_length], self._answer)

  def room(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """Returns the answer's token limit: the call's, as far as room is left."""
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
    """Returns the named policy slot, or the one that the run draws."""
    self._is_named = named is not None
    if named is not None:
      return named
    return self._draw(self.spec.seed, self.num_turns)

  def complete(self, request: CompletionRequest) -> CompletionRequest:
    """Sets the run's temperature, and a seed by episode and turn."""
    text = f"{self.spec.seed} turn {self.num_turns}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return dataclasses.replace(
      request,
      temperature=self.rules.temperature,
      seed=request.seed if request.has_seed else seed,
    )

  def check(
    self, request: CompletionRequest, prompts: Sequence[np.ndarray]
  ) -> None:
    """Refuses calls that a record of one linear conversation cannot hold."""
    if request.n > 1 or len(prompts) > 1:
      raise ApiError(
        f"n={request.n} and {len(prompts)} prompts: an episode has one answer "
        "per call. Play several episodes at once instead",
        param="n",
        code="unsupported_value",
      )
    self._refuse_other_draws(request)
    if self.num_turns >= self.rules.max_turns:
      raise conflict(
        f"episode {self.id} has had its {self.rules.max_turns} answers: end "
        f"it, as {Status.TASK_LIMIT_REACHED.value!r}",
        "episode_turn_limit",
      )
    stream = self._record.stream
    (prompt,) = prompts
    if not np.array_equal(prompt[: len(stream)], stream):
      raise self._branched("prompt")

  def _refuse_other_draws(self, request: CompletionRequest) -> None:
    """Refuses distributions that the learner does not compute."""
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
    """Returns the recorded tokens and the new messages, rendered."""
    if not self.num_turns:
      return rendered(codec, messages, tools)
    if tools_key(tools) != self._tools:
      raise conflict(
        f"episode {self.id} began with other tools, which the policy has read; "
        "give the same ones with every call",
        "episode_tools_changed",
      )
    known, keys = len(self._messages), conversation_keys(messages, tools)
    if len(messages) <= known or not known or keys[known - 1] != self._key:
      raise self._branched("messages")
    prefix = TokenizedPrefix(self._record.stream, self._ended_by)
    return extended(prefix, messages[known:], codec)

  def heard(
    self,
    draw: Choice,
    messages: Sequence[Message] = (),
    tools: Sequence[Tool] = (),
  ) -> None:
    """Records an answer and the tokens that stand before it."""
    self._record.add_observation(draw.prompt[self.num_tokens :])
    self._record.add_action(draw.prompt, draw.answer, grammar=draw.spec.grammar)
    self._answer, self._ended_by = draw.answer, draw.ended_by
    self._all_drawn &= not self._is_named
    self._answered_body = self._body
    self._messages, self._tools = messages, tools_key(tools)
    keys = conversation_keys(messages, tools)
    self._key = keys[-1] if keys else b""

  def trajectory(self, verdict: Verdict) -> Trajectory:
    """Returns the record, checked token for token."""
    self._record.set_reward(verdict.reward)
    return self._record.trajectory(
      verdict.status,
      reward=verdict.reward,
      metrics=verdict.metrics,
      transcript=[*map(message_to_json, self._messages)],
      policy_slot_weights=self._draw.weights if self._all_drawn else (),
    )

  async def abandoned(self) -> None:
    """Waits until the agent has made no call for `idle_timeout_s`."""
    loop = asyncio.get_running_loop()
    while (
      self._is_busy or loop.time() < self._last_call + self.rules.idle_timeout_s
    ):
      ends = self._last_call + self.rules.idle_timeout_s - loop.time()
      await asyncio.sleep(max(ends, 0.05))

  def touch(self) -> None:
    """Notes a sign of life of the agent."""
    self._last_call = asyncio.get_running_loop().time()

  def _branched(self, param: str) -> ApiError:
    return conflict(
      f"this call does not go on where the last one of episode {self.id} "
      f"ended: its {param} must begin with all {len(self._messages)} messages, "
      f"{self.num_tokens} tokens, that were sent and answered before, unchanged"
      ". An agent that rewrites its history or asks aside does so without the "
      "episode's header; that is answered and not trained on",
      "episode_branched",
      param,
    )


def conflict(message: str, code: str, param: str | None = None) -> ApiError:
  """Returns the error of a call that does not fit the episode."""
  return ApiError(message, code=code, param=param, status=409)
