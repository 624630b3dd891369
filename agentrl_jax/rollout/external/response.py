"""Answers of engines of other projects, and their checks.

A dialect translates a prompt and its parameters into the JSON of its engines,
and their JSON into an `EngineOutput`, where None stands for what the engine
does not report. `answer_of` makes a `Completion` of a complete output, and
refuses others by name.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.errors import ConfigError, GeneratorFault
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.remote.wire import ServedPolicySlot

# Float32 sums of a whole vocabulary may end this much above log(1).
_ROUNDING = 1e-3


class EngineLacks(ConfigError):
  """An engine lacks what training needs; the message says what to enable."""


@dataclasses.dataclass(frozen=True, eq=False)
class EngineOutput:
  """The unchecked output of an engine; None for what it does not report."""

  sampled: Sequence[int] | None
  logprob: Sequence[float | None] | None
  prompt: Sequence[int] | None  # as the engine received it
  # None unless reported beside `logprob`.
  raw_logprob: Sequence[float | None] | None = None
  num_prompt: int | None = None  # tokens, where their ids are not reported
  version: Sequence[int] | None = None  # optimizer updates, one per token
  # Labels of weights, each with the first token and the one after the last.
  spans: Sequence[tuple[str, int, int]] | None = None
  label: str | None = None  # of the weights when the answer was finished
  is_whole: bool = True  # ended by a stop token or by its budget
  num_reused: int = 0


# Remedy for an engine that reports one log-probability per token.
ONE_FOR_BOTH = (
  "set --config.sampling.temperature=1, and top_k, top_p and min_p so that "
  "they keep all, where both are the same"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remedies:
  """Remedies for what an engine of a dialect may lack."""

  token_ids: str
  prompt_ids: str
  logprobs: str
  stop_token: str
  seeds: str
  version: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineDialect:
  """The protocol of one kind of engine."""

  name: str  # as `rollouts.protocol` has it
  path: str
  version_paths: Sequence[str]  # the first path that exists has the label
  remedies: Remedies
  # JSON of (model, prompt, sampling, sends_seed, gives_prompt).
  request: Callable[
    [str, Sequence[int], SamplingParams, bool, bool], dict[str, Any]
  ]
  # Reads the JSON; raises `KeyError` or `TypeError` for another format.
  read: Callable[[Mapping[str, Any]], EngineOutput]


def label_of(served: ServedPolicySlot) -> str:
  """Returns the label of weights for an engine; `served_of` reads it."""
  return f"{served.version}@{served.publication}"


def served_of(label: object) -> ServedPolicySlot | None:
  """Returns the weights that a label names; None for a foreign label."""
  match = re.fullmatch(r"(\d+)@(\d+)", str(label))
  return match and ServedPolicySlot(int(match[1]), int(match[2]))


def checked_tokens(
  output: EngineOutput,
  sampling: SamplingParams,
  vocab_size: int,
  remedies: Remedies,
) -> np.ndarray:
  """Returns the sampled ids, int32 [A]. Raises `EngineLacks`."""
  if output.sampled is None:
    raise EngineLacks(
      f"it gives no token ids of its answers, and tokenizing their text again "
      f"may give others: {remedies.token_ids}"
    )
  sampled = np.asarray(output.sampled, np.int64)
  if not sampled.size:
    raise GeneratorFault("it answered with no token; at least one is due")
  if sampled.min() < 0 or sampled.max() >= vocab_size:
    raise EngineLacks(
      f"it sampled token {sampled.max()}, and this run's vocabulary has ids 0 "
      f"to {vocab_size - 1}: serve this run's model and tokenizer"
    )
  if len(sampled) > sampling.max_tokens:
    raise EngineLacks(
      f"it gave {len(sampled)} tokens for max_tokens={sampling.max_tokens}"
    )
  return sampled.astype(np.int32)


def checked_ending(
  sampled: np.ndarray,
  output: EngineOutput,
  sampling: SamplingParams,
  remedies: Remedies,
) -> None:
  """Refuses an answer that ended where this run's engine would not end."""
  if not output.is_whole:
    raise GeneratorFault("it aborted an answer")
  stops = np.flatnonzero(np.isin(sampled, sampling.stop_tokens))
  if stops.size and stops[0] < len(sampled) - 1:
    raise EngineLacks(
      f"it went on after stop token {sampled[stops[0]]}: {remedies.stop_token}"
    )
  if not stops.size and len(sampled) < sampling.max_tokens:
    raise EngineLacks(
      f"it ended an answer after {len(sampled)} of {sampling.max_tokens} "
      f"tokens, the last being {sampled[-1]}, which is none of this run's stop "
      f"tokens {sampling.stop_tokens}; either that is a stop token of its own, "
      f"or it keeps the stop token to itself: {remedies.stop_token}"
    )


