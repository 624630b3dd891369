"""Requests of OpenAI's API as pydantic models; no field is ignored in silence.

A field that would change the answer and that this server does not support is
refused by name. Fields with the value that applies without them are accepted,
and so are fields that never change an answer.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
  BeforeValidator,
  FailFast,
  Field,
  PlainValidator,
  ValidationInfo,
  field_validator,
  model_validator,
)

from agentrl_jax.data.forms.content import TEXTS, ContentFault, joined
from agentrl_jax.data.records import Message, ToolCall
from agentrl_jax.rollout.api import MAX_BIASES, MAX_STOPS, MAX_TOP
from agentrl_jax.rollout.openai.thoughts import with_thought
from agentrl_jax.rollout.openai.tools import (
  ANY_CHOICE,
  HOSTED,
  AnyToolChoice,
  OfferedTool,
)
from agentrl_jax.rollout.openai.validation import (
  MAX_VALUES,
  JsonObject,
  LenientObject,
  invalid,
  must_be,
  number_between,
  unread,
  unsupported,
  whole_number,
)
from agentrl_jax.rollout.server.errors import ApiError

_MAX_STOP_TEXTS = 4  # OpenAI's own limit
_MAX_STOP_CHARS = 256
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_FORMATS = (
  '{"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", '
  '"json_schema": {"name": ..., "schema": {...}}}'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingLimits:
  """Limits of one call, and the number of calls at once."""

  context: int  # tokens of prompt and answer together
  max_choices: int = 64  # answers to one call
  max_calls: int = 1024  # at once
  write_s: float = 120.0  # for a client to accept the next chunk of a stream

  @property
  def max_values(self) -> int:
    """Separators of JSON in one call, a prompt's token ids included."""
    return MAX_VALUES + 8 * self.context


def _stop_texts(value: Any) -> Any:
  return [value] if isinstance(value, str) else value


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
  """Reads token ids, written as text, with what is added to their logits."""
  if not isinstance(value, dict) or len(value) > MAX_BIASES:
    raise ValueError
  for token, bias in value.items():
    is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
    is_id = _TOKEN_ID.fullmatch(token) and int(token) < 2**31
    if not is_id or not is_number or not -100 <= bias <= 100:
      raise ValueError
  return tuple((int(t), float(bias)) for t, bias in value.items() if bias)


def _text_prompts(value: Any) -> list[str | list[int]]:
  """Reads one prompt or several, each of them text or token ids."""
  is_several = isinstance(value, list) and not (value and _is_id(value[0]))
  prompts = value if is_several else [value]
  if not prompts or not all(
    isinstance(p, str) or (isinstance(p, list) and all(map(_is_id, p)))
    for p in prompts
  ):
    raise ValueError
  return prompts


def _is_id(value: Any) -> bool:
  return type(value) is int and 0 <= value < 2**31


StopTexts = Annotated[
  list[Annotated[str, Field(min_length=1, max_length=_MAX_STOP_CHARS)]],
  Field(max_length=_MAX_STOP_TEXTS),
  FailFast(),
  BeforeValidator(_stop_texts),
  must_be(
    f"up to {_MAX_STOP_TEXTS} texts of 1 to {_MAX_STOP_CHARS} characters"
  ),
]
StopTokens = Annotated[
  list[Annotated[int, Field(ge=0, lt=2**31)]],
  Field(max_length=MAX_STOPS),
  FailFast(),
  must_be(f"up to {MAX_STOPS} token ids"),
]
LogitBias = Annotated[
  tuple[tuple[int, float], ...],
  PlainValidator(_logit_bias),
  must_be(
    f"an object of up to {MAX_BIASES} token ids, such as "
    '{"1734": -100}, with numbers from -100 to 100'
  ),
]
Prompts = Annotated[
  list[str | list[int]],
  PlainValidator(_text_prompts),
  must_be("text, a list of token ids, or a list of either"),
]


class StreamOptions(JsonObject):
  """`stream_options` of a request."""

  without_effect = frozenset(("include_obfuscation",))
  include_usage: bool = False


