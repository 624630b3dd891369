"""Which checkpoints stay."""

from collections.abc import Sequence
from typing import Any


class Retention:
  """An Orbax preservation policy.

  The newest stay, those at multiples of `keep_every` (unless that is 0), and
  what any of these needs beside itself.
  """

  def __init__(self, keep: int, keep_every: int):
    self._keep, self._keep_every = keep, keep_every
    self.needed: tuple[int, ...] = ()  # by steps from now on
    self.pinned: dict[int, tuple[int, ...]] = {}  # by step, those it needs

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: Any
  ) -> list[bool]:
    """One answer per checkpoint; they come oldest first."""
    del context
    steps = [info.step for info in checkpoints]
    kept = set(steps[-self._keep :])
    if self._keep_every:
      kept |= {step for step in steps if step % self._keep_every == 0}
    kept |= {pin for step in kept for pin in self.pinned.get(step, ())}
    kept |= set(self.needed)
    return [step in kept for step in steps]
