"""Reads JSON bodies into pydantic models, with OpenAI's errors.

An error names the field, the value found and what is allowed. Validators state
the allowed values in words; `read` translates their errors in one place.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, TypeVar

from pydantic import (
  BaseModel,
  ConfigDict,
  ValidationError,
  ValidatorFunctionWrapHandler,
  WrapValidator,
  model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from agentrl_jax.http_requests import parse_json
from agentrl_jax.rollout.server.errors import ApiError

MAX_VALUES = 100_000  # separators of JSON, without those of a prompt
_M = TypeVar("_M", bound=BaseModel)


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
  return ApiError(f"{name}={shortened(found)} must be {allowed}", param=name)


def _api_error(error: ErrorDetails) -> ApiError:
  """Translates an error of pydantic into OpenAI's error."""
  loc, kind, value = error["loc"], error["type"], error["input"]
  if field := error.get("ctx", {}).get("field"):
    loc, value = (*loc, field), value[field]
  path = _path(loc)
  if kind == "missing":
    return ApiError(
      f"the field {path!r} is missing",
      param=path,
      code="missing_required_parameter",
    )
  if kind == "unknown":
    return ApiError(
      f"the field {shortened(path)} is unknown to this server, and could "
      "change the answer: leave it out; docs/serving.md lists the known fields",
      param=path,
      code="unknown_parameter",
    )
  if kind == "unsupported_value":
    return ApiError(
      f"{path}={shortened(value)} is not supported: {error['msg']}",
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


def shortened(value: Any, size: int = 200) -> str:
  """Writes a value as Python does, cut at `size` characters."""
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
  """Describes what is allowed, in place of pydantic's own errors.

  Values of odd shapes fail in validators that read other forms.
  """

  def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
      return validate(value)
    except (ValidationError, LookupError, TypeError, AttributeError) as error:
      raise invalid(allowed) from error

  return WrapValidator(check)


def whole_number(low: int, high: int | None = None) -> WrapValidator:
  """Accepts whole numbers from `low` on, or up to `high`, included."""
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


class JsonObject(BaseModel):
  """A JSON object; a field that is null is a field that is not given.

  Each field is declared, or a class says what becomes of it; others are
  refused, so that nothing is dropped in silence.
  """

  model_config = ConfigDict(extra="allow", strict=True, frozen=True)

  # Fields that change nothing that the policy reads or samples.
  without_effect: ClassVar[Set[str]] = frozenset()
  # Fields that ask for what the policy is not told: counted by name.
  wishes: ClassVar[Set[str]] = frozenset()
  # Fields that are refused: the value that applies without, and the reason.
  refused: ClassVar[Mapping[str, tuple[Any, str]]] = {}
  counts_others: ClassVar[bool] = False

  @model_validator(mode="before")
  @classmethod
  def _with_known_fields(cls, fields: Any) -> Any:
    if not isinstance(fields, dict):
      return fields
    known = {f.alias or name for name, f in cls.model_fields.items()}
    given = {}
    for name, value in fields.items():
      if value is None or name in cls.without_effect:
        continue
      usual, why = cls.refused.get(name, (value, ""))
      if value != usual and name not in known:
        more = "" if usual is None else f", or give {usual!r}"
        reason = {"reason": f"{why}. Leave it out{more}", "field": name}
        raise PydanticCustomError("unsupported_value", "{reason}", reason)
      if name in known or name in cls.wishes or cls.counts_others:
        given[name] = value
      elif name not in cls.refused:
        raise PydanticCustomError("unknown", "unknown", {"field": name})
    return given


class LenientObject(JsonObject):
  """An object whose other fields clients and libraries choose: counted."""

  without_effect = frozenset(("cache_control", "encrypted_content"))
  counts_others = True


def unread(value: Any) -> Iterator[str]:
  """Yields names of fields, at any depth, that were accepted and not read."""
  if isinstance(value, JsonObject):
    yield from value.model_extra or ()
    for name in type(value).model_fields:
      yield from unread(getattr(value, name))
  for each in value if isinstance(value, list) else ():
    yield from unread(each)
