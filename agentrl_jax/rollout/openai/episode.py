"""One episode that an external agent plays, recorded as it was sampled.

The record keeps the tokens as they were sent and sampled. A call that does not
continue where the last one ended is refused by name.
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
from agentrl_jax.data.records import (
  EpisodeSpec,
  Message,
  Recorder,
  Status,
  Tool,
  Trajectory,
  message_to_json,
)
from agentrl_jax.errors import ConfigError, PromptTooLong
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.openai.choices import Choice
from agentrl_jax.rollout.openai.conversation_cache import (
  CallContext,
  TokenizedPrefix,
  conversation_keys,
  extend,
  render,
  tools_key,
)
from agentrl_jax.rollout.openai.schema import CompletionRequest, ServingLimits
from agentrl_jax.rollout.server.errors import ApiError


class PolicySlotDraw(Protocol):
  """Draws policy slots; `controller.cross_policy.CrossPolicy` is one."""

  @property
  def weights(self) -> tuple[float, ...]: ...

  @property
  def is_drawn(self) -> bool:
    """True if the draw is random."""
    ...

  def __call__(self, seed: int, turn: int) -> int:
    """Returns the policy slot for a turn of the episode with this seed."""
    ...


class FreshPolicySlot:
  """Draws policy slot 0 always."""

  weights, is_drawn = (1.0,), False

  def __call__(self, seed: int, turn: int) -> int:
    """See `PolicySlotDraw`."""
    return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeRules:
  """Limits of an episode, the same as those of `controller.episode`."""

  max_turns: int
  max_tokens: int  # prompt, observations and answers together
  max_answer_tokens: int  # of one answer
  temperature: float  # of every draw
  idle_timeout_s: float  # without a call, after which it is abandoned

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if value <= 0:
        raise ConfigError(f"{name}={value} of an episode must be above 0")


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The result of an episode, as its agent reports it."""

  reward: float
  status: Status
  metrics: Mapping[str, float]


