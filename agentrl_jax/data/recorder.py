"""Writes the record of an episode while it is played.

- sampled ids are kept as they came: no text is tokenised twice;
- a prompt begins with all that was sent and sampled before it on its line;
- `Recorder.trajectory` compares the turns, which are trained on, with the
  tokens that the engine was sent and gave, and raises where they differ.

`Recorder` has tokens alone, `ChatRecord` the messages and rewards beside them.
"""

import asyncio
import concurrent.futures
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import (
  EpisodeSpec,
  Message,
  Status,
  Tool,
  Trajectory,
  Turn,
  message_to_json,
)
from agentrl_jax.data.tool_calls import flaw_of
from agentrl_jax.errors import GeneratorFault

_LONG = 1 << 14  # characters, about ten milliseconds of tokenizing
_IN_TURN = concurrent.futures.ThreadPoolExecutor(1, "long-text")


class TokenIdentityError(RuntimeError):
  """The tokens to train on differ from those sampled: a bug, so stop."""


class SampledTokens(Protocol):
  """An engine's answer; `rollout.api.Completion` is one."""

  @property
  def sampled(self) -> np.ndarray: ...

  @property
  def behavior_logprob(self) -> np.ndarray: ...

  @property
  def raw_logprob(self) -> np.ndarray: ...

  @property
  def version(self) -> np.ndarray: ...

  @property
  def policy_slot(self) -> int: ...

  @property
  def experts(self) -> np.ndarray | None: ...


class StepOfEnvironment(Protocol):
  """An environment's reply; `env.interface.Step` is one."""

  @property
  def messages(self) -> Sequence[Message]: ...

  @property
  def status(self) -> Status: ...

  @property
  def reward(self) -> float: ...

  @property
  def metrics(self) -> Mapping[str, float]: ...


class Recorder:
  """The growing record of one episode."""

  def __init__(self, spec: EpisodeSpec) -> None:
    self._spec = spec
    self._lines: list[LineRecorder] = []
    self._turns: list[Turn] = []

  @property
  def num_turns(self) -> int:
    """Answers so far, on all lines."""
    return len(self._turns)

  def start_line(self, role: str = "") -> "LineRecorder":
    """Starts a line of tokens, whose first prompt may have any."""
    line = LineRecorder(self._spec, len(self._lines), role, self._turns)
    self._lines.append(line)
    return line

  def set_reward(self, reward: float) -> None:
    """Sets the reward of the last answer, if there is one."""
    if self._turns:
      self._turns[-1] = dataclasses.replace(self._turns[-1], reward=reward)

  def trajectory(
    self,
    status: Status,
    *,
    reward: float,
    metrics: Mapping[str, float],
    transcript: Sequence[Mapping[str, object]],
    policy_slot_weights: tuple[float, ...] = (),
    role_rewards: Mapping[str, float] | None = None,
  ) -> Trajectory:
    """Returns the record, checked token for token."""
    roles = tuple(line.role for line in self._lines)
    trajectory = Trajectory(
      task=self._spec.task,
      group_id=self._spec.group_id,
      attempt=self._spec.attempt,
      seed=self._spec.seed,
      turns=tuple(self._turns),
      status=status,
      reward=reward,
      metrics=dict(metrics),
      transcript=tuple(transcript),
      policy_slot_weights=policy_slot_weights,
      roles=roles if any(roles) else (),
      role_rewards=dict(role_rewards or {}),
    )
    self._require_identity(trajectory)
    return trajectory

  def _require_identity(self, trajectory: Trajectory) -> None:
    sent = [line.stream for line in self._lines if line.num_turns]
    recorded = [line.tokens for line in trajectory.lines]
    if len(sent) != len(recorded) or not all(
      map(np.array_equal, sent, recorded)
    ):
      raise TokenIdentityError(
        f"{self._spec}: the turns hold other tokens than the engine was sent"
        " and gave; the recorder has a bug"
      )


