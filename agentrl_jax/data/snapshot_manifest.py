"""Manifest of published weights: the snapshot that each policy slot serves.

The learner writes a snapshot's arrays into a new folder and then replaces the
manifest, which rollout servers poll. Replacing the file publishes the snapshot:
a reader sees the old manifest or the new one, never a mix. The folder may be a
bucket's path. Needs no jax.
"""

import pathlib
from typing import Annotated, Literal

import msgspec
from etils import epath

from agentrl_jax.errors import CheckpointError

FILE = "manifest.json"
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Folder = Annotated[
  str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}\Z")
]
_Leaf = Annotated[
  str,
  msgspec.Meta(
    pattern=r"\A(bfloat16|float16|float32)\[(\d{1,18}(, \d{1,18})*)?\]\Z"
  ),
]
_Checksum = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Slot = Annotated[int, msgspec.Meta(ge=0, le=9999)]


class Snapshot(
  msgspec.Struct,
  frozen=True,
  kw_only=True,
  forbid_unknown_fields=True,
  rename={"version": "step"},
):
  """One publication of weights."""

  publication: _Count  # grows with every publication, across restarts too
  version: _Count  # optimizer updates behind the weights
  folder: _Folder  # its name beside the manifest
  # By name, as in "float32[2, 64]".
  leaves: Annotated[dict[str, _Leaf], msgspec.Meta(min_length=1)]
  checksums: dict[str, _Checksum]  # by name, as `model.checksums` computes them

  def __post_init__(self) -> None:
    if self.checksums.keys() != self.leaves.keys():
      raise ValueError("the checksums are not those of the leaves")


class Manifest(msgspec.Struct, frozen=True):
  """The snapshot that each policy slot must serve."""

  policy_slots: dict[_Slot, Snapshot]
  format: Literal[1] = 1

  @property
  def folders(self) -> set[str]:
    """Folders that must not be deleted."""
    return {snapshot.folder for snapshot in self.policy_slots.values()}

  @property
  def newest(self) -> int:
    """The largest publication; 0 if there is none."""
    return max((s.publication for s in self.policy_slots.values()), default=0)


def open_folder(path: str) -> epath.Path:
  """Returns a bucket's path unchanged, and a folder as absolute path."""
  return epath.Path(path if "://" in path else pathlib.Path(path).resolve())


def read_manifest(folder: epath.Path) -> Manifest | None:
  """Reads the manifest; None if nothing was published yet.

  Raises `CheckpointError` if the file is not a manifest.
  """
  path = folder / FILE
  try:
    text = path.read_bytes()
  except FileNotFoundError:
    return None
  except OSError as error:
    raise CheckpointError(f"{path} cannot be read: {error!r}") from error
  try:
    return msgspec.json.decode(text, type=Manifest)
  except (ValueError, RecursionError) as error:
    raise CheckpointError(
      f"{path} is no manifest of snapshots: {str(error)[:300]}. The learner "
      "replaces it when it next publishes"
    ) from error


def write_manifest(folder: epath.Path, manifest: Manifest) -> None:
  """Replaces the manifest in one rename."""
  partial = folder / f"{FILE}.partial"
  partial.write_bytes(msgspec.json.encode(manifest))
  partial.replace(folder / FILE)
