"""Derives seeds from where they are used, equal on every machine."""

import hashlib
import json


def seed_of(*parts: int | str) -> int:
  """Returns a seed of 31 bits, decided by `parts` and their order alone."""
  return _digest(parts) >> 33


def uniform_of(*parts: int | str) -> float:
  """Returns a number in [0, 1), decided by `parts` and their order alone."""
  return (_digest(parts) >> 11) / 2**53


def _digest(parts: tuple[int | str, ...]) -> int:
  text = json.dumps(parts)
  return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