# Fields that file, bill or cache a call.
FILED = frozenset(
  ("metadata", "prompt_cache_key", "prompt_cache_options", "service_tier")
  + ("prompt_cache_retention", "safety_identifier", "store", "user")
)
_NOT_DONE = "this server does not do it"
_NOT_TOLD = "the policy is not told of it: say it in a message"
_TEXT_ONLY = "the policy reads and writes text alone"


class CompletionRequest(JsonObject):
  """The fields that both endpoints have in common."""

  # A call that asks for more tokens than there are is refused.
  must_fit: ClassVar[bool] = True
  # The client can only be sent calls whose arguments are objects.
  needs_objects: ClassVar[bool] = False

  model: str
  n: Annotated[int, whole_number(1)] = 1
  temperature: Annotated[float, number_between(0.0, 100.0)] | None = None
  top_p: Annotated[float, number_between(1e-6, 1.0)] = 1.0
  top_k: Annotated[int, whole_number(-1, 2**31 - 1)] = 0  # 0 or -1: all tokens
  min_p: Annotated[float, number_between(0.0, 1.0)] = 0.0
  seed: Annotated[int, whole_number(-(2**63), 2**64 - 1)] | None = None
  max_tokens: Annotated[int, whole_number(1)] | None = (
    None  # None: as many as fit
  )
  stop: StopTexts = []
  stop_token_ids: StopTokens = []
  ignore_eos: bool = False  # also of the chat template
  stream: bool = False
  stream_options: StreamOptions | None = None
  return_token_ids: bool = False
  logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = "raw_logprobs"
  frequency_penalty: Annotated[float, number_between(-2.0, 2.0)] = 0.0
  presence_penalty: Annotated[float, number_between(-2.0, 2.0)] = 0.0
  logit_bias: LogitBias = ()

  # The last two are vLLM's.
  without_effect = FILED | {"prediction", "priority", "request_id"}
  refused = {
    "add_generation_prompt": (True, "an answer follows every prompt"),
    "add_special_tokens": (False, "the chat template has them"),
    "audio": (None, _TEXT_ONLY),
    "best_of": (1, "ask for n answers and choose one yourself"),
    "continue_final_message": (False, "it is for chats"),
    "echo": (False, _NOT_DONE),
    "function_call": ("none", "it is OpenAI's older form: give tool_choice"),
    "functions": ([], "it is OpenAI's older form: give tools"),
    "include_stop_str_in_output": (False, _NOT_DONE),
    "length_penalty": (1, _NOT_DONE),
    "min_tokens": (0, _NOT_DONE),
    "modalities": (["text"], _TEXT_ONLY),
    "moderation": (None, _NOT_DONE),
    "reasoning_effort": (None, _NOT_TOLD),
    "repetition_penalty": (1, _NOT_DONE),
    "skip_special_tokens": (False, _NOT_DONE),
    "spaces_between_special_tokens": (True, _NOT_DONE),
    "suffix": ("", _NOT_DONE),
    "use_beam_search": (False, _NOT_DONE),
    "verbosity": (None, _NOT_TOLD),
    "web_search_options": (None, "nobody searches here: give a tool"),
  }

  @field_validator("stream_options")
  @classmethod
  def _refuse_without_stream(
    cls, options: StreamOptions, info: ValidationInfo
  ) -> StreamOptions:
    if not info.data.get("stream"):
      raise unsupported("it is for calls with stream=true")
    return options

  @property
  def answer_tokens(self) -> int | None:
    """Tokens that the call asks for; None: as many as fit."""
    return self.max_tokens

  @property
  def include_usage(self) -> bool:
    """True if a stream ends with the token counts."""
    return self.stream_options is not None and self.stream_options.include_usage

  @property
  def raw_logprobs(self) -> bool:
    """True for log-probabilities at temperature 1, not as drawn from."""
    return self.logprobs_mode == "raw_logprobs"

  @property
  def num_top(self) -> int:
    """Likeliest tokens to list at each place."""
    return 0

  @property
  def wants_structured_output(self) -> bool:
    """True if a grammar may have to be compiled for the call."""
    return False

  @property
  def ignored(self) -> Set[str]:
    """Names of the fields that are accepted, and could change the answer."""
    return frozenset()