class LineRecorder:
  """The growing record of one line of an episode."""

  def __init__(
    self, spec: EpisodeSpec, number: int, role: str, turns: list[Turn]
  ) -> None:
    """`turns` are the episode's, which the line adds its own to."""
    self.number, self.role = number, role
    self._spec, self._turns = spec, turns
    self._num_turns = 0
    self._observation = np.empty(0, np.int32)
    self._stream = np.empty(0, np.int32)

  @property
  def num_turns(self) -> int:
    """Answers of this line so far."""
    return self._num_turns

  @property
  def stream(self) -> np.ndarray:
    """All tokens that the engine was sent or sampled, up to the last answer."""
    return self._stream

  @property
  def prompt(self) -> np.ndarray:
    """All tokens that stand before the next answer."""
    return np.concatenate([self._stream, self._observation])

  def add_observation(self, tokens: np.ndarray) -> None:
    """Records the tokens that come between the last answer and the next."""
    self._observation = _frozen(tokens, np.int32)

  def add_action(
    self,
    prompt: np.ndarray,
    answer: SampledTokens,
    *,
    grammar: str = "",
    calls: tuple[str, ...] | None = None,
    is_cut: bool = False,
  ) -> Turn:
    """Records the answer that the engine gave to `prompt`.

    `calls` and `is_cut` are as in `Turn`. Raises `GeneratorFault` for an answer
    without tokens or with log-probabilities that are not finite.
    """
    _require_usable(answer)
    if not np.array_equal(prompt[: len(self._stream)], self._stream):
      raise TokenIdentityError(
        f"{self._spec}: the prompt of turn {self._num_turns} of line "
        f"{self.number} does not begin with what was sent and sampled before "
        "it; the recorder has a bug"
      )
    turn = Turn(
      observation=self._observation,
      sampled=_frozen(answer.sampled, np.int32),
      behavior_logprob=_frozen(answer.behavior_logprob, np.float32),
      raw_logprob=_frozen(answer.raw_logprob, np.float32),
      version=_frozen(answer.version, np.int32),
      policy_slot=answer.policy_slot,
      grammar=grammar,
      line=self.number,
      calls=calls,
      is_cut=is_cut,
      experts=_new_experts(
        answer.experts, len(self._stream), len(prompt) + len(answer.sampled)
      ),
    )
    self._turns.append(turn)
    self._num_turns += 1
    self._stream = _frozen(np.concatenate([prompt, turn.sampled]), np.int32)
    self._observation = np.empty(0, np.int32)
    return turn


class ChatRecord:
  """The growing record of an episode, on one or several lines."""

  def __init__(
    self, spec: EpisodeSpec, codec: ChatCodec, max_tokens: int | None = None
  ) -> None:
    """`max_tokens` are those that a line may have; None: any number."""
    self._record = Recorder(spec)
    self._codec, self._max_tokens = codec, max_tokens
    self._lines: list[ChatLine] = []
    self._last_step: StepOfEnvironment | None = None

  @property
  def num_turns(self) -> int:
    """Answers so far, on all lines."""
    return self._record.num_turns

  def start_line(self, tools: Sequence[Tool], role: str = "") -> "ChatLine":
    """Starts a conversation, whose first prompt shows `tools`."""
    tokens = self._record.start_line(role)
    line = ChatLine(tokens, self._codec, tools, self._max_tokens)
    self._lines.append(line)
    return line

  def add_step(self, line: "ChatLine", step: StepOfEnvironment) -> None:
    """Records a step on `line`, and its reward as that of the last answer."""
    before = self._last_step.reward if self._last_step else 0.0
    self._record.set_reward(step.reward - before)
    line.add_observation(
      step.messages, is_last=step.status is not Status.RUNNING
    )
    self._last_step = step

  def trajectory(self, status: Status) -> Trajectory:
    """Returns the record, checked token for token."""
    last = self._last_step
    trajectory = self._record.trajectory(
      status,
      reward=last.reward if last else 0.0,
      metrics=last.metrics if last else {},
      transcript=list(self._transcript()),
    )
    tools = self._lines[0].tools if self._lines else ()
    return dataclasses.replace(trajectory, tools=tuple(tools))

  def _transcript(self) -> Iterator[Mapping[str, object]]:
    for line in self._lines:
      number = {"line": line.number} if len(self._lines) > 1 else {}
      for message in line.messages:
        yield message_to_json(message) | number


