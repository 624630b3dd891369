"""Conversations of chat files, and what a policy learns from them.

A row is a conversation in one of these forms, with its tools, if there are any,
under `tools`:

- `messages`, as OpenAI's chat API and its fine-tuning have them, `weight` 0 of
  an answer included;
- `prompt` and `completion`, lists of such messages (TRL): only the answers of
  the completion are learned;
- `conversations` with `from` and `value` (ShareGPT, LLaMA-Factory), and
  `system` beside them.

Lists and objects may be JSON text, as `datasets` keeps values of mixed types.
Arrow gives each object of a column the members of all, null where a row has
none. So null members of arguments are left out, unless the tool requires them;
arguments that are JSON text keep theirs.

An answer is the tokens that the policy would have to sample there, by the same
cut of the chat template as in reinforcement learning, its stop token included.
What cannot be learned from is an `Unusable` of a kind that can be counted.
"""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.chat.call_grammar import THINK, THINK_END
from agentrl_jax.data.chat.codec import ChatCodec, split_thoughts
from agentrl_jax.data.forms.content import (
  given_in,
  require_no_media,
  thoughts_of,
)
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
  "model": "assistant",
  "function": "tool",
  "tool_response": "tool",
  "developer": "system",
}
# Roles whose content is a call, or a list of them.
_CALLS = ("function_call", "tool_call")
# Keys of a tool whose value is an object, as are those of its properties.
_OBJECTS = frozenset({"function", "parameters", "properties", "items"})


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
    require_no_media(columns)
    listed = _listed(columns.get("tools"), "tools")
    tools = tuple(tool_from_json(_opened(each, "function")) for each in listed)
    pairs = [*_weighted(columns, {t.name: t.parameters for t in tools})]
  except (TypeError, ValueError, RecursionError, SchemaFault) as error:
    raise Unusable(UNREADABLE, f"{error!s:.200}") from error
  messages = tuple(message for message, _ in pairs)
  is_learned = tuple(
    weight and message.role == "assistant" and _says(message)
    for message, weight in pairs
  )
  if not any(is_learned):
    raise Unusable(NO_ANSWER, "no answer of it would be learned")
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
  shown, thought = codec.decode(answer).split(), thought_in(message.content)
  if "".join(thought.split()) not in "".join(shown):
    raise Unusable(REFUSED, "it leaves the thought out of an answer")
  return answer


def _meaning(call: ToolCall) -> tuple[str, Any]:
  try:
    return call.name, json.loads(call.arguments)
  except (ValueError, RecursionError):
    return call.name, call.arguments


def _says(message: Message) -> bool:
  return bool(message.tool_calls or message.content.strip())


def with_thought(thought: str, text: str) -> str:
  """Returns the content of an answer that has a thought."""
  thought = thought.replace(THINK_END, "").strip()
  return f"{THINK}\n{thought}\n{THINK_END}\n\n{text}" if thought else text


def thought_in(content: str) -> str:
  """Returns the thought of a content, without its tags."""
  tagged = split_thoughts(content)[0]
  return tagged.replace(THINK, "").replace(THINK_END, "").strip()


