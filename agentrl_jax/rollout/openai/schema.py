"""Requests of OpenAI's API as pydantic models; no field is ignored in silence.

A field that would change the answer and that this server does not support is
refused by name. Fields with the value that applies without them are accepted,
and so are fields that never change an answer.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
  AfterValidator,
  BaseModel,
  BeforeValidator,
  ConfigDict,
  FailFast,
  Field,
  PlainValidator,
  ValidationError,
  ValidationInfo,
  ValidatorFunctionWrapHandler,
  WrapValidator,
  field_validator,
  model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from agentrl_jax.data.messages import Message, Tool, ToolCall
from agentrl_jax.http_requests import parse_json
from agentrl_jax.rollout.api import (
  MAX_BIASES,
  MAX_STOPS,
  MAX_TOP,
)
from agentrl_jax.rollout.server.errors import ApiError

MAX_VALUES = 100_000  # separators of JSON, without those of a prompt
_MAX_STOP_TEXTS = 4  # OpenAI's own limit
_MAX_STOP_CHARS = 256
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_TOOL_CHOICES = (
  "'auto', 'required', 'none', "
  '{"type": "function", "function": {"name": ...}}, or {"type": '
  '"allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": '
  "[...]}}"
)
_FORMATS = (
  '{"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", '
  '"json_schema": {"name": ..., "schema": {...}}}'
)

_M = TypeVar("_M", bound=BaseModel)


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


def parse_object(
  body: bytes, *, max_values: int = MAX_VALUES
) -> dict[str, Any]:
  """Parses a JSON object. Raises `ApiError` or `RequestRefused`."""
  value = parse_json(body, max_values=max_values)
  if not isinstance(value, dict):
    raise ApiError(
      f"the body is a JSON {type(value).__name__}; an object is expected",
      code="invalid_json",
    )
  return value


def read(model: type[_M], fields: Mapping[str, Any]) -> _M:
  """Validates the fields of a request. Raises `ApiError` naming the field."""
  try:
    return model.model_validate(fields)
  except ValidationError as error:
    raise _api_error(error.errors(include_url=False)[0]) from error


def wrong(name: str, found: Any, allowed: str) -> ApiError:
  """Returns the error of a field with a value of the wrong type or size."""
  return ApiError(f"{name}={_shortened(found)} must be {allowed}", param=name)


def _api_error(error: ErrorDetails) -> ApiError:
  """Translates an error of pydantic into OpenAI's error."""
  path, kind, value = _path(error["loc"]), error["type"], error["input"]
  if kind == "missing":
    return ApiError(
      f"the field {path!r} is missing",
      param=path,
      code="missing_required_parameter",
    )
  if kind == "extra_forbidden":
    return _unknown(path)
  if kind == "unsupported_value":
    return ApiError(
      f"{path}={_shortened(value)} is not supported: {error['msg']}",
      param=path,
      code="unsupported_value",
    )
  if kind == "literal_error":
    return wrong(path, value, error["ctx"]["expected"])
  return wrong(path, value, _ALLOWED.get(kind, error["msg"]))


# Descriptions of what is allowed, by pydantic's type of error.
_ALLOWED = {
  "list_type": "a list",
  "model_type": "an object",
  "dict_type": "an object",
  "string_type": "text",
  "bool_type": "true or false",
  "too_short": "a list of at least one entry",
}


def _path(loc: Sequence[int | str]) -> str:
  """Writes a location as in `messages[0].content`."""
  path = ""
  for part in loc:
    path += f"[{part}]" if isinstance(part, int) else f".{part}"
  return path.removeprefix(".")


def _unknown(name: str) -> ApiError:
  return ApiError(
    f"the field {_shortened(name)} is unknown to this server, and could change "
    "the answer: leave it out; docs/serving.md lists the known fields",
    param=name,
    code="unknown_parameter",
  )


def _shortened(value: Any, size: int = 200) -> str:
  text = repr(value)
  return text if len(text) < size else f"{text[:size]}..."


def invalid(allowed: str) -> PydanticCustomError:
  """Returns the error of a validator: the field must be `allowed`."""
  # Through a variable, since the template would expand braces in the text.
  return PydanticCustomError("invalid_value", "{allowed}", {"allowed": allowed})


def unsupported(reason: str) -> PydanticCustomError:
  """Returns the error of a validator: the value is not supported."""
  return PydanticCustomError(
    "unsupported_value", "{reason}", {"reason": reason}
  )


def must_be(allowed: str) -> WrapValidator:
  """Describes what is allowed, in place of pydantic's own errors."""

  def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
      return validate(value)
    except ValidationError as error:
      raise invalid(allowed) from error

  return WrapValidator(check)


def _whole(low: int, high: int | None = None) -> WrapValidator:
  ends = f"from {low} on" if high is None else f"from {low} to {high}"
  return _in_range(low, high, f"a whole number {ends}")