class ChatLine:
  """The growing record of one conversation."""

  def __init__(
    self,
    tokens: LineRecorder,
    codec: ChatCodec,
    tools: Sequence[Tool],
    max_tokens: int | None,
  ) -> None:
    self._tokens, self._codec, self.tools = tokens, codec, tools
    self._max_tokens = max_tokens
    self.grammar = ""  # that the next answer has to follow; "" allows all
    self.messages: list[Message] = []
    self.new_messages: tuple[Message, ...] = ()  # since the last answer
    self._is_rendered = True  # the new messages are tokens

  @property
  def number(self) -> int:
    """Number of the line within the episode."""
    return self._tokens.number

  async def prompt_in_turn(self) -> np.ndarray:
    """Returns `prompt`; long text is tokenized in a thread, one at a time.

    Waits for the long texts before it, not the event loop for any of them.
    """
    if self._is_rendered or self._num_chars() < _LONG:
      return self.prompt
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_IN_TURN, lambda: self.prompt)

  @property
  def prompt(self) -> np.ndarray:
    """All tokens that stand before the next answer.

    Raises `PromptTooLong`, without tokenizing it, for an observation that the
    line cannot hold.
    """
    if not self._is_rendered:
      self._tokens.add_observation(self._render(self.new_messages))
      self._is_rendered = True
    return self._tokens.prompt

  def add_observation(
    self, messages: Sequence[Message], *, is_last: bool = False
  ) -> None:
    """Records messages, which become tokens if an answer follows."""
    self._is_rendered = is_last
    self.messages += messages
    self.new_messages = tuple(messages)

  def add_action(
    self, prompt: np.ndarray, answer: SampledTokens, tools: Sequence[Tool] = ()
  ) -> Message:
    """Records the engine's answer to `prompt`; returns it as a message.

    `tools` are those that the answer could call.
    """
    message = self._codec.read(answer.sampled, tools)
    ended = {*answer.sampled[-1:].tolist()} & {*self._codec.stop_tokens}
    self._tokens.add_action(
      prompt,
      answer,
      grammar=self.grammar,
      calls=call_flaws(message, tools),
      is_cut=not ended,
    )
    self.messages.append(message)
    return message

  def _num_chars(self) -> int:
    """Number of characters that the next prompt shows at least.

    Templates may leave out a part of what the policy said.
    """
    shown = () if self._tokens.num_turns else self.tools
    said = [m.content for m in self.new_messages if m.role != "assistant"]
    return sum(map(len, said)) + sum(
      len(tool.name) + len(tool.description) for tool in shown
    )

  def _render(self, messages: Sequence[Message]) -> np.ndarray:
    room = self._max_tokens
    if room is not None:
      room -= len(self._tokens.stream)
      # Characters are bytes at least; a template adds to them.
      self._codec.require_room(self._num_chars(), room)
    if not self._tokens.num_turns:
      return self._codec.start(messages, self.tools, room=room)
    last = int(self._tokens.stream[-1])
    ended_by = last if last in self._codec.stop_tokens else None
    answer = self.messages[-1 - len(messages)]
    return self._codec.extend(
      messages, ended_by=ended_by, after=answer, room=room
    )


def call_flaws(
  message: Message, tools: Sequence[Tool]
) -> tuple[str, ...] | None:
  """Returns `Turn.calls` of an answer that could call `tools`."""
  if not tools:
    return None
  flaws = [flaw_of(call, tools) for call in message.tool_calls]
  return tuple(flaw.value if flaw else "" for flaw in flaws)


def _require_usable(answer: SampledTokens) -> None:
  if not len(answer.sampled):
    raise GeneratorFault(
      "the engine answered with no token; at least one is due"
    )
  for name in ("behavior_logprob", "raw_logprob"):
    if not np.isfinite(getattr(answer, name)).all():
      raise GeneratorFault(
        f"the engine answered with a {name} that is not finite; look for NaN"
        " in the weights of policy slot"
        f" {answer.policy_slot}, version {int(answer.version[0])}"
      )


def _new_experts(
  expert_PLK: np.ndarray | None, begin: int, end: int
) -> np.ndarray | None:
  """Returns `Turn.experts` of the tokens from `begin` to `end` of a line."""
  if expert_PLK is None or not len(expert_PLK):
    return None
  none_1LK = np.full_like(expert_PLK[:1], np.iinfo(expert_PLK.dtype).max)
  return _frozen(
    np.concatenate([none_1LK, expert_PLK])[begin:end], expert_PLK.dtype
  )


def _frozen(array: np.ndarray, dtype: DTypeLike) -> np.ndarray:
  copy: np.ndarray = np.array(array, dtype)
  copy.setflags(write=False)
  return copy
