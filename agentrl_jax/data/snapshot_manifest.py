"""Manifest of published weights: the snapshot that each policy slot serves.

The learner writes a snapshot's arrays into a new folder and then replaces the
manifest, which rollout servers poll. Replacing the file publishes the snapshot:
a reader sees the old manifest or the new one, never a mix. The folder may be a
bucket's path. Needs no jax.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from etils import epath

from agentrl_jax.errors import CheckpointError

FILE = "manifest.json"
FORMAT = 1
_KEYS = {"version": "step"}  # fields of `Snapshot` with keys of other names
_MAX_COUNT = 2**63 - 1
_FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}")
_DTYPES = ("bfloat16", "float16", "float32")  # that params are written in
_LEAF = re.compile(rf"({'|'.join(_DTYPES)})\[(\d{{1,18}}(, \d{{1,18}})*)?\]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
  """One publication of weights."""

  publication: int  # grows with every publication, across restarts too
  version: int  # optimizer updates behind the weights
  folder: str  # its name beside the manifest
  leaves: Mapping[str, str]  # by name, as in "float32[2, 64]"
  checksums: Mapping[str, int]  # by name, as `model.checksums` computes them


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The snapshot that each policy slot must serve."""

  policy_slots: Mapping[int, Snapshot]

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
    body = json.loads(text)
    if body["format"] != FORMAT:
      raise ValueError(f"format {body['format']}, and {FORMAT} is read here")
    return Manifest(
      {
        _policy_slot(policy_slot): _snapshot(snapshot)
        for policy_slot, snapshot in body["policy_slots"].items()
      }
    )
  except (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
  ) as error:
    reason = " ".join(repr(error).split())[:300]
    raise CheckpointError(
      f"{path} is no manifest of snapshots: {reason}. The learner replaces it "
      "when it next publishes"
    ) from error


def write_manifest(folder: epath.Path, manifest: Manifest) -> None:
  """Replaces the manifest in one rename."""
  body = {
    "format": FORMAT,
    "policy_slots": {
      str(policy_slot): _body(snapshot)
      for policy_slot, snapshot in sorted(manifest.policy_slots.items())
    },
  }
  partial = folder / f"{FILE}.partial"
  partial.write_text(json.dumps(body))
  partial.replace(folder / FILE)


def _body(snapshot: Snapshot) -> dict[str, Any]:
  """Returns an entry of the file, where the version's key is `step`."""
  body = dataclasses.asdict(snapshot)
  return {_KEYS.get(name, name): value for name, value in body.items()}


def _snapshot(body: Mapping[str, Any]) -> Snapshot:
  names = {key: name for name, key in _KEYS.items()}
  snapshot = Snapshot(**{names.get(k, k): value for k, value in body.items()})
  for name in ("publication", "version"):
    if not _is_count(value := getattr(snapshot, name), _MAX_COUNT):
      raise ValueError(f"{name}={value!r:.80} is no number of updates")
  folder = snapshot.folder
  if not isinstance(folder, str) or not _FOLDER.fullmatch(folder):
    raise ValueError(f"folder {folder!r:.80} is no name beside the manifest")
  _check_leaves(snapshot.leaves)
  _check_sums(snapshot.checksums, snapshot.leaves)
  return snapshot


def _check_leaves(leaves: Any) -> None:
  if not isinstance(leaves, dict) or not leaves:
    raise ValueError(f"leaves={leaves!r:.80} are no object of leaves")
  for name, leaf in leaves.items():
    if not isinstance(leaf, str) or not _LEAF.fullmatch(leaf):
      raise ValueError(
        f"leaf {name!r:.80} is {leaf!r:.80}, and a leaf is like "
        f"'float32[2, 64]', of {', '.join(_DTYPES)}"
      )


def _check_sums(sums: Any, leaves: Mapping[str, str]) -> None:
  if not isinstance(sums, dict) or sums.keys() != leaves.keys():
    raise ValueError("the checksums are not those of the leaves")
  for name, checksum in sums.items():
    if not _is_count(checksum, 2**32 - 1):
      raise ValueError(f"leaf {name!r:.80} has the checksum {checksum!r:.80}")


def _policy_slot(text: str) -> int:
  if not re.fullmatch(r"0|[1-9][0-9]{0,3}", text):
    raise ValueError(f"{text!r:.80} is no number of a policy slot")
  return int(text)


def _is_count(value: Any, most: int) -> bool:
  return type(value) is int and 0 <= value <= most