class TextCompletionRequest(CompletionRequest):
  """A call of `/v1/completions`."""

  prompt: Prompts
  add_special_tokens: bool = True  # vLLM's: around a prompt that is text
  # Both numbers are those of OpenAI's reference.
  max_tokens: Annotated[int, whole_number(1)] | None = 16
  logprobs: Annotated[int, whole_number(0, 5)] | None = None

  refused = CompletionRequest.refused | {
    "parallel_tool_calls": (True, "only /v1/chat/completions has calls"),
    "response_format": ({"type": "text"}, "only /v1/chat/completions has it"),
    "top_logprobs": (0, "only /v1/chat/completions has it; give logprobs=N"),
  }

  @property
  def num_top(self) -> int:
    return self.logprobs or 0


class _CalledFunction(LenientObject):
  name: str
  arguments: str  # JSON, as the policy wrote it


class _ToolCall(LenientObject):
  without_effect = frozenset(("index", "type"))
  function: _CalledFunction
  id: str = ""

  @model_validator(mode="before")
  @classmethod
  def _of_custom_tool(cls, call: Any) -> Any:
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict):
      return call
    arguments = json.dumps({"input": custom.get("input")}, ensure_ascii=False)
    function = {"name": custom.get("name"), "arguments": arguments}
    return {"id": call.get("id"), "function": function}


def joined_parts(content: Any) -> str:
  """Joins the parts of a message's content."""
  try:
    return joined(content, TEXTS | {"reasoning_text"})
  except ContentFault as error:
    raise unsupported(f"{error}. Send text parts") from error
  except TypeError as error:
    raise invalid("text or a list of parts") from error


class ChatMessage(LenientObject):
  """A message with the fields of OpenAI's reference.

  Clients send back what other servers and libraries added to an answer, so
  other fields are accepted; `model_extra` has them.
  """

  without_effect = LenientObject.without_effect | {"annotations"}
  refused = {
    "audio": (None, "the policy reads text: send its transcript as content"),
    "function_call": (None, "it is an older form: send it in tool_calls"),
  }

  role: Literal["system", "developer", "user", "assistant", "tool"]
  content: Annotated[str, BeforeValidator(joined_parts)] = ""
  reasoning_content: str = ""
  name: str = ""
  refusal: str = ""
  tool_calls: Annotated[list[_ToolCall], FailFast()] = []
  tool_call_id: str | None = Field(None, validate_default=True)
  prefix: bool = False  # Mistral's `continue_final_message`

  @field_validator("tool_call_id")
  @classmethod
  def _refuse_reply_without_call(
    cls, id: str | None, info: ValidationInfo
  ) -> str | None:
    if id is None and info.data.get("role") == "tool":
      raise invalid("the id of the call that this message answers")
    return id

  def to_message(self) -> Message:
    """Returns the message as chat templates read it."""
    content = self.content or self.refusal
    if self.role == "assistant":
      content = with_thought(self.reasoning_content, content)
    return Message(
      # By OpenAI's reference, `developer` replaces `system`.
      role="system" if self.role == "developer" else self.role,
      content=content,
      tool_calls=tuple(
        ToolCall(call.function.name, call.function.arguments, call.id)
        for call in self.tool_calls
      ),
      tool_call_id=self.tool_call_id,
    )


class _PlainFormat(JsonObject):
  type: Literal["text", "json_object"]


class _NamedSchema(JsonObject):
  without_effect = frozenset(("description", "name", "strict"))
  definition: dict[str, Any] = Field(alias="schema")


class _SchemaFormat(JsonObject):
  type: Literal["json_schema"]
  json_schema: _NamedSchema


