"""One episode that an external agent plays, recorded as it was sampled.

- The record keeps the tokens as they were sent and sampled, on one line or on
  several (`episodes.lines`).
- A call is one `EpisodeCall`: it claims its line when its prompt is known, and
  adds its answer to the line when that is complete. A call that fails or is
  cancelled leaves no trace.
- Calls of different lines may be answered at the same time.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.recorder import Recorder
from agentrl_jax.data.records import (
  EpisodeLimits,
  EpisodeSpec,
  Message,
  Status,
  Tool,
  Trajectory,
  message_to_json,
  seed_of,
  status_after,
)
from agentrl_jax.errors import PromptTooLong
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.openai.choices import Choice
from agentrl_jax.rollout.openai.conversation_cache import (
  CallContext,
  conversation_keys,
  extend,
  render,
  tools_key,
)
from agentrl_jax.rollout.openai.episodes.lines import (
  EpisodeLine,
  Lines,
  LineSource,
)
from agentrl_jax.rollout.openai.schema import CompletionRequest, ServingLimits
from agentrl_jax.rollout.openai.thoughts import thought_keys
from agentrl_jax.rollout.server.errors import ApiError

ID_PREFIX = "episode-"  # tells an id from other API keys


class PolicySlotDraw(Protocol):
  """Draws policy slots; `controller.cross_policy.CrossPolicy` is one."""

  @property
  def weights(self) -> tuple[float, ...]: ...

  @property
  def is_drawn(self) -> bool:
    """True if the draw is random."""

  def __call__(self, seed: int, turn: int) -> int:
    """Returns the policy slot for a turn of the episode with this seed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeRules:
  """Rules of an episode that an agent plays."""

  limits: EpisodeLimits  # as of the run's own player; turns of all lines count
  temperature: float  # of every draw; 0 is greedy
  idle_timeout_s: float  # without a call, after which it is abandoned
  max_lines: int = 1
  calls: str = "free"  # grammar of answers, where a call has tools


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The result of an episode, as its agent reports it."""

  reward: float
  status: Status
  metrics: Mapping[str, float]
  role_rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
  error: str = ""  # of the agent, if it could not go on
  is_agents: bool = True  # False: the agent gave up at a limit of the policy


class EpisodeCall(CallContext):
  """A call that is being answered; `number` counts the calls of the episode."""

  def __init__(
    self, episode: "Episode", role: str, digest: bytes, *, is_new: bool
  ):
    super().__init__(episode.limits)
    self._episode = episode
    self.calls = episode.rules.calls
    self.role, self.digest = role, digest
    self.is_new = is_new  # the client says that it is no repetition
    self.is_named = False  # the agent named the call's policy slot
    self.source: LineSource | None = None  # None until the prompt is known
    self.number = -1  # likewise

  @property
  def starts_line(self) -> bool:
    """True if the call starts a line of tokens."""
    return self.source is not None and self.source.line is None

  def claim(self, source: LineSource, number: int) -> None:
    """Takes the line until `release`."""
    self.source, self.number = source, number
    if source.line is not None:
      source.line.is_busy = True

  def release(self) -> None:
    """Gives the line back."""
    if self.source is not None and self.source.line is not None:
      self.source.line.is_busy = False

  def repeated(self) -> "Repeated | None":
    """Returns the recorded answer if this call was answered already."""
    line = None if self.is_new else self._episode.answered(self.digest)
    return Repeated(self, line) if line else None

  def answer_budget(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """Returns what the call asks for, or what its line has left of it."""
    rules = self._episode.rules.limits
    most = min(rules.max_tokens, self.limits.context)
    left = most - len(prompt)
    if left < 1:
      self._episode.meet(
        self,
        Status.AGENT_CONTEXT_LIMIT,
        f", and the last prompt of {len(prompt)} tokens was too long",
      )
      raise PromptTooLong(
        f"{len(prompt)} tokens stand before the answer, and an episode has "
        f"{most}: end it, as {Status.AGENT_CONTEXT_LIMIT.value!r}, or go on "
        "with a shorter history, as a line of its own (agents.max_lines)"
      )
    asked = request.answer_tokens or rules.max_answer_tokens
    return min(left, asked, rules.max_answer_tokens)

  def policy_slot(self, named: int | None) -> int:
    """Returns the policy slot that the call names, or else draws one."""
    self.is_named = named is not None
    if named is not None:
      return named
    return self._episode.draw(self._episode.spec.seed, self.number)

  def fill_in(self, request: CompletionRequest) -> CompletionRequest:
    """Returns the request at the run's temperature, with a seed of the call."""
    temperature = self._episode.rules.temperature
    changes: dict[str, float] = {"temperature": temperature}
    if request.seed is None:
      changes["seed"] = seed_of(self._episode.spec.seed, "turn", self.number)
    return request.model_copy(update=changes)

  def check(
    self, request: CompletionRequest, prompts: Sequence[np.ndarray]
  ) -> None:
    """Refuses calls that the episode cannot record."""
    if request.n > 1 or len(prompts) > 1:
      raise ApiError(
        f"n={request.n} and {len(prompts)} prompts: an episode has one answer "
        "per call. Make several calls, each with its own `seed`, or play "
        "several episodes at once instead",
        param="n",
        code="unsupported_value",
      )
    self._refuse_other_draws(request)
    if self.source is None:
      self._episode.claim_tokens(self, prompts[0])

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """Returns the recorded tokens, and the new messages rendered."""
    source = self._episode.claim_messages(self, messages, tools)
    context = self.limits.context
    if not source.num_known:
      return render(codec, messages, tools, context)
    return extend(source.prefix, messages, source.num_known, codec, context)

  def record(
    self,
    choice: Choice,
    messages: Sequence[Message] = (),
    tools: Sequence[Tool] = (),
    calls: tuple[str, ...] | None = None,
  ) -> None:
    """Records an answer with the tokens before it."""
    self._episode.add(self, choice, messages, tools, calls)

  def _refuse_other_draws(self, request: CompletionRequest) -> None:
    """Refuses sampling that the learner does not compute with."""
    for name in ("frequency_penalty", "presence_penalty", "logit_bias"):
      if value := getattr(request, name):
        shown = dict(value) if name == "logit_bias" else value
        raise ApiError(
          f"{name}={shown}: a call of an episode is sampled from the policy's "
          "own distribution, which is what the learner computes, without "
          "penalties and biases. Leave it out, or make the call without the "
          "episode's header: it is then answered and not trained on",
          param=name,
          code="unsupported_value",
        )
    asked = (request.temperature, request.top_p, request.top_k, request.min_p)
    run = self._episode.rules.temperature
    if asked[1:] != (1.0, 0, 0.0) or asked[0] not in (None, run):
      raise ApiError(
        f"(temperature, top_p, top_k, min_p)={asked}: a call of an episode is "
        f"sampled at the run's sampling.temperature={run:g}, from all tokens. "
        "Leave them out, or set sampling.temperature as your agent needs it",
        param="temperature",
        code="unsupported_value",
      )


