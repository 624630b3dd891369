"""One generator of several: their policy slots, one after the other.

A server of several models has an engine for each. The policy slots of the
joined generator are those of the first engine, then those of the second, and so
on.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import AsyncGenerator, Sequence

import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import (
  Completion,
  Generator,
  SamplingParams,
  answer_chunks,
)


class JoinedGenerator:
  """A `rollout.api.StreamingGenerator` that forwards to others."""

  def __init__(self, generators: Sequence[Generator]):
    self._generators = tuple(generators)
    sizes = [generator.num_policy_slots for generator in generators]
    # The joined policy slot of each generator's policy slot 0.
    self.first_policy_slots = tuple(itertools.accumulate([0, *sizes]))[:-1]
    self._num_policy_slots = sum(sizes)

  @property
  def num_policy_slots(self) -> int:
    """Number of policy slots of all generators."""
    return self._num_policy_slots

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Waits for the answer of the generator that has the policy slot."""
    generator, own_spec = self._select(sampling)
    answer = await generator.generate(prompt, own_spec)
    return dataclasses.replace(answer, policy_slot=sampling.policy_slot)

  async def stream(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> AsyncGenerator[Completion, None]:
    """Yields the answer in chunks; closing frees the slot."""
    generator, own_spec = self._select(sampling)
    async with contextlib.aclosing(
      answer_chunks(generator, prompt, own_spec)
    ) as chunks:
      async for chunk in chunks:
        yield dataclasses.replace(chunk, policy_slot=sampling.policy_slot)

  def _select(
    self, sampling: SamplingParams
  ) -> tuple[Generator, SamplingParams]:
    if not 0 <= sampling.policy_slot < self._num_policy_slots:
      raise ConfigError(
        f"policy_slot={sampling.policy_slot} must be 0 to "
        f"{self._num_policy_slots - 1}, the policy slots of this server"
      )
    number = (
      sum(first <= sampling.policy_slot for first in self.first_policy_slots)
      - 1
    )
    own_slot = sampling.policy_slot - self.first_policy_slots[number]
    own_spec = dataclasses.replace(sampling, policy_slot=own_slot)
    return self._generators[number], own_spec
