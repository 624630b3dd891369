"""Reads JSON bodies into pydantic models, with OpenAI's errors.

An error names the field, the value found and what is allowed. Validators state
the allowed values in words; `read` translates their errors in one place.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import (
  AfterValidator,
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
  path, kind, value = _path(error["loc"]), error["type"], error["input"]
  if kind == "missing":
    return ApiError(
      f"the field {path!r} is missing",
      param=path,
      code="missing_required_parameter",
    )
  if kind == "extra_forbidden":
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
  """Describes what is allowed, in place of pydantic's own errors."""

  def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
      return validate(value)
    except ValidationError as error:
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


def only(
  *values: Any, why: str = "this server does not do it"
) -> AfterValidator:
  """Accepts the values that apply without the field."""

  def check(value: Any) -> Any:
    if value not in values:
      raise unsupported(f"{why}. Leave it out, or give {values[0]!r}")
    return value

  return AfterValidator(check)


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


class LenientObject(JsonObject):
  """An object whose other fields clients and libraries choose."""

  model_config = ConfigDict(extra="ignore")
