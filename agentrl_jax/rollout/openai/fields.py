"""The fields of a request, read one by one; none is ignored in silence.

A field that would change the answer and that nobody here reads is refused by
its name. One that has the value it has anyway is let pass, and so are those
that never change an answer.
"""

import sys
from collections.abc import Mapping
from typing import Any, overload

from agentrl_jax.http_requests import parse_json
from agentrl_jax.rollout.server.errors import ApiError

MAX_VALUES = 100_000  # separators of JSON, without those of a prompt
# They file, bill or cache a call; what is sampled does not depend on them.
IDLE = frozenset(
  {
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
    "priority",  # vLLM's
    "request_id",
  }
)
# What these may be, because it is what happens without them, too.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
  "best_of": (1,),
  "echo": (False,),
  "function_call": ("none",),
  "functions": ([],),
  "modalities": (["text"],),
  "parallel_tool_calls": (True,),
  "repetition_penalty": (1,),
  "response_format": ({"type": "text"},),
  "store": (False,),
  "suffix": ("",),
  "top_logprobs": (0,),
  "length_penalty": (1,),
  "min_tokens": (0,),
  "use_beam_search": (False,),
  "skip_special_tokens": (False,),
  "spaces_between_special_tokens": (True,),
  "include_stop_str_in_output": (False,),
  "add_generation_prompt": (True,),
  "continue_final_message": (False,),
}
_WHY: Mapping[str, str] = {
  "best_of": "ask for n answers and choose one yourself",
  "parallel_tool_calls": "only /v1/chat/completions has calls",
  "response_format": "only /v1/chat/completions has it",
  "top_logprobs": "only /v1/chat/completions has it; give logprobs=N",
}


class Fields:
  """One JSON object; `close` refuses what was not read."""

  def __init__(self, body: bytes, *, max_values: int = MAX_VALUES):
    found = parse_json(body, max_values=max_values)
    if not isinstance(found, dict):
      raise ApiError(
        f"the body is a JSON {type(found).__name__}; an object is expected",
        code="invalid_json",
      )
    # A field that is null is a field that is not given.
    self._left = {name: x for name, x in found.items() if x is not None}

  def take(self, name: str, otherwise: Any = None) -> Any:
    """A field of any kind."""
    return self._left.pop(name, otherwise)

  def peek(self, name: str) -> Any:
    """A field that is still to be read; None if there is none."""
    return self._left.get(name)

  def rename(self, name: str, known: str) -> None:
    """Takes a field for the one that it is another name of."""
    if name in self._left:
      found = self._left.pop(name)
      if self._left.setdefault(known, found) != found:
        raise ApiError(
          f"{name}={found} and {known}={self._left[known]} were given, which "
          "mean the same: give one",
          param=name,
        )

  def required(self, name: str) -> Any:
    """A field that must be given."""
    if name not in self._left:
      raise ApiError(
        f"the field {name!r} is missing",
        param=name,
        code="missing_required_parameter",
      )
    return self._left.pop(name)

  def flag(self, name: str, otherwise: bool = False) -> bool:
    """True or false."""
    found = self.take(name, otherwise)
    if not isinstance(found, bool):
      raise wrong(name, found, "true or false")
    return found

  def integer(
    self, name: str, otherwise: int | None, *, low: int, high: int | None = None
  ) -> int | None:
    """A whole number between two others, both allowed."""
    found = self.take(name, otherwise)
    if found is None:
      return None
    is_whole = isinstance(found, int) and not isinstance(found, bool)
    if not is_whole or found < low or (high is not None and found > high):
      ends = f"from {low} on" if high is None else f"from {low} to {high}"
      raise wrong(name, found, f"a whole number {ends}")
    return int(found)

  @overload
  def number(
    self, name: str, otherwise: float, *, low: float, high: float
  ) -> float: ...

  @overload
  def number(
    self, name: str, otherwise: None, *, low: float, high: float
  ) -> float | None: ...

  def number(
    self, name: str, otherwise: float | None, *, low: float, high: float
  ) -> float | None:
    """A number between two others, both allowed."""
    found = self.take(name, otherwise)
    if found is None:
      return None
    if not is_number(found) or not low <= found <= high:
      raise wrong(name, found, f"a number from {low:g} to {high:g}")
    return float(found)

  def close(self) -> None:
    """Refuses the first field that nobody has read, by name."""
    for name, found in self._left.items():
      if name in IDLE or found in NEUTRAL.get(name, ()):
        continue
      if name in NEUTRAL:
        why = _WHY.get(name, "this server does not do it")
        raise ApiError(
          f"{name}={shortened(found)} is not supported: {why}. Leave it "
          f"out, or give {NEUTRAL[name][0]!r}",
          param=name,
          code="unsupported_value",
        )
      raise ApiError(
        f"the field {shortened(name)} is not known here, and could change the "
        "answer: leave it out; docs/serving.md lists what there is",
        param=name,
        code="unknown_parameter",
      )


def is_number(found: Any) -> bool:
  """Whether it is a number that a float can hold."""
  if isinstance(found, bool) or not isinstance(found, int | float):
    return False
  # Compared as integers, which may have more digits than any float.
  return -sys.float_info.max <= found <= sys.float_info.max


def shortened(found: Any, size: int = 200) -> str:
  """A value for an error message."""
  shown = repr(found)
  return shown if len(shown) < size else f"{shown[:size]}..."


def wrong(name: str, found: Any, allowed: str) -> ApiError:
  """A field of the wrong kind or size."""
  return ApiError(f"{name}={shortened(found)} must be {allowed}", param=name)
