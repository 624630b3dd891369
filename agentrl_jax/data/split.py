"""Which side of the train/test line a generated text falls on.

Disjoint seeds alone do not keep two generated texts from being equal. So every
generator asks this function of what it made, and draws again when the answer is
the other side: what was ever shown in training cannot be a test, whatever the
seeds.
"""

import zlib

SPLITS = ("train", "test")
LOADED_SPLIT = "dev"  # tasks that were read from AgentBench's own files


def split_of(text: str) -> str:
  """The split that owns `text`: a fixed half of all texts each.

  The hash is CRC-32 of the UTF-8 bytes, so the line stays where it is across
  processes, machines and versions of Python.
  """
  return SPLITS[zlib.crc32(text.encode()) & 1]
