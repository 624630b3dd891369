"""Ranges of the numbers of a config: one gate for every key that has one.

Every number is finite: a bound that is never reached is a large number, and a
wait without an end would hang a run for good. A key that no line below names
has `_WHOLE` or `_REAL`, so that a new key is checked before anybody thinks of
it. What follows from several keys is checked where these are read.
"""

import dataclasses
import fnmatch
from collections.abc import Mapping
from typing import Any

import ml_collections

from agentrl_jax.errors import ConfigError
from configs import base
from configs.base import flat_keys

_INT32 = 2**31 - 1  # counts and lengths become the devices' integers


@dataclasses.dataclass(frozen=True)
class _Range:
  """Numbers from `least` to `most`; `open_low` and `open_high` exclude them."""

  least: float
  most: float
  open_low: bool = False
  open_high: bool = False

  def __contains__(self, value: float) -> bool:
    """Returns whether the range has the value; it has no NaN."""
    above = self.least < value if self.open_low else self.least <= value
    below = value < self.most if self.open_high else value <= self.most
    return above and below

  def __str__(self) -> str:
    low = "above" if self.open_low else "at least"
    high = "below" if self.open_high else "at most"
    return f"{low} {self.least:g} and {high} {self.most:.10g}"


_WHOLE, _REAL = _Range(0, _INT32), _Range(0, 1e12)
_COUNT = _Range(1, _INT32)
_POSITIVE = _Range(0, 1e12, open_low=True)
_SECONDS = _Range(0, 1e9, open_low=True)  # threads wait no longer: 31 years
_SHARE = _Range(0, 1)

# The first pattern that a key matches counts.
_RANGES: Mapping[str, _Range] = {
  "seed": _Range(0, 2**32 - 1),
  "mesh.*": _COUNT,
  "retry.backoff_s": _Range(0, 1e9),
  "*_s": _SECONDS,
  "*.cpus": _POSITIVE,
  "containers.*": _COUNT,
  "tokenizer.vocab_size": _COUNT,
  "tokenizer.num_texts": _COUNT,
  "model.norm_epsilon": _Range(0, 1, open_low=True),
  "model.embedding_scale": _POSITIVE,
  "model.rope_theta": _POSITIVE,
  "model.expert_scale": _POSITIVE,
  "model.rope_low_frequency": _POSITIVE,
  "model.rope_high_frequency": _POSITIVE,
  "model.rope_attention_factor": _POSITIVE,
  "*.b1": _Range(0, 1, open_high=True),
  "*.b2": _Range(0, 1, open_high=True),
  "*.learning_rate": _POSITIVE,
  "warm_start.num_demonstrations": _COUNT,
  "advantage.incomplete_reward": _Range(-1e6, 1e6),
  "agents.port": _Range(-1, _INT32),
  "sampling.top_p": _Range(1e-9, 1),
  "queue.max_age": _Range(-1, _INT32),
  "checkpoint.resume_step": _Range(-1, _INT32),
  "reference.version": _Range(-1, _INT32),
  "http.max_body": _Range(1, 2**53),
  "evaluation.num_tasks": _COUNT,
  "evaluation.concurrency": _COUNT,
  "evaluation.concurrency_during": _COUNT,
  "evaluation.num_tasks_during": _COUNT,
  "report.trace_share": _SHARE,
}


def check_numbers(config: ml_collections.ConfigDict) -> None:
  """Raises `ConfigError` for numbers that no setting can have, all at once.

  Options, mistakes and places of environments are left to those who read them.
  """
  known = dict(flat_keys(base.default_values()))
  refused = []
  for key, value in flat_keys(config):
    default = 1.0 if key.startswith("tasks.weights.") else known.get(key)
    if why := _why_not(key, value, default):
      refused.append(f"{key}={_shown(value)} {why}")
  if refused:
    raise ConfigError("; ".join(refused))


def range_of(key: str, default: float) -> _Range:
  """Returns the numbers that a key may have, by its default's type."""
  ranges = (r for k, r in _RANGES.items() if fnmatch.fnmatchcase(key, k))
  return next(ranges, _WHOLE if isinstance(default, int) else _REAL)


def _why_not(key: str, value: Any, default: Any) -> str:
  """Returns why a key cannot have a value, or "" if it can, or is no number."""
  if isinstance(default, tuple):
    if not isinstance(value, tuple | list):
      return "must be a tuple"
    kind = default[0] if default else 0
    whys = (
      _why_not(key, each, kind)
      for each in value
      if default or not isinstance(each, str)
    )
    return next(filter(None, whys), "")
  if isinstance(default, bool) or not isinstance(default, int | float):
    return ""
  is_whole = isinstance(default, int)
  allowed = range_of(key, default)
  kinds = int if is_whole else int | float
  is_number = isinstance(value, kinds) and not isinstance(value, bool)
  if is_number and value in allowed:
    return ""
  noun = "a whole number" if is_whole else "a number"
  return f"must be {allowed}, {noun}"


def _shown(value: Any) -> str:
  """Returns a value as in a message, where it is no endless number."""
  is_long = isinstance(value, int) and value.bit_length() > 200
  return (
    f"a number of {value.bit_length()} bits" if is_long else f"{value!r:.80}"
  )
