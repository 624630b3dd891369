"""Records an episode's messages and rewards beside its tokens."""

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


class ChatRecord:
  """The growing record of an episode, on one or several lines."""

  def __init__(self, spec: EpisodeSpec, codec: ChatCodec) -> None:
    self._record = Recorder(spec)
    self._codec = codec
    self._lines: list[ChatLine] = []
    self._last_step = Step(())

  @property
  def num_turns(self) -> int:
    """Answers so far, on all lines."""
    return self._record.num_turns

  def start_line(self, tools: Sequence[Tool], role: str = "") -> "ChatLine":
    """Starts a conversation, whose first prompt shows `tools`."""
    line = ChatLine(self._record.start_line(role), self._codec, tools)
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
    self, tokens: LineRecorder, codec: ChatCodec, tools: Sequence[Tool]
  ) -> None:
    self._tokens, self._codec, self._tools = tokens, codec, tools
    self.grammar = ""  # that the next answer has to follow; "" allows all
    self.messages: list[Message] = []
    self.new_messages: tuple[Message, ...] = ()  # since the last answer

  @property
  def number(self) -> int:
    """Number of the line within the episode."""
    return self._tokens.number

  @property
  def prompt(self) -> np.ndarray:
    """All tokens that stand before the next answer."""
    return self._tokens.prompt

  def add_observation(
    self, messages: Sequence[Message], *, is_last: bool = False
  ) -> None:
    """Records messages, and their tokens unless no answer follows."""
    if not is_last:
      self._tokens.add_observation(self._render(messages))
    self.messages += messages
    self.new_messages = tuple(messages)

  def add_action(self, prompt: np.ndarray, answer: Completion) -> Message:
    """Records the engine's answer to `prompt`; returns it as a message."""
    turn = self._tokens.add_action(prompt, answer, grammar=self.grammar)
    message = self._codec.read(turn.sampled)
    self.messages.append(message)
    return message

  def _render(self, messages: Sequence[Message]) -> np.ndarray:
    if not self._tokens.num_turns:
      return self._codec.start(messages, self._tools)
    last = int(self._tokens.stream[-1])
    ended_by = last if last in self._codec.stop_tokens else None
    return self._codec.extend(messages, ended_by=ended_by)
