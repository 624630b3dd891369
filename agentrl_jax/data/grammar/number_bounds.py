"""Finds bounds of numbers that a grammar enforces, by testing the grammar.

llguidance converts a number's bounds to a regex, which is wrong for some of
them: with `"minimum": -10.5, "exclusiveMaximum": -10.0` it allows -10. So the
grammar is tested with numbers at and next to the bounds, in several notations.
Where it allows one out of bounds, exclusive bounds are replaced by inclusive
ones just within; where that does not help, the bounds are refused. Numbers are
compared as they are written: one of more than 15 digits may become an exclusive
bound once it is rounded to a float.
"""

import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

import llguidance

from agentrl_jax.data.grammar.json_schema import shortened
from agentrl_jax.errors import ConfigError

KEYWORDS = (
  *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
  "multipleOf",
)
_DIGITS: Any = Context(prec=700)  # enough to write out any float
_WITHIN = 14  # digits after the point by which a bound is moved
_STEPS = ("0", "1", "0.1", "0.01", "0.001", "1e-7", "1e-13", "1e-15", "1e-20")
_SPELLINGS = ("{}", "{}0", "{}000")


def kept_bounds(rules: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
  """Returns bounds that a grammar enforces, for an integer if `whole`.

  Raises `ConfigError` for bounds without a number between them, and for those
  that no grammar enforces.
  """
  for key, value in rules.items():
    if isinstance(value, bool) or not isinstance(value, int | float):
      raise ConfigError(
        f"{key} is {shortened(json.dumps(value))}: give a number"
      )
    if not -sys.float_info.max <= value <= sys.float_info.max:
      raise ConfigError(f"{key} is no number that 64 bits hold: give another")
  text = json.dumps({key: rules[key] for key in KEYWORDS if key in rules})
  bounds: dict[str, Any] = json.loads(_kept(text, whole))
  return bounds


@functools.lru_cache(1024)
def _kept(text: str, whole: bool) -> str:
  rules = json.loads(text)
  # llguidance enforces multiples correctly, and compiling them takes long.
  bounds = {key: x for key, x in rules.items() if key != "multipleOf"}
  if not bounds:
    return text
  for kept in (bounds, _inclusive(bounds, whole=whole)):
    schema = json.dumps({"type": "integer" if whole else "number", **kept})
    tokenizer = llguidance.LLTokenizer("byte")
    grammar = llguidance.LLMatcher(
      tokenizer, f"start: %json {schema}", log_level=0
    )
    reason = str(grammar.get_error()) if grammar.is_error() else ""
    if not reason and not _lets_through(grammar, tokenizer, bounds, whole):
      others = {key: rules[key] for key in rules.keys() - bounds.keys()}
      return json.dumps({**others, **kept})
  if reason:
    raise ConfigError(
      f"no number keeps to {text}, or too long ones alone: "
      f"{reason.partition(chr(10))[0][:200]}"
    )
  raise ConfigError(
    f"no grammar keeps to {text}: give bounds of fewer digits, inclusive ones"
  )


def _inclusive(rules: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
  inclusive_rules = dict(rules)
  for key, inclusive, step, stricter in (
    ("exclusiveMinimum", "minimum", 1, max),
    ("exclusiveMaximum", "maximum", -1, min),
  ):
    if key in inclusive_rules:
      bound = Decimal(str(inclusive_rules.pop(key)))
      within = _next_to(bound, step, whole=whole)
      inclusive_rules[inclusive] = stricter(
        inclusive_rules.get(inclusive, within), within
      )
  return inclusive_rules


def _next_to(bound: Decimal, step: int, *, whole: bool) -> float:
  """Returns a short number just above (`step` 1) or below (-1) a bound."""
  if whole and bound == bound.to_integral_value():
    return int(bound) + step
  size = max(bound.adjusted(), 0) if bound else 0
  return float(_DIGITS.add(bound, Decimal(step).scaleb(size - _WITHIN)))


def _lets_through(
  grammar: llguidance.LLMatcher,
  tokenizer: llguidance.LLTokenizer,
  rules: Mapping[str, Any],
  whole: bool,
) -> list[str]:
  """Returns numbers out of bounds that the grammar allows."""

  def has(text: str) -> bool:
    matcher, tokens = grammar.deep_copy(), tokenizer.tokenize_str(text)
    is_read: bool = matcher.try_consume_tokens(tokens) == len(tokens)
    return is_read and bool(matcher.is_accepting())

  return [
    text
    for text in _spelt(rules)
    if has(text) and not _is_within(Decimal(text), rules, whole=whole)
  ]


def _spelt(rules: Mapping[str, Any]) -> Iterator[str]:
  """Yields numbers at and next to the bounds, and zeros."""
  yield from ("0", "-0", "0.0", "-0.0", "1", "-1", "0.5", "-0.5", "0e0")
  for bound in rules.values():
    middle = Decimal(str(bound))
    for step in _STEPS:
      for near in (
        _DIGITS.add(middle, Decimal(step)),
        _DIGITS.subtract(middle, Decimal(step)),
        _DIGITS.multiply(middle, 1 + Decimal(step)),
      ):
        yield from _spellings(format(near, "f"))


def _spellings(text: str) -> Sequence[str]:
  plain = text.rstrip("0").rstrip(".") if "." in text else text
  with_point = text if "." in text else f"{text}.0"
  return (
    plain,
    f"{plain}e0",
    *(form.format(with_point) for form in _SPELLINGS),
  )


def _is_within(
  value: Decimal, rules: Mapping[str, Any], *, whole: bool
) -> bool:
  """Compares numbers as they are written, before rounding to floats."""
  bounds = {key: Decimal(str(bound)) for key, bound in rules.items()}
  is_whole = value == value.to_integral_value()
  return (
    (is_whole or not whole)
    and value >= bounds.get("minimum", value)
    and value <= bounds.get("maximum", value)
    and value > bounds.get("exclusiveMinimum", value - 1)
    and value < bounds.get("exclusiveMaximum", value + 1)
  )