class Repeated(CallContext):
  """A call of an episode made again, and a generator of its answer."""

  num_policy_slots = 1
  repeats = True

  def __init__(self, call: EpisodeCall, line: EpisodeLine):
    super().__init__(call.limits)
    self._call = call
    # The line may get another answer while this one is sent again.
    self._prompt, self._answer = line.last_prompt, line.answer

  def answer_budget(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """Returns the budget of the first call."""
    return self._call.answer_budget(prompt, request, name)

  def fill_in(self, request: CompletionRequest) -> CompletionRequest:
    """Returns the request as the first call was sampled."""
    return self._call.fill_in(request)

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """Returns the prompt of the first call."""
    return self._prompt

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Returns the answer that was recorded."""
    assert self._answer is not None
    return self._answer


class Episode:
  """The growing record of one episode."""

  def __init__(
    self,
    spec: EpisodeSpec,
    rules: EpisodeRules,
    limits: ServingLimits,
    draw: PolicySlotDraw,
  ):
    self.id = f"{ID_PREFIX}{uuid.uuid4().hex}"
    self.spec, self.rules, self.limits, self.draw = spec, rules, limits, draw
    self.outcome: asyncio.Future[Trajectory] = (
      asyncio.get_running_loop().create_future()
    )
    self.verdict: Verdict | None = None
    self._record = Recorder(spec)
    self._lines = Lines()
    self._calls: list[EpisodeCall] = []  # that are being answered
    self._numbers: set[int] = set()  # of the calls that were answered
    self._all_drawn = draw.is_drawn  # the policy slots of the turns so far
    # The limit that the policy met, until a call that was made later is
    # answered to its end: the agent went on.
    self.limit, self._limit_met = Status.RUNNING, ""
    self._beside: set[EpisodeCall] = set()  # calls at the time
    self.num_dropping = 0  # calls that left out thoughts of earlier answers
    self._last_call = asyncio.get_running_loop().time()
    self._lock = threading.Lock()  # calls are read in threads

  @property
  def num_turns(self) -> int:
    """Number of answers so far."""
    return self._record.num_turns

  @property
  def num_lines(self) -> int:
    """Number of lines that have an answer."""
    return len(self._lines.all)

  def described(self) -> str:
    """Describes the last answer, for messages about the episode's end."""
    return f"{self.num_turns} calls were answered{self._limit_met}"

  def meet(self, call: EpisodeCall, limit: Status, what: str = "") -> None:
    """Notes that a call met a limit of the policy; RUNNING: it met none."""
    if limit is not Status.RUNNING:
      self._beside = {call, *self._calls}
    elif call in self._beside:
      return
    self.limit, self._limit_met = limit, what

  @property
  def roles(self) -> set[str]:
    """The roles of the lines so far."""
    return {line.role for line in self._lines.all}

  @contextlib.contextmanager
  def calling(
    self, body: bytes, role: str = "", key: str = "", *, is_new: bool = False
  ) -> Iterator[EpisodeCall]:
    """Encloses one call, by its body and the role of the agent that makes it.

    Calls with other idempotency keys are other calls, and so is one that the
    client says is new. Refuses a call that is being answered already, and with
    one line any other.
    """
    head = json.dumps([role, key]).encode()
    digest = hashlib.sha256(head + b"\n" + body).digest()
    call = EpisodeCall(self, role, digest, is_new=is_new)
    with self._lock:
      others = self._calls
      if (others and self.rules.max_lines == 1) or any(
        other.digest == digest and not is_new for other in others
      ):
        raise self.busy()
      self._calls.append(call)
    try:
      yield call
    finally:
      with self._lock:
        self._calls.remove(call)
        call.release()
      self.touch()

  def require_idle(self) -> None:
    """Raises `ApiError` while a call is being answered."""
    if self._calls:
      raise self.busy()

  def busy(self) -> ApiError:
    """Returns the error of a call that comes too early."""
    return conflict(
      f"episode {self.id} has a call that is not answered yet; wait for it, "
      "or hang up and call again",
      "episode_busy",
    )

  def answered(self, digest: bytes) -> EpisodeLine | None:
    """Returns the line whose last answer was to the same call.

    Clients repeat a call whose answer was lost on its way.
    """
    for line in reversed(self._lines.all):
      if line.call == digest:
        return line
    return None

  def claim_messages(
    self, call: EpisodeCall, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> LineSource:
    """Claims the line that a conversation continues, or a new one."""
    keys = conversation_keys(messages, tools)
    with self._lock:
      source = self._lines.of_messages(keys, thought_keys(messages), call.role)
      if source.line is None:
        self._require_room(call, tools_key(tools))
      return self._claim(call, source)

  def claim_tokens(self, call: EpisodeCall, prompt: np.ndarray) -> LineSource:
    """Claims the line that a prompt of tokens continues, or a new one."""
    with self._lock:
      source = self._lines.of_tokens(prompt, call.role)
      if source.line is None:
        self._require_room(call, None)
      return self._claim(call, source)

  def add(
    self,
    call: EpisodeCall,
    choice: Choice,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    calls: tuple[str, ...] | None,
  ) -> None:
    """Records the answer to a call; `calls` as in `Turn`."""
    source = call.source
    assert source is not None, "a call claims its line before its answer"
    keys = conversation_keys(messages, tools)
    given = thought_keys(messages[: source.num_known])
    with self._lock:
      line = source.line
      if line is None:
        line = EpisodeLine(self._record.start_line(call.role))
      line.add(choice, calls)
      if messages:
        line.messages = [*source.messages, *messages[source.num_known :]]
        self.num_dropping += given != tuple(source.prefix.thoughts)
      line.tools, line.call = tools_key(tools), call.digest
      self._lines.add(line, keys[-1] if keys else b"", choice.ended_by)
      self._numbers.add(call.number)
      self._all_drawn &= not call.is_named
      if choice.finish_reason == "stop":
        self.meet(call, Status.RUNNING)
        return
      limits = self.rules.limits
      self.meet(
        call,
        Status.AGENT_CONTEXT_LIMIT,
        f", and the last answer was cut after {choice.num_sampled} tokens "
        f"(episode.max_answer_tokens={limits.max_answer_tokens}, "
        f"episode.max_tokens={limits.max_tokens}, or what the call asked for)",
      )

  def trajectory(self, verdict: Verdict, fault: str = "") -> Trajectory:
    """Returns the record, after a check of every token."""
    self._record.set_reward(verdict.reward)
    record = self._record.trajectory(
      verdict.status,
      reward=verdict.reward,
      metrics=verdict.metrics,
      transcript=list(self._transcript()),
      policy_slot_weights=self.draw.weights if self._all_drawn else (),
      role_rewards=verdict.role_rewards,
    )
    return dataclasses.replace(record, fault=fault)

  async def abandoned(self) -> None:
    """Waits until the agent has made no call for `idle_timeout_s`."""
    loop = asyncio.get_running_loop()
    while (
      self._calls or loop.time() < self._last_call + self.rules.idle_timeout_s
    ):
      ends = self._last_call + self.rules.idle_timeout_s - loop.time()
      await asyncio.sleep(max(ends, 0.05))

  def touch(self) -> None:
    """Restarts the idle timeout."""
    self._last_call = asyncio.get_running_loop().time()

  def _claim(self, call: EpisodeCall, source: LineSource) -> LineSource:
    if call not in self._calls:  # the client hung up while it was being read
      raise self.busy()
    others = [other for other in self._calls if other is not call]
    taken = self._numbers | {other.number for other in others}
    most = self.rules.limits.max_turns
    status = status_after(len(taken - {-1}), most)
    if status is not Status.RUNNING:
      self.meet(call, status, ", as many as an episode has")
      raise conflict(
        f"episode {self.id} has had its {most} answers: end it, as "
        f"{status.value!r}",
        "episode_turn_limit",
      )
    call.claim(source, next(n for n in range(len(taken) + 1) if n not in taken))
    return source

  def _require_room(self, call: EpisodeCall, tools: bytes | None) -> None:
    """Raises `ApiError` if the episode may have no further line.

    `tools` is the key of the call's; None: it has none to compare.
    """
    starting = sum(other.starts_line for other in self._calls)
    if self.num_lines + starting < self.rules.max_lines:
      return
    lines = self._lines.all
    if len(lines) == 1 and tools not in (None, lines[0].tools):
      raise conflict(
        f"episode {self.id} began with other tools, which the policy has read; "
        "give the same ones with every call, or allow it more lines of tokens "
        f"(agents.max_lines={self.rules.max_lines})",
        "episode_tools_changed",
      )
    raise conflict(
      f"this call does not continue where an answer of episode {self.id} ended"
      f"{self._ends(call.role)}: its messages, or its prompt, must begin with "
      "all that was sent and answered before, unchanged. Make calls with "
      "another history without the episode's header, which are answered and "
      "not trained on; or raise "
      f"agents.max_lines={self.rules.max_lines}, the lines of tokens that an "
      "episode may have",
      "episode_branched",
    )

  def _ends(self, role: str) -> str:
    ends = [
      f"{len(line.messages)} messages, {len(line.tokens.stream)} tokens"
      for line in self._lines.all[:4]
      if line.role == role
    ]
    return f" (after {'; '.join(ends)})" if ends else ""

  def _transcript(self) -> Iterator[dict[str, Any]]:
    lines = self._lines.all
    for line in lines:
      number = {"line": line.tokens.number} if len(lines) > 1 else {}
      for message in line.messages:
        yield message_to_json(message) | number


def conflict(message: str, code: str, param: str | None = None) -> ApiError:
  """Returns the error of a call that does not fit the episode's state."""
  return ApiError(message, code=code, param=param, status=409)