def checked_logprobs(
  given: Sequence[float | None] | None, number: int, remedies: Remedies
) -> np.ndarray:
  """Returns log-probabilities, float32 [A]. Raises `EngineLacks`."""
  if given is None or None in given:
    raise EngineLacks(
      f"it gives no log-probability of every token: {remedies.logprobs}"
    )
  logprob = np.asarray(given, np.float32)
  if len(logprob) != number:
    raise EngineLacks(
      f"it gives {len(logprob)} log-probabilities of {number} tokens: "
      f"{remedies.logprobs}"
    )
  if not np.isfinite(logprob).all():
    raise GeneratorFault(
      "it gave a log-probability that is not finite; look for NaN in its "
      "weights"
    )
  if logprob.max() > _ROUNDING:
    raise EngineLacks(
      f"it gives {logprob.max():g} for a log-probability, which is above 0: "
      f"these are logits; {remedies.logprobs}"
    )
  return np.minimum(logprob, 0)


def checked_prompt(
  output: EngineOutput,
  prompt: Sequence[int],
  remedies: Remedies,
  *,
  by_count: bool,
) -> None:
  """Refuses an engine that answers another prompt than was sent.

  With `by_count` the number of its tokens is sufficient.
  """
  if by_count and output.prompt is None and output.num_prompt == len(prompt):
    return
  if output.prompt is None:
    raise EngineLacks(
      f"it does not give back the prompt's token ids: {remedies.prompt_ids}"
    )
  if list(output.prompt) != list(prompt):
    raise EngineLacks(
      f"it was asked {list(prompt)[:64]} and answered "
      f"{list(output.prompt)[:64]}: {remedies.prompt_ids}"
    )


def answer_of(
  output: EngineOutput,
  prompt: Sequence[int],
  sampling: SamplingParams,
  version: int | Sequence[int],
  *,
  vocab_size: int,
  remedies: Remedies,
) -> Completion:
  """Checks an output; `version` is that of all tokens, or one per token.

  One log-probability per token is sufficient where both of `Completion` are
  equal: at temperature 1 without truncation. Greedy decoding has probability 1,
  and engines report the log-probability at temperature 1 with it.
  """
  sampled = checked_tokens(output, sampling, vocab_size, remedies)
  checked_ending(sampled, output, sampling, remedies)
  checked_prompt(output, prompt, remedies, by_count=True)
  behavior, raw = _both_logprobs(output, sampling, len(sampled), remedies)
  try:
    version_A = np.broadcast_to(np.asarray(version, np.int32), sampled.shape)
  except ValueError as error:
    raise EngineLacks(
      f"it gives versions {version} of {len(sampled)} tokens: "
      f"{remedies.version}"
    ) from error
  return Completion(
    sampled,
    behavior,
    raw,
    version_A.copy(),
    policy_slot=sampling.policy_slot,
    num_reused=output.num_reused,
  )


def _both_logprobs(
  output: EngineOutput,
  sampling: SamplingParams,
  number: int,
  remedies: Remedies,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns those of the sampling distribution and at temperature 1."""
  given = checked_logprobs(output.logprob, number, remedies)
  if output.raw_logprob is not None:
    return given, checked_logprobs(output.raw_logprob, number, remedies)
  if sampling.temperature == 0:
    return np.zeros(number, np.float32), given
  if not is_plain(sampling):
    raise EngineLacks(
      f"it gives one log-probability per token, and at temperature="
      f"{sampling.temperature}, top_k={sampling.top_k}, "
      f"top_p={sampling.top_p}, min_p="
      f"{sampling.min_p} there are two: {ONE_FOR_BOTH}"
    )
  return given, given


def is_plain(sampling: SamplingParams) -> bool:
  """Returns whether the sampling distribution is that at temperature 1."""
  truncates = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
  return sampling.temperature == 1 and not truncates
