"""Assigns generated texts to the train or the test split, by their hash.

Disjoint seeds alone do not keep two generated texts from being equal. So every
generator calls `split_of` on its text, and draws again if the text belongs to
the other split: no text of the training split can be a test, whatever the
seeds.
"""

import zlib

SPLITS = ("train", "test")
LOADED_SPLIT = "dev"  # tasks loaded from AgentBench's own files


def split_of(text: str) -> str:
  """Returns the split of `text`; each has about half of all texts.

  The hash is CRC-32 of the UTF-8 bytes, equal across processes, machines and
  versions of Python.
  """
  return SPLITS[zlib.crc32(text.encode()) & 1]