class Episode(CallContext):
  """The growing record of one episode."""

  def __init__(
    self,
    spec: EpisodeSpec,
    rules: EpisodeRules,
    limits: ServingLimits,
    draw: PolicySlotDraw,
  ):
    super().__init__(limits)
    self._draw = draw
    self._is_named = False  # the agent named the call's policy slot
    self._all_drawn = draw.is_drawn  # the policy slots of the turns so far
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
    self._answer: Completion | None = None  # the last one
    self._answered_body = b""  # digest of the last call that was answered
    self._body = b""  # digest of the call that is being answered
    self._is_busy = False
    self._last_call = asyncio.get_running_loop().time()

  @property
  def num_turns(self) -> int:
    """Number of answers so far."""
    return self._record.num_turns

  @property
  def num_tokens(self) -> int:
    """Prompt, observations and answers together."""
    return len(self._record.stream)

  @contextlib.contextmanager
  def calling(self) -> Iterator[None]:
    """Encloses one call; refuses a second one at the same time."""
    if self._is_busy:
      raise conflict(
        f"episode {self.id} has a call that is not answered yet; wait for it, "
        "or hang up and call again",
        "episode_busy",
      )
    self._is_busy = True
    try:
      yield
    finally:
      self._is_busy = False
      self._last_call = asyncio.get_running_loop().time()

  def repeated(self, body: bytes) -> "Repeated | None":
    """Returns the last call and its answer if this call is the same.

    Clients repeat a call whose answer was lost on its way.
    """
    self._body = hashlib.sha256(body).digest()
    if self._answer is None or self._body != self._answered_body:
      return None
    prompt_length = self.num_tokens - len(self._answer.sampled)
    return Repeated(self, self._record.stream[:prompt_length], self._answer)

  def answer_budget(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """Returns what the call asks for, or what the episode has left of it."""
    rules = self.rules
    left = min(rules.max_tokens, self.limits.context) - len(prompt)
    if left < 1:
      raise PromptTooLong(
        f"{len(prompt)} tokens stand before the answer, and an episode has "
        f"{min(rules.max_tokens, self.limits.context)}: end it, as "
        f"{Status.AGENT_CONTEXT_LIMIT.value!r}"
      )
    asked = request.answer_tokens or rules.max_answer_tokens
    return min(left, asked, rules.max_answer_tokens)

  def policy_slot(self, named: int | None) -> int:
    """Returns the policy slot that the call names, or else draws one."""
    self._is_named = named is not None
    if named is not None:
      return named
    return self._draw(self.spec.seed, self.num_turns)

  def fill_in(self, request: CompletionRequest) -> CompletionRequest:
    """Returns the request at the run's temperature, with a seed of the turn."""
    changes: dict[str, float] = {"temperature": self.rules.temperature}
    if request.seed is None:
      text = f"{self.spec.seed} turn {self.num_turns}"
      digest = hashlib.sha256(text.encode()).digest()
      changes["seed"] = int.from_bytes(digest[:8])
    return request.model_copy(update=changes)

  def check(
    self, request: CompletionRequest, prompts: Sequence[np.ndarray]
  ) -> None:
    """Refuses calls that do not continue the episode."""
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
    """Refuses sampling that the learner does not compute with."""
    for name in ("frequency_penalty", "presence_penalty", "logit_bias"):
      if found := getattr(request, name):
        shown = dict(found) if name == "logit_bias" else found
        raise ApiError(
          f"{name}={shown}: a call of an episode is sampled from the policy's "
          "own distribution, which is what the learner computes, without "
          "penalties and biases. Leave it out, or make the call without the "
          "episode's header: it is then answered and not trained on",
          param=name,
          code="unsupported_value",
        )
    asked = (request.temperature, request.top_p, request.top_k, request.min_p)
    run = self.rules.temperature
    if asked[1:] != (1.0, 0, 0.0) or asked[0] not in (None, run):
      raise ApiError(
        f"(temperature, top_p, top_k, min_p)={asked}: a call of an episode is "
        f"sampled at the run's sampling.temperature={run:g}, from all tokens. "
        "Leave them out, or set sampling.temperature as your agent needs it",
        param="temperature",
        code="unsupported_value",
      )

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """Returns the recorded tokens, and the new messages rendered."""
    if not self.num_turns:
      return render(codec, messages, tools)
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
    return extend(prefix, messages[known:], codec)

  def record(
    self,
    draw: Choice,
    messages: Sequence[Message] = (),
    tools: Sequence[Tool] = (),
  ) -> None:
    """Records an answer with the tokens before it."""
    self._record.add_observation(draw.prompt[self.num_tokens :])
    self._record.add_action(
      draw.prompt, draw.answer, grammar=draw.sampling.grammar
    )
    self._answer, self._ended_by = draw.answer, draw.ended_by
    self._all_drawn &= not self._is_named
    self._answered_body = self._body
    self._messages, self._tools = messages, tools_key(tools)
    keys = conversation_keys(messages, tools)
    self._key = keys[-1] if keys else b""

  def trajectory(self, verdict: Verdict) -> Trajectory:
    """Returns the record, after a check of every token."""
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
    """Restarts the idle timeout."""
    self._last_call = asyncio.get_running_loop().time()

  def _branched(self, param: str) -> ApiError:
    return conflict(
      f"this call does not continue where the last one of episode {self.id} "
      f"ended: its {param} must begin with all {len(self._messages)} messages, "
      f"{self.num_tokens} tokens, that were sent and answered before, unchanged"
      ". Make calls with another history without the episode's "
      "header; they are answered and not trained on",
      "episode_branched",
      param,
    )


def conflict(message: str, code: str, param: str | None = None) -> ApiError:
  """Returns the error of a call that does not fit the episode's state."""
  return ApiError(message, code=code, param=param, status=409)


class Repeated(CallContext):
  """The last call of an episode made again, and a generator of its answer."""

  num_policy_slots = 1

  def __init__(
    self, episode: CallContext, prompt: np.ndarray, answer: Completion
  ):
    super().__init__(episode.limits)
    self._episode, self._prompt, self._answer = episode, prompt, answer

  def answer_budget(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """Returns the budget of the first call."""
    return self._episode.answer_budget(prompt, request, name)

  def fill_in(self, request: CompletionRequest) -> CompletionRequest:
    """Returns the request as the first call was sampled."""
    return self._episode.fill_in(request)

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """Returns the prompt of the first call."""
    return self._prompt

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Returns the answer that was recorded."""
    return self._answer
