"""Conversations of chat files, and what a policy learns from them.

A row is a conversation in one of these forms, with its tools, if there are any,
under `tools`, a list or its JSON text:

- `messages`, as OpenAI's chat API and its fine-tuning have them, `weight` 0 of
  an answer included;
- `prompt` and `completion`, lists of such messages (TRL): only the answers of
  the completion are learned;
- `conversations` with `from` and `value` (ShareGPT, LLaMA-Factory), and
  `system` beside them.

An answer is the tokens that the policy would have to sample there, by the same
cut of the chat template as in reinforcement learning, its stop token included.
What cannot be learned from is an `Unusable` of a kind that can be counted.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.chat.call_grammar import THINK, THINK_END
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import (
  Message,
  Status,
  Task,
  Tool,
  ToolCall,
  Trajectory,
  Turn,
  message_from_json,
  tool_from_json,
  unique_members,
)
from agentrl_jax.errors import (
  AgentRLError,
  ConfigError,
  MessageFault,
  PromptTooLong,
  SchemaFault,
  refuse_constant,
)

UNREADABLE = "unreadable"
NO_ANSWER = "without an assistant's turn"
BAD_CALLS = "with malformed tool calls"
TOO_LONG = "too long"
REFUSED = "refused by the chat template"

_ROLES = {
  "human": "user",
  "gpt": "assistant",
  "observation": "tool",
  "function_call": "assistant",
  "developer": "system",
}
_ODD = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


class Unusable(AgentRLError):
  """A conversation that cannot be learned from; `kind` is one of the above."""

  def __init__(self, kind: str, detail: str):
    super().__init__(detail)
    self.kind = kind


@dataclasses.dataclass(frozen=True)
class Conversation:
  """Messages, whether each is learned, and the tools that are shown."""

  messages: tuple[Message, ...]
  is_learned: tuple[bool, ...]
  tools: tuple[Tool, ...] = ()


def read_conversation(columns: Mapping[str, Any]) -> Conversation:
  """Reads a row of a chat file. Raises `Unusable`."""
  try:
    pairs = _weighted(columns)
    tools = tuple(map(_tool, _listed(columns.get("tools"))))
  except (*_ODD, SchemaFault) as error:
    kind = UNREADABLE
    if isinstance(error, _BadCall):
      kind = BAD_CALLS
    raise Unusable(kind, f"{type(error).__name__}: {error!s:.200}") from error
  messages = tuple(message for message, _ in pairs)
  is_learned = tuple(
    weight and message.role == "assistant" and _says(message)
    for message, weight in pairs
  )
  if not any(is_learned):
    raise Unusable(NO_ANSWER, "no answer of it would be learned")
  names = {tool.name for tool in tools}
  for message in messages:
    for call in message.tool_calls:
      _require_call(call, names)
  return Conversation(messages, is_learned, tools)


def demonstration(
  conversation: Conversation, codec: ChatCodec, *, room: int, number: int = 0
) -> Trajectory:
  """Writes a conversation as turns, whose sampled tokens are learned.

  Args:
    conversation: the messages; those after the last learned answer are left
      out.
    codec: the policy's chat.
    room: largest number of tokens.
    number: index of the trajectory's task.

  Raises `Unusable`.
  """
  try:
    turns = _turns(conversation, codec, room)
  except PromptTooLong as error:
    raise Unusable(TOO_LONG, str(error)) from error
  except (ConfigError, MessageFault) as error:
    raise Unusable(REFUSED, str(error)) from error
  return Trajectory(
    task=Task("chats", "train", number),
    group_id=f"chat-{number}",
    attempt=0,
    seed=0,
    turns=tuple(turns),
    status=Status.COMPLETED,
    reward=0.0,
  )


def _turns(
  conversation: Conversation, codec: ChatCodec, room: int
) -> list[Turn]:
  turns: list[Turn] = []
  stream = np.empty(0, np.int32)  # tokens since the last learned answer
  new: list[Message] = []
  ended_by: int | None = None
  is_begun = False
  last = max(np.flatnonzero(conversation.is_learned))
  for n, message in enumerate(conversation.messages[: last + 1]):
    if message.role != "assistant":
      new.append(message)
      continue
    if is_begun:
      answer_before = conversation.messages[n - len(new) - 1]
      asked = codec.extend(
        new, ended_by=ended_by, after=answer_before, room=room
      )
    elif new:
      asked = codec.start(new, conversation.tools, room=room)
    else:
      raise Unusable(UNREADABLE, "it begins with the assistant")
    answer = _written(message, codec, conversation.tools)
    is_begun, new, ended_by = True, [], int(answer[-1])
    room -= len(asked) + len(answer)
    if room < 0:
      raise PromptTooLong(f"{-room} tokens are above the limit")
    stream = np.concatenate([stream, asked])
    if conversation.is_learned[n]:
      turns.append(_turn(stream, answer))
      stream = np.empty(0, np.int32)
    else:
      stream = np.concatenate([stream, answer])
  return turns


def _turn(observation: np.ndarray, answer: np.ndarray) -> Turn:
  zeros = np.zeros(len(answer), np.float32)
  version = np.full(len(answer), -1, np.int32)
  return Turn(observation, answer, zeros, zeros, version)


def _written(
  message: Message, codec: ChatCodec, tools: Sequence[Tool]
) -> np.ndarray:
  """Returns the tokens of an answer, in which its calls are read again."""
  answer = codec.write(message)
  read = codec.read(answer, tools).tool_calls
  if [_meaning(call) for call in read] != [
    _meaning(call) for call in message.tool_calls
  ]:
    raise Unusable(
      BAD_CALLS, f"{message!r:.200} would be read as calls {read!r:.200}"
    )
  return answer


def _meaning(call: ToolCall) -> tuple[str, Any]:
  try:
    return call.name, json.loads(call.arguments)
  except (ValueError, RecursionError):
    return call.name, call.arguments


def _require_call(call: ToolCall, names: set[str]) -> None:
  """Raises `Unusable` for a call that no environment would play."""
  try:
    arguments = json.loads(
      call.arguments,
      parse_constant=refuse_constant,
      object_pairs_hook=unique_members,
    )
  except (ValueError, RecursionError) as error:
    raise Unusable(
      BAD_CALLS, f"arguments {call.arguments!r:.80} are no JSON ({error!s:.80})"
    ) from error
  if not isinstance(arguments, dict):
    raise Unusable(BAD_CALLS, f"arguments {call.arguments!r:.80} are no object")
  if not call.name or (names and call.name not in names):
    raise Unusable(
      BAD_CALLS,
      f"{call.name!r} is none of the tools {', '.join(sorted(names))!r:.200}",
    )


def _says(message: Message) -> bool:
  return bool(message.tool_calls or message.content.strip())


class _BadCall(ValueError):
  """A call that is not in its form."""


def _weighted(columns: Mapping[str, Any]) -> list[tuple[Message, bool]]:
  """Returns the messages of a row, each with whether it may be learned."""
  if columns.get("messages") is not None:
    return [_message(each) for each in columns["messages"]]
  if columns.get("conversations") is not None:
    system = columns.get("system")
    first = [(Message("system", system), False)] if system else []
    return first + [
      _message(_openai(each)) for each in columns["conversations"]
    ]
  if isinstance(columns.get("completion"), list):
    asked = [(m, False) for m, _ in map(_message, columns["prompt"])]
    return asked + [_message(each) for each in columns["completion"]]
  raise ValueError(
    "it has the columns "
    f"{', '.join(columns) or 'none'}, and messages, conversations, or prompt "
    "and completion as lists are due"
  )


def _message(body: Mapping[str, Any]) -> tuple[Message, bool]:
  content = body.get("content")
  for part in content if isinstance(content, list) else ():
    if part.get("type", "text") != "text":
      raise ValueError(f"a part of type {part['type']!r} is no text")
  try:
    role = _ROLES.get(body["role"], body["role"])
    message = message_from_json({**body, "role": role})
  except _ODD as error:
    if body.get("tool_calls"):
      raise _BadCall(f"{error!r:.150}") from error
    raise
  if thought := body.get("reasoning_content"):
    text = f"{THINK}\n{thought}\n{THINK_END}\n\n{message.content}"
    message = dataclasses.replace(message, content=text)
  return message, body.get("weight") != 0


def _openai(body: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a message of ShareGPT's form in that of OpenAI."""
  said, value = body["from"], body["value"]
  if said != "function_call":
    return {"role": said, "content": value}
  try:
    calls = json.loads(value) if isinstance(value, str) else value
    calls = calls if isinstance(calls, list) else [calls]
    functions = [
      {"function": {"name": c["name"], "arguments": c["arguments"]}}
      for c in calls
    ]
  except _ODD as error:
    raise _BadCall(f"{value!r:.80} is no call ({error!r:.80})") from error
  return {"role": said, "tool_calls": functions}


def _listed(tools: Any) -> Sequence[Any]:
  if isinstance(tools, str):
    tools = json.loads(tools) if tools.strip() else []
  if not isinstance(tools, list | None):
    raise TypeError(f"tools must be a list or its JSON, found {tools!r:.80}")
  return tools or ()


def _tool(body: Mapping[str, Any]) -> Tool:
  """Reads a tool; LLaMA-Factory's are functions without a frame."""
  is_bare = "name" in body and "input_schema" not in body
  return tool_from_json({"function": body} if is_bare else body)
