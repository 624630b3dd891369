"""Seeds that follow from where they are used, the same on every machine."""

import hashlib
import json


def seed_of(*parts: int | str) -> int:
  """A seed of 31 bits, decided by `parts` alone and in their order."""
  return _digest(parts) >> 33


def uniform_of(*parts: int | str) -> float:
  """A number in [0, 1), decided by `parts` alone and in their order."""
  return (_digest(parts) >> 11) / 2**53


def _digest(parts: tuple[int | str, ...]) -> int:
  text = json.dumps(parts)
  return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