def _weighted(
  columns: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[tuple[Message, bool]]:
  """Yields the messages of a row, each with whether it may be learned."""
  given = given_in(columns, "a row")
  if given.get("system") and "conversations" in given:
    yield Message("system", given["system"]), False
  for names in (("messages",), ("conversations",), ("prompt", "completion")):
    if given.keys() >= {*names}:
      for name in names:
        for body in _listed(given[name], name):
          message = _message(body, schemas)
          yield message, name != "prompt" and body.get("weight") != 0
      return
  raise ValueError(
    "it has the columns "
    f"{', '.join(columns) or 'none'}, and messages, conversations, or prompt "
    "and completion as lists are due"
  )


def _message(body: Mapping[str, Any], schemas: Mapping[str, Any]) -> Message:
  given = given_in(body, "a message")
  role = given.get("role", given.get("from"))
  content = given.get("content", given.get("value"))
  calls = given.get("tool_calls") or given.get("function_call")
  if role in _CALLS:
    role, calls, content = "assistant", content, None
  try:
    called = tuple(
      _call(each, schemas) for each in _listed(calls, "tool_calls")
    )
  except (TypeError, ValueError, RecursionError) as error:
    raise Unusable(BAD_CALLS, f"{error!s:.200}") from error
  role = _ROLES.get(str(role), role)
  if role == "user" and not body.keys() & {"content", "value"}:
    raise ValueError("a message of the user has no content")
  given |= {"role": role, "content": content, "tool_calls": None}
  message, said = message_from_json(given), thoughts_of(given)
  inline = thought_in(message.content)
  thoughts = {*said.values(), inline} - {""}
  if len(thoughts) > 1:
    raise ValueError(f"its thoughts differ, beside {', '.join(said)}")
  if not inline:
    text = with_thought("".join(thoughts), message.content)
    message = dataclasses.replace(message, content=text)
  return dataclasses.replace(message, tool_calls=called)


def _call(body: Mapping[str, Any], schemas: Mapping[str, Any]) -> ToolCall:
  """Reads a call; without arguments, or with null or "", they are {}.

  Raises ValueError for one that no environment would play.
  """
  call = given_in(body, "a tool call")
  function = _parsed(call.get("function", call), "a function")
  name = given_in(function, "a function").get("name", "")
  if not name or (schemas and name not in schemas):
    known = ", ".join(sorted(schemas)) or "no tool, for it has no name"
    raise ValueError(f"a call of {name!r:.80} is none of {known:.200}")
  arguments = function.get("arguments") or {}
  if isinstance(arguments, str):
    text = arguments if arguments.strip() != "null" else "{}"
    _parsed(
      text,
      "arguments",
      parse_constant=refuse_constant,
      object_pairs_hook=unique_members,
    )
  else:
    required = schemas.get(name, {}).get("required", ())
    own = _without_nulls(arguments, required)
    text = json.dumps(own, ensure_ascii=False, allow_nan=False)
  if not text.lstrip().startswith("{"):
    raise ValueError(f"arguments {text!r:.80} are no object")
  return ToolCall(name, text, str(call.get("id", "")))


def _without_nulls(value: Any, required: Collection[str] = ()) -> Any:
  if isinstance(value, list):
    return [_without_nulls(inner) for inner in value]
  if not isinstance(value, Mapping):
    return value
  kept = {}
  for name, inner in value.items():
    is_null = inner is None or inner != inner  # NaN is pandas' null
    if name in required or not is_null:
      kept[name] = None if is_null else _without_nulls(inner)
  return kept


def _opened(value: Any, key: str) -> Any:
  """Reads the JSON texts in a tool that stand for objects."""
  value = _parsed(value, key) if key in _OBJECTS else value
  if not isinstance(value, Mapping):
    return value
  return {
    name: _opened(inner, "items" if key == "properties" else name)
    for name, inner in value.items()
  }


def _listed(value: Any, name: str) -> list[Mapping[str, Any]]:
  """Reads a list of objects, one of them, or the JSON text of either."""
  value = _parsed(value, name)
  value = [value] if isinstance(value, Mapping) else value
  if not isinstance(value, list | tuple | None):
    raise TypeError(f"{name} must be a list or its JSON, found {value!r:.80}")
  found = [_parsed(each, name) for each in value or () if each is not None]
  for each in found:
    if not isinstance(each, Mapping):
      raise TypeError(f"{name} must hold objects, found {each!r:.80}")
  return found


def _parsed(value: Any, name: str, **strict: Any) -> Any:
  """Reads JSON text; returns any other value."""
  try:
    return json.loads(value, **strict) if isinstance(value, str) else value
  except (ValueError, RecursionError) as error:
    raise ValueError(
      f"{name} {value!r:.80} are no JSON ({error!s:.80})"
    ) from error