def number_between(low: float, high: float) -> WrapValidator:
  """Accepts numbers between two others, both included."""
  return _in_range(low, high, f"a number from {low:g} to {high:g}")


def _in_range(low: float, high: float | None, allowed: str) -> WrapValidator:
  def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
      number = validate(value)
    except ValidationError as error:
      raise invalid(allowed) from error
    # In this form for NaN, which is in no range.
    if not (number >= low and (high is None or number <= high)):
      raise invalid(allowed)
    return number

  return WrapValidator(check)


def _only(
  *values: Any, why: str = "this server does not do it"
) -> AfterValidator:
  """Accepts the values that apply without the field."""

  def check(value: Any) -> Any:
    if value not in values:
      raise unsupported(f"{why}. Leave it out, or give {values[0]!r}")
    return value

  return AfterValidator(check)


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


class JsonObject(BaseModel):
  """A JSON object; a field that is null is a field that is not given."""

  model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

  @model_validator(mode="before")
  @classmethod
  def _without_nulls(cls, fields: Any) -> Any:
    if not isinstance(fields, dict):
      return fields
    given = {name: x for name, x in fields.items() if x is not None}
    if cls.model_config["extra"] == "forbid":
      # One unknown field is sufficient for an error: pydantic would describe
      # each of them, and there may be 100,000.
      known = {f.alias or name for name, f in cls.model_fields.items()}
      for name in [name for name in given if name not in known][1:]:
        del given[name]
    return given


class _Lenient(JsonObject):
  """An object whose other fields clients and libraries choose."""

  model_config = ConfigDict(extra="ignore")


class StreamOptions(JsonObject):
  """`stream_options` of a request."""

  include_usage: bool = False
  include_obfuscation: Any = None


class CompletionRequest(JsonObject):
  """The fields that both endpoints have in common."""

  model: str
  n: Annotated[int, _whole(1)] = 1
  temperature: Annotated[float, number_between(0.0, 100.0)] | None = None
  top_p: Annotated[float, number_between(1e-6, 1.0)] = 1.0
  top_k: Annotated[int, _whole(-1, 2**31 - 1)] = 0  # 0 or -1: all tokens
  min_p: Annotated[float, number_between(0.0, 1.0)] = 0.0
  seed: Annotated[int, _whole(-(2**63), 2**64 - 1)] | None = None
  max_tokens: Annotated[int, _whole(1)] | None = None  # None: as many as fit
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

  # File, bill or cache a call; they do not change what is sampled.
  metadata: Any = None
  prompt_cache_key: Any = None
  prompt_cache_retention: Any = None
  safety_identifier: Any = None
  service_tier: Any = None
  user: Any = None
  priority: Any = None  # vLLM's
  request_id: Any = None

  # Accepted with the value that applies without them.
  best_of: Annotated[
    Any, _only(1, why="ask for n answers and choose one yourself")
  ] = 1
  echo: Annotated[Any, _only(False)] = False
  function_call: Annotated[Any, _only("none")] = "none"
  functions: Annotated[Any, _only([])] = []
  modalities: Annotated[Any, _only(["text"])] = ["text"]
  repetition_penalty: Annotated[Any, _only(1)] = 1
  store: Annotated[Any, _only(False)] = False
  suffix: Annotated[Any, _only("")] = ""
  length_penalty: Annotated[Any, _only(1)] = 1
  min_tokens: Annotated[Any, _only(0)] = 0
  use_beam_search: Annotated[Any, _only(False)] = False
  skip_special_tokens: Annotated[Any, _only(False)] = False
  spaces_between_special_tokens: Annotated[Any, _only(True)] = True
  include_stop_str_in_output: Annotated[Any, _only(False)] = False
  add_generation_prompt: Annotated[Any, _only(True)] = True
  continue_final_message: Annotated[Any, _only(False)] = False

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
    """Whether a stream ends with the token counts."""
    return self.stream_options is not None and self.stream_options.include_usage

  @property
  def raw_logprobs(self) -> bool:
    """Whether log-probabilities are at temperature 1, or as drawn from."""
    return self.logprobs_mode == "raw_logprobs"

  @property
  def num_top(self) -> int:
    """Likeliest tokens to list at each place."""
    return 0

  @property
  def wants_structured_output(self) -> bool:
    """Whether a grammar may have to be compiled for the call."""
    return False

  @property
  def ignored(self) -> Set[str]:
    """Names of the fields of messages that are accepted and not read."""
    return frozenset()


class TextCompletionRequest(CompletionRequest):
  """A call of `/v1/completions`."""

  prompt: Prompts
  # Both numbers are those of OpenAI's reference.
  max_tokens: Annotated[int, _whole(1)] | None = 16
  logprobs: Annotated[int, _whole(0, 5)] | None = None

  parallel_tool_calls: Annotated[
    Any, _only(True, why="only /v1/chat/completions has calls")
  ] = True
  response_format: Annotated[
    Any, _only({"type": "text"}, why="only /v1/chat/completions has it")
  ] = None
  top_logprobs: Annotated[
    Any, _only(0, why="only /v1/chat/completions has it; give logprobs=N")
  ] = 0

  @property
  def num_top(self) -> int:
    return self.logprobs or 0


