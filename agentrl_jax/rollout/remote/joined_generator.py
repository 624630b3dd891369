"""Several generators as one: their policy slots, one after the other.

A server of several models has an engine for each. Callers see one generator
whose policy slots are those of the first engine, then those of the second, and
so on.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import AsyncGenerator, Sequence

import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import (
  Answer,
  Generator,
  SamplingSpec,
  answer_chunks,
)


class JoinedGenerator:
  """A `rollout.api.StreamingGenerator` in front of others."""

  def __init__(self, generators: Sequence[Generator]):
    self._generators = tuple(generators)
    sizes = [generator.num_policy_slots for generator in generators]
    # The joined policy slot of each generator's policy slot 0.
    self.first_policy_slots = tuple(itertools.accumulate([0, *sizes]))[:-1]
    self._num_policy_slots = sum(sizes)

  @property
  def num_policy_slots(self) -> int:
    """The policy slots of all generators together."""
    return self._num_policy_slots

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Answer:
    """Waits for the answer of the generator that has the policy slot."""
    generator, own = self._at(spec)
    answer = await generator.generate(prompt, own)
    return dataclasses.replace(answer, policy_slot=spec.policy_slot)

  async def stream(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> AsyncGenerator[Answer, None]:
    """The answer in pieces; closing it frees the slot that decodes."""
    generator, own = self._at(spec)
    async with contextlib.aclosing(
      answer_chunks(generator, prompt, own)
    ) as pieces:
      async for piece in pieces:
        yield dataclasses.replace(piece, policy_slot=spec.policy_slot)

  def _at(self, spec: SamplingSpec) -> tuple[Generator, SamplingSpec]:
    if not 0 <= spec.policy_slot < self._num_policy_slots:
      raise ConfigError(
        f"policy_slot={spec.policy_slot} must be 0 to "
        f"{self._num_policy_slots - 1}, the policy "
        "policy slots of this server"
      )
    number = (
      sum(first <= spec.policy_slot for first in self.first_policy_slots) - 1
    )
    own = spec.policy_slot - self.first_policy_slots[number]
    return self._generators[number], dataclasses.replace(spec, policy_slot=own)
