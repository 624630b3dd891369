"""Several generators as one: their policy slots, one after the other.

A server of several models has an engine for each. Callers see one generator
whose slots are those of the first engine, then those of the second, and so on.
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
  answer_pieces,
)


class JoinedGenerator:
  """A `rollout.api.StreamingGenerator` in front of others."""

  def __init__(self, generators: Sequence[Generator]):
    self._generators = tuple(generators)
    sizes = [generator.num_slots for generator in generators]
    # The joined slot of each generator's slot 0.
    self.first_slots = tuple(itertools.accumulate([0, *sizes]))[:-1]
    self._num_slots = sum(sizes)

  @property
  def num_slots(self) -> int:
    """The policy slots of all generators together."""
    return self._num_slots

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Answer:
    """Waits for the answer of the generator that has the slot."""
    generator, own = self._at(spec)
    answer = await generator.generate(prompt, own)
    return dataclasses.replace(answer, slot=spec.slot)

  async def stream(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> AsyncGenerator[Answer, None]:
    """The answer in pieces; closing it frees the lane that decodes."""
    generator, own = self._at(spec)
    async with contextlib.aclosing(
      answer_pieces(generator, prompt, own)
    ) as pieces:
      async for piece in pieces:
        yield dataclasses.replace(piece, slot=spec.slot)

  def _at(self, spec: SamplingSpec) -> tuple[Generator, SamplingSpec]:
    if not 0 <= spec.slot < self._num_slots:
      raise ConfigError(
        f"slot={spec.slot} must be 0 to {self._num_slots - 1}, the policy "
        "slots of this server"
      )
    number = sum(first <= spec.slot for first in self.first_slots) - 1
    own = spec.slot - self.first_slots[number]
    return self._generators[number], dataclasses.replace(spec, slot=own)
