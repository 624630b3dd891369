"""Which groups the policy was trained on: the run's own account of its past."""

import json
import os
import pathlib
from collections.abc import Sequence


class TrainedGroups:
  """Which groups each update was made of, one line an update."""

  def __init__(self, path: pathlib.Path):
    self._path = path

  def add(self, version: int, groups: Sequence[str]) -> None:
    """Notes the groups that took the policy from `version` to the next."""
    with self._path.open("a") as file:
      file.write(
        json.dumps({"version": version, "groups": list(groups)}) + "\n"
      )
      file.flush()
      os.fsync(file.fileno())  # before a checkpoint can hold the update

  def truncate(self, version: int) -> None:
    """Strikes out the updates from `version` on: they are not in the policy."""
    if not self._path.exists():
      return
    kept = [
      line
      for line in self._path.read_text().splitlines(keepends=True)
      if line.endswith("\n") and json.loads(line)["version"] < version
    ]
    partial = self._path.with_suffix(".partial")
    partial.write_text("".join(kept))
    partial.replace(self._path)
