"""What an engine can do, found out by asking it before a run depends on it.

A few short answers to a fixed prompt show whether token ids, the prompt,
log-probabilities, stop tokens, budgets and seeds are what a run needs. What is
missing is refused by name, with what to switch on at the engine.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.external.response import (
  ONE_FOR_BOTH,
  Dialect,
  EngineLacks,
  EngineOutput,
  checked_ending,
  checked_logprobs,
  checked_prompt,
  checked_tokens,
  is_plain,
)

PROBE_TOKENS = 12  # of an answer
_SEEDS = (11, 11, 12)
_TRIES = 3  # at a stop token that a wavering engine has to sample again

# Answers (spec, whether to send its seed); raises what the engine refuses.
Ask = Callable[[Sequence[int], SamplingSpec, bool], Awaitable[EngineOutput]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
  """What a run asks of its engines."""

  vocab_size: int
  num_policy_slots: int = 1
  # How the run samples: `temperature`, `top_k`, `top_p`, `min_p` count.
  specs: tuple[SamplingSpec, ...] = (SamplingSpec(),)
  seeds: bool = True  # so that a repeated request has the same answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Abilities:
  """What an engine was seen to do beyond what every run needs."""

  takes_seeds: bool
  both_logprobs: bool
  versions: str  # of each "token", each "answer", or by the "endpoint"


async def probe(ask: Ask, dialect: Dialect, needs: Needs) -> Abilities:
  """Waits for a dozen short answers. Raises `EngineLacks`, by name."""
  prompt = probe_prompt(needs.vocab_size)
  seeds = True
  spec = SamplingSpec(max_tokens=PROBE_TOKENS, seed=_SEEDS[0])
  try:
    said = await ask(prompt, spec, True)
  except ConfigError as refusal:
    # Some engines take no seed at all; whatever else it is comes again.
    said, seeds = await ask(prompt, spec, False), False
    if needs.seeds:
      raise EngineLacks(
        f"it takes no seed ({refusal}): {dialect.remedies.seeds}"
      ) from refusal
  _check(said, prompt, spec, dialect, needs)
  if seeds:
    seeds = await _repeats(ask, prompt, said)
    if needs.seeds and not seeds:
      raise EngineLacks(
        "the same request with the same seed has two answers: "
        f"{dialect.remedies.seeds}"
      )
  await _check_stop(ask, prompt, dialect, needs)
  return Abilities(
    takes_seeds=seeds,
    both_logprobs=said.raw_logprob is not None,
    versions=_kind_of_versions(said),
  )


def probe_prompt(vocab_size: int) -> list[int]:
  """A fixed prompt that has the first and the last id of the vocabulary."""
  middle = np.linspace(0, vocab_size - 1, 9).astype(int)
  return [int(token) for token in middle]


def _check(
  said: EngineOutput,
  prompt: Sequence[int],
  spec: SamplingSpec,
  dialect: Dialect,
  needs: Needs,
) -> None:
  """Ids, prompt, budget, ending and log-probabilities, in that order."""
  remedies = dialect.remedies
  sampled = checked_tokens(said, spec, needs.vocab_size, remedies)
  checked_prompt(said, prompt, remedies, by_count=False)
  if dialect.name != "sglang":  # which ends at the model's own stop tokens
    checked_ending(sampled, said, spec, remedies)
  checked_logprobs(said.logprob, len(sampled), remedies)
  if said.raw_logprob is not None:
    checked_logprobs(said.raw_logprob, len(sampled), remedies)
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
  ask: Ask, prompt: Sequence[int], first: EngineOutput
) -> bool:
  """Whether seeds decide the answer: the same one repeats it."""
  assert first.sampled is not None, "it was checked before"
  spec = SamplingSpec(max_tokens=PROBE_TOKENS, seed=_SEEDS[1])
  again = await ask(prompt, spec, True)
  return list(first.sampled) == list(again.sampled or ())


async def _check_stop(
  ask: Ask, prompt: Sequence[int], dialect: Dialect, needs: Needs
) -> None:
  """Whether a stop token ends an answer and is its last token."""
  greedy = SamplingSpec(max_tokens=PROBE_TOKENS, temperature=0.0)
  for _ in range(_TRIES):
    said = await ask(prompt, greedy, False)
    tokens = list(said.sampled or ())
    stop = tokens[len(tokens) // 2]
    spec = dataclasses.replace(greedy, stop_tokens=(stop,))
    stopped = await ask(prompt, spec, False)
    found = checked_tokens(stopped, spec, needs.vocab_size, dialect.remedies)
    if stop in found or len(found) < len(tokens):
      checked_ending(found, stopped, spec, dialect.remedies)
      checked_logprobs(stopped.logprob, len(found), dialect.remedies)
      return
  raise EngineLacks(
    f"its greedy answers to one prompt differ so much that it cannot be seen "
    f"whether stop tokens end them: {dialect.remedies.stop_token}"
  )


def _kind_of_versions(said: EngineOutput) -> str:
  if said.version is not None or said.spans:
    return "token"
  return "endpoint" if said.label is None else "answer"
