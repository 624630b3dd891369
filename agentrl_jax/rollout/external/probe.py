"""Tests an engine's abilities before a run depends on them.

A few short answers to a fixed prompt show whether token ids, the prompt,
log-probabilities, stop tokens, budgets and seeds are as a run needs them. An
error names what is missing and how to enable it at the engine.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.external.response import (
  ONE_FOR_BOTH,
  EngineDialect,
  EngineLacks,
  EngineOutput,
  checked_ending,
  checked_logprobs,
  checked_prompt,
  checked_tokens,
  is_plain,
)

PROBE_TOKENS = 12  # per answer
_SEED = 11
_TRIES = 3  # with an engine whose greedy answers differ

# Sends (prompt, sampling, whether to send its seed); raises its errors.
Send = Callable[[Sequence[int], SamplingParams, bool], Awaitable[EngineOutput]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
  """Requirements of a run for its engines."""

  vocab_size: int
  num_policy_slots: int = 1
  # How the run samples; only temperature, top_k, top_p and min_p are read.
  specs: tuple[SamplingParams, ...] = (SamplingParams(),)
  seeds: bool = True  # so that a repeated request has the same answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Abilities:
  """Abilities of an engine that not every run needs."""

  takes_seeds: bool
  both_logprobs: bool
  versions: str  # per "token", per "answer", or from the "endpoint"


async def probe(send: Send, dialect: EngineDialect, needs: Needs) -> Abilities:
  """Waits for a dozen short answers. Raises `EngineLacks`."""
  prompt = probe_prompt(needs.vocab_size)
  seeds = True
  sampling = SamplingParams(max_tokens=PROBE_TOKENS, seed=_SEED)
  try:
    output = await send(prompt, sampling, True)
  except ConfigError as refusal:
    # Some engines accept no seed at all; any other error comes again.
    output, seeds = await send(prompt, sampling, False), False
    if needs.seeds:
      raise EngineLacks(
        f"it accepts no seed ({refusal}): {dialect.remedies.seeds}"
      ) from refusal
  _check(output, prompt, sampling, dialect, needs)
  if seeds:
    seeds = await _repeats(send, prompt, output)
    if needs.seeds and not seeds:
      raise EngineLacks(
        "the same request with the same seed has two answers: "
        f"{dialect.remedies.seeds}"
      )
  await _check_stop(send, prompt, dialect, needs)
  return Abilities(
    takes_seeds=seeds,
    both_logprobs=output.raw_logprob is not None,
    versions=_kind_of_versions(output),
  )


def probe_prompt(vocab_size: int) -> list[int]:
  """Returns a fixed prompt with the first and last id of the vocabulary."""
  middle = np.linspace(0, vocab_size - 1, 9).astype(int)
  return [int(token) for token in middle]


def _check(
  output: EngineOutput,
  prompt: Sequence[int],
  sampling: SamplingParams,
  dialect: EngineDialect,
  needs: Needs,
) -> None:
  """Checks ids, prompt, budget, ending and log-probabilities, in this order."""
  remedies = dialect.remedies
  sampled = checked_tokens(output, sampling, needs.vocab_size, remedies)
  checked_prompt(output, prompt, remedies, by_count=False)
  if dialect.name != "sglang":  # SGLang ends at the model's own stop tokens
    checked_ending(sampled, output, sampling, remedies)
  checked_logprobs(output.logprob, len(sampled), remedies)
  if output.raw_logprob is not None:
    checked_logprobs(output.raw_logprob, len(sampled), remedies)
    return
  for wanted in needs.specs:
    if wanted.temperature and not is_plain(wanted):
      raise EngineLacks(
        f"it gives one log-probability per token, and this run samples with "
        f"temperature={wanted.temperature}, top_k={wanted.top_k}, top_p="
        f"{wanted.top_p}, min_p={wanted.min_p}, where the one of the "
        f"distribution drawn from and the one at temperature 1 differ: "
        f"{ONE_FOR_BOTH}"
      )


async def _repeats(
  send: Send, prompt: Sequence[int], first: EngineOutput
) -> bool:
  """Returns whether the same seed gives the same answer."""
  assert first.sampled is not None, "checked before"
  sampling = SamplingParams(max_tokens=PROBE_TOKENS, seed=_SEED)
  again = await send(prompt, sampling, True)
  return list(first.sampled) == list(again.sampled or ())


async def _check_stop(
  send: Send, prompt: Sequence[int], dialect: EngineDialect, needs: Needs
) -> None:
  """Checks that a stop token ends an answer and is its last token."""
  greedy = SamplingParams(max_tokens=PROBE_TOKENS, temperature=0.0)
  for _ in range(_TRIES):
    output = await send(prompt, greedy, False)
    tokens = list(output.sampled or ())
    stop = tokens[len(tokens) // 2]
    sampling = dataclasses.replace(greedy, stop_tokens=(stop,))
    stopped = await send(prompt, sampling, False)
    sampled = checked_tokens(
      stopped, sampling, needs.vocab_size, dialect.remedies
    )
    if stop in sampled or len(sampled) < len(tokens):
      checked_ending(sampled, stopped, sampling, dialect.remedies)
      checked_logprobs(stopped.logprob, len(sampled), dialect.remedies)
      return
  raise EngineLacks(
    f"its greedy answers to one prompt differ so much that they do not show "
    f"whether stop tokens end them: {dialect.remedies.stop_token}"
  )


def _kind_of_versions(output: EngineOutput) -> str:
  if output.version is not None or output.spans:
    return "token"
  return "endpoint" if output.label is None else "answer"
