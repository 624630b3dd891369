"""Finds the line of an episode that a call continues, or departs from.

A line is a conversation whose calls continue each other. A call continues the
line whose messages, the last answer included, are the beginning of its own. If
there is none, it starts a line: with the recorded tokens up to the last answer
that it shares with another line, or else with a prompt of its own.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from agentrl_jax.data.recorder import LineRecorder
from agentrl_jax.data.records import Message
from agentrl_jax.rollout.api import Completion
from agentrl_jax.rollout.openai.choices import Choice
from agentrl_jax.rollout.openai.conversation_cache import TokenizedPrefix
from agentrl_jax.rollout.openai.thoughts import agree, thought_keys

_EMPTY = TokenizedPrefix(np.empty(0, np.int32), None)


@dataclasses.dataclass(frozen=True, eq=False)
class Answered:
  """The state of a line after one of its answers."""

  line: "EpisodeLine"
  length: int  # tokens of the line up to the end of the answer
  ended_by: int | None  # the answer's stop token
  thoughts: Sequence[bytes] = ()  # keys of the messages' thoughts

  @property
  def prefix(self) -> TokenizedPrefix:
    """The tokens up to there."""
    return TokenizedPrefix(
      self.line.tokens.stream[: self.length], self.ended_by, self.thoughts
    )

  @property
  def is_end(self) -> bool:
    """True if the line has had no answer since."""
    return self.length == len(self.line.tokens.stream)

  def source(self, line: "EpisodeLine | None") -> "LineSource":
    """Returns the source of a call that goes on from here, on `line`."""
    messages = self.line.messages[: len(self.thoughts)]
    return LineSource(line, self.prefix, messages)


class EpisodeLine:
  """One line: its tokens, its messages and its last answer."""

  def __init__(self, tokens: LineRecorder):
    self.tokens = tokens
    self.messages: Sequence[Message] = ()  # the last answer included
    self.tools = b""  # key of the tools
    self.answer: Completion | None = None  # the last one
    self.call = b""  # digest of the call that it answered
    self.is_busy = False  # a call that continues the line is being answered

  @property
  def role(self) -> str:
    """The role of the agent that makes the line's calls."""
    return self.tokens.role

  @property
  def last_prompt(self) -> np.ndarray:
    """The tokens before the last answer."""
    assert self.answer is not None
    stream = self.tokens.stream
    return stream[: len(stream) - len(self.answer.sampled)]

  def add(self, choice: Choice, calls: tuple[str, ...] | None) -> None:
    """Records an answer with the tokens before it; `calls` as in `Turn`."""
    self.tokens.add_observation(choice.prompt[len(self.tokens.stream) :])
    self.tokens.add_action(
      choice.prompt,
      choice.answer,
      grammar=choice.sampling.grammar,
      calls=calls,
      is_cut=choice.finish_reason == "length",
    )
    self.answer = choice.answer


@dataclasses.dataclass(frozen=True, eq=False)
class LineSource:
  """The recorded tokens that a call begins with."""

  line: EpisodeLine | None  # that it continues; None: it starts one
  prefix: TokenizedPrefix = _EMPTY  # recorded tokens, which it begins with
  # Messages that these tokens stand for, with the thoughts as sampled.
  messages: Sequence[Message] = ()

  @property
  def num_known(self) -> int:
    """Number of messages that the tokens stand for."""
    return len(self.messages)


class Lines:
  """The lines of one episode, by the conversations that they hold."""

  def __init__(self) -> None:
    self.all: list[EpisodeLine] = []
    self._answered: dict[bytes, list[Answered]] = {}

  def add(self, line: EpisodeLine, key: bytes, ended_by: int | None) -> None:
    """Records that an answer was added to `line`.

    `key` is that of the conversation up to the answer; empty: it has none.
    """
    if line not in self.all:
      self.all.append(line)
    if key:
      thoughts = thought_keys(line.messages)
      answered = Answered(line, len(line.tokens.stream), ended_by, thoughts)
      self._answered.setdefault(key, []).append(answered)

  def of_messages(
    self, keys: Sequence[bytes], thoughts: Sequence[bytes], role: str
  ) -> LineSource:
    """Returns the source of a conversation, by the keys of its prefixes.

    `thoughts` are the keys of its messages' thoughts.
    """
    for known in range(len(keys) - 1, 0, -1):
      candidates = [
        answered
        for answered in self._answered.get(keys[known - 1], ())
        if agree(thoughts, answered.thoughts)
      ]
      for answered in candidates:
        if answered.is_end and _is_free(answered.line, role):
          return answered.source(answered.line)
      if candidates:
        return candidates[-1].source(None)
    return LineSource(None)

  def of_tokens(self, prompt: np.ndarray, role: str) -> LineSource:
    """Returns the source of a prompt of tokens."""
    longest = LineSource(None)
    for line in self.all:
      stream = line.tokens.stream
      if len(stream) <= len(longest.prefix.stream):
        continue
      if _is_free(line, role) and _begins(prompt, stream):
        longest = LineSource(line, TokenizedPrefix(stream, None))
    return longest


def _is_free(line: EpisodeLine, role: str) -> bool:
  return line.role == role and not line.is_busy


def _begins(prompt: np.ndarray, stream: np.ndarray) -> bool:
  return np.array_equal(prompt[: len(stream)], stream)
