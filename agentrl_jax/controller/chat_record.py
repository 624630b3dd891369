"""Records an episode's messages and rewards beside its tokens."""

import asyncio
import concurrent.futures
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.recorder import LineRecorder, Recorder
from agentrl_jax.data.records import (
  EpisodeSpec,
  Message,
  Status,
  Tool,
  Trajectory,
  message_to_json,
)
from agentrl_jax.env.interface import Step
from agentrl_jax.rollout.api import Completion

_LONG = 1 << 14  # characters, about ten milliseconds of tokenizing
_IN_TURN = concurrent.futures.ThreadPoolExecutor(1, "long-text")


class ChatRecord:
  """The growing record of an episode, on one or several lines."""

  def __init__(
    self, spec: EpisodeSpec, codec: ChatCodec, max_tokens: int | None = None
  ) -> None:
    """`max_tokens` are those that a line may have; None: any number."""
    self._record = Recorder(spec)
    self._codec, self._max_tokens = codec, max_tokens
    self._lines: list[ChatLine] = []
    self._last_step = Step(())

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

  def add_step(self, line: "ChatLine", step: Step) -> None:
    """Records a step on `line`, and its reward as that of the last answer."""
    self._record.set_reward(step.reward - self._last_step.reward)
    line.add_observation(
      step.messages, is_last=step.status is not Status.RUNNING
    )
    self._last_step = step

  def trajectory(self, status: Status) -> Trajectory:
    """Returns the record, checked token for token."""
    return self._record.trajectory(
      status,
      reward=self._last_step.reward,
      metrics=self._last_step.metrics,
      transcript=list(self._transcript()),
    )

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
    self._tokens, self._codec, self._tools = tokens, codec, tools
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

  def add_action(self, prompt: np.ndarray, answer: Completion) -> Message:
    """Records the engine's answer to `prompt`; returns it as a message."""
    turn = self._tokens.add_action(prompt, answer, grammar=self.grammar)
    message = self._codec.read(turn.sampled)
    self.messages.append(message)
    return message

  def _num_chars(self) -> int:
    """Number of characters that the next prompt shows at least.

    Templates may leave out a part of what the policy said.
    """
    shown = () if self._tokens.num_turns else self._tools
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
      return self._codec.start(messages, self._tools, room=room)
    last = int(self._tokens.stream[-1])
    ended_by = last if last in self._codec.stop_tokens else None
    return self._codec.extend(messages, ended_by=ended_by, room=room)