class ChatCompletionRequest(CompletionRequest):
  """A call of `/v1/chat/completions`."""

  messages: Annotated[list[ChatMessage], Field(min_length=1), FailFast()]
  tools: Annotated[list[OfferedTool], FailFast()] = []
  tool_choice: AnyToolChoice = ANY_CHOICE
  parallel_tool_calls: bool | None = None
  response_format: (
    Annotated[_PlainFormat | _SchemaFormat, must_be(_FORMATS)] | None
  ) = None
  logprobs: bool = False
  top_logprobs: Annotated[int, whole_number(0, MAX_TOP)] = 0
  max_completion_tokens: Annotated[int, whole_number(1)] | None = None
  # vLLM's: the last message, the assistant's, begins the answer.
  continue_final_message: bool = False
  add_generation_prompt: bool = True

  @field_validator("top_logprobs")
  @classmethod
  def _refuse_without_logprobs(cls, number: int, info: ValidationInfo) -> int:
    if number and not info.data.get("logprobs"):
      raise invalid(
        "0 without logprobs, since alternatives are listed beside the sampled "
        "token: give logprobs=true with it"
      )
    return number

  @field_validator("max_completion_tokens")
  @classmethod
  def _refuse_other_max_tokens(
    cls, number: int | None, info: ValidationInfo
  ) -> int | None:
    other = info.data.get("max_tokens")
    if number is not None and other not in (None, number):
      raise invalid(
        f"max_tokens={other}, which limits the same: give one of them"
      )
    return number

  @property
  def answer_tokens(self) -> int | None:
    return self.max_completion_tokens or self.max_tokens

  @property
  def num_top(self) -> int:
    return self.top_logprobs

  @property
  def answer_schema(self) -> Mapping[str, Any] | None:
    """The JSON schema that the answer must follow; None: any text."""
    if isinstance(self.response_format, _SchemaFormat):
      return self.response_format.json_schema.definition
    if self.response_format and self.response_format.type == "json_object":
      return {"type": "object"}
    return None

  @property
  def wants_structured_output(self) -> bool:
    return (
      self.response_format is not None
      or self.tool_choice.names is not None
      or self.tool_choice.mode == "required"
      or not self.may_call_several
      or any(tool.strict for tool in self.functions.values())
    )

  @property
  def continues(self) -> bool:
    """True if the last message begins the answer. Raises `ApiError`."""
    last = self.messages[-1]
    continues = self.continue_final_message or last.prefix
    is_begun = last.role == "assistant" and last.content and not last.tool_calls
    if (
      continues != bool(is_begun)
      and continues
      or not (continues or self.add_generation_prompt)
    ):
      raise ApiError(
        f"continue_final_message={continues} and add_generation_prompt="
        f"{self.add_generation_prompt} with a last message of {last.role}: an "
        "answer is begun by text of the assistant, without calls, and else by "
        "the chat template",
        param="messages",
      )
    return continues

  @property
  def may_call_several(self) -> bool:
    """True if one answer may have several calls."""
    return self.parallel_tool_calls is not False and not self.tool_choice.is_one

  @functools.cached_property
  def functions(self) -> Mapping[str, OfferedTool]:
    """The functions that the policy may call, by name."""
    tools = [f for tool in (*self.tools, *self.later) for f in tool.functions()]
    return {tool.name: tool for tool in tools}

  @property
  def shown(self) -> Sequence[OfferedTool]:
    """The functions that the conversation begins with."""
    return [f for tool in self.tools for f in tool.functions()]

  @property
  def later(self) -> Sequence[OfferedTool]:
    """Tools that a later message shows."""
    return ()

  @property
  def ignored(self) -> Set[str]:
    hosted = {tool.type for tool in self.tools if tool.kind in HOSTED}
    return hosted.union(unread(self))


class TranslatedRequest(ChatCompletionRequest):
  """A call of another API, in the form of a chat.

  There a number of tokens is the most that the answer may have, and need not
  fit: clients give the largest that their vendor's models allow.
  """

  must_fit = False
  not_read: list[str] = []  # names of fields that were accepted
  found: list[OfferedTool] = []

  @property
  def later(self) -> Sequence[OfferedTool]:
    return self.found

  @property
  def ignored(self) -> Set[str]:
    return super().ignored | {*self.not_read}