class _CalledFunction(_Lenient):
  name: str
  arguments: str  # JSON, as the policy wrote it


class _ToolCall(_Lenient):
  function: _CalledFunction
  id: str = ""


def _joined_parts(content: Any) -> str:
  """Joins the parts of a message's content."""
  if isinstance(content, str):
    return content
  if not isinstance(content, list):
    raise invalid("text or a list of parts")
  texts = []
  for part in content:
    kind = part.get("type") if isinstance(part, dict) else part
    text = part.get(kind) if kind in ("text", "refusal") else None
    if not isinstance(text, str):
      raise unsupported(
        f"it has a part of the kind {_shortened(kind)}, and the policy reads "
        "text only. Send text parts"
      )
    texts.append(text)
  return "".join(texts)


def _hidden(instead: str) -> AfterValidator:
  """Refuses a part of a message that the policy cannot be shown."""

  def check(value: Any) -> Any:
    if value:
      raise unsupported(f"it cannot be shown to the policy: {instead}")
    return value

  return AfterValidator(check)


class ChatMessage(JsonObject):
  """A message with the fields of OpenAI's reference.

  Clients send back what other servers and libraries added to an answer, so
  other fields are accepted; `model_extra` has them.
  """

  model_config = ConfigDict(extra="allow")

  role: Literal["system", "developer", "user", "assistant", "tool"]
  content: Annotated[str, BeforeValidator(_joined_parts)] = ""
  name: str = ""
  refusal: str = ""
  tool_calls: Annotated[list[_ToolCall], FailFast()] = []
  tool_call_id: str | None = Field(None, validate_default=True)
  annotations: Any = None
  audio: Annotated[Any, _hidden("send its transcript as the content")] = None
  function_call: Annotated[Any, _hidden("send it as one of tool_calls")] = None

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
    return Message(
      # By OpenAI's reference, `developer` replaces `system`.
      role="system" if self.role == "developer" else self.role,
      content=self.content or self.refusal,
      tool_calls=tuple(
        ToolCall(call.function.name, call.function.arguments, call.id)
        for call in self.tool_calls
      ),
      tool_call_id=self.tool_call_id,
    )


class _Function(_Lenient):
  name: str
  description: str = ""
  parameters: dict[str, Any] = {}
  strict: bool = False


class ChatTool(_Lenient):
  """A function that the policy may call."""

  type: Literal["function"] = "function"
  function: _Function

  def to_tool(self) -> Tool:
    """Returns the tool as chat templates read it."""
    function = self.function
    return Tool(function.name, function.description, function.parameters)


class _FunctionName(JsonObject):
  name: str


class NamedTool(JsonObject):
  """A `tool_choice` of one function."""

  type: Literal["function"] = "function"
  function: _FunctionName


class _AllowedTools(JsonObject):
  mode: Literal["auto", "required"] = "auto"
  tools: Annotated[list[NamedTool], FailFast()]


class AllowedTools(JsonObject):
  """A `tool_choice` of some functions."""

  type: Literal["allowed_tools"]
  allowed_tools: _AllowedTools


class _PlainFormat(JsonObject):
  type: Literal["text", "json_object"]


class _NamedSchema(JsonObject):
  definition: dict[str, Any] = Field(alias="schema")
  name: Any = None
  description: Any = None
  strict: Any = None


class _SchemaFormat(JsonObject):
  type: Literal["json_schema"]
  json_schema: _NamedSchema


class ChatCompletionRequest(CompletionRequest):
  """A call of `/v1/chat/completions`."""

  messages: Annotated[list[ChatMessage], Field(min_length=1), FailFast()]
  tools: Annotated[list[ChatTool], FailFast()] = []
  tool_choice: Annotated[
    Literal["auto", "required", "none"] | NamedTool | AllowedTools,
    must_be(_TOOL_CHOICES),
  ] = "auto"
  parallel_tool_calls: bool | None = None
  response_format: (
    Annotated[_PlainFormat | _SchemaFormat, must_be(_FORMATS)] | None
  ) = None
  logprobs: bool = False
  top_logprobs: Annotated[int, _whole(0, MAX_TOP)] = 0
  max_completion_tokens: Annotated[int, _whole(1)] | None = None

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
      or "tool_choice" in self.model_fields_set
      or self.parallel_tool_calls is not None
      or any(tool.function.strict for tool in self.tools)
    )

  @property
  def ignored(self) -> Set[str]:
    return frozenset().union(*(m.model_extra or () for m in self.messages))
