"""Which weights the version slots are to serve: one small file, replaced whole.

The learner writes a snapshot's arrays into a folder of their own and then names
it here; rollout servers look here. Replacing the file is what publishes: who
reads it sees all of the old or all of the new. The folder may be a bucket's
path. Needs no jax.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from etils import epath

from agentrl_jax.errors import CheckpointError

FILE = "manifest.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
  """One publication of weights."""

  edition: int  # grows with every publication, and over restarts
  step: int  # optimizer updates behind the weights
  folder: str  # its name beside the manifest
  leaves: Mapping[str, str]  # by name, as in "float32[2, 64]"
  checksums: Mapping[str, int]  # by name, as `model.checksums` computes them


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The snapshot that each version slot is to serve."""

  slots: Mapping[int, Snapshot]

  @property
  def folders(self) -> set[str]:
    """The folders that must stay."""
    return {snapshot.folder for snapshot in self.slots.values()}

  @property
  def newest(self) -> int:
    """The largest edition; 0 if there is none."""
    return max((s.edition for s in self.slots.values()), default=0)


def open_folder(path: str) -> epath.Path:
  """A folder, made absolute as Orbax wants it, or a bucket's path as it is."""
  return epath.Path(path if "://" in path else pathlib.Path(path).resolve())


def read_manifest(folder: epath.Path) -> Manifest | None:
  """The manifest; None if nothing was published yet.

  Raises `CheckpointError` if the file is no manifest.
  """
  path = folder / FILE
  try:
    text = path.read_bytes()
  except FileNotFoundError:
    return None
  except OSError as error:
    raise CheckpointError(f"{path} cannot be read: {error!r}") from error
  try:
    body = json.loads(text)
    if body["format"] != FORMAT:
      raise ValueError(f"format {body['format']}, and {FORMAT} is read here")
    return Manifest(
      {int(slot): _snapshot(found) for slot, found in body["slots"].items()}
    )
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise CheckpointError(
      f"{path} is no manifest of snapshots: {error!r}. The learner replaces it "
      "when it next publishes"
    ) from error


def write_manifest(folder: epath.Path, manifest: Manifest) -> None:
  """Replaces the manifest in one rename."""
  body = {
    "format": FORMAT,
    "slots": {
      str(slot): dataclasses.asdict(snapshot)
      for slot, snapshot in sorted(manifest.slots.items())
    },
  }
  partial = folder / f"{FILE}.partial"
  partial.write_text(json.dumps(body))
  partial.replace(folder / FILE)


def _snapshot(body: Mapping[str, Any]) -> Snapshot:
  snapshot = Snapshot(**body)
  if "/" in snapshot.folder or not set(snapshot.checksums) == set(
    snapshot.leaves
  ):
    raise ValueError(f"folder {snapshot.folder!r} or its checksums are wrong")
  return snapshot
