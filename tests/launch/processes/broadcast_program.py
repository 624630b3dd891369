"""Prints the lengths of long values that every process got from process 0."""

import json
import random
import sys

from launch.processes import group

CHUNK = 8192
SIZES = (0, 1, 4096, 4097, CHUNK, CHUNK + 1, 3 * CHUNK - 1)


def main() -> None:
  """Broadcasts values of every size, over one chunk and over several."""
  group._MOST_CHUNK = CHUNK
  with group.joined(group.ProcessLimits()) as processes:
    found = []
    for size in SIZES:
      wanted = random.Random(size).randbytes(size)
      sent = wanted if processes.leads else b""
      if processes.broadcast(sent, what="a long value") != wanted:
        raise AssertionError(f"{size} bytes arrived as others")
      found.append(size)
    if processes.leads:
      sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
  main()
