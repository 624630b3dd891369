"""Merges Hugging Face folders into one, one tensor at a time.

The rules are those of `agentrl_jax.model.merging`. Files are mapped, so that a
host holds one tensor of each model.
"""

import contextlib
import json
import math
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.markup import escape
from rich.progress import track

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.hugging_face import tensor_files
from agentrl_jax.model.hugging_face.config import CONFIG_FILE, read_model
from agentrl_jax.model.hugging_face.export import (
  MAX_FILE_BYTES,
  describe,
  write_small,
)
from agentrl_jax.model.hugging_face.pretrained import (
  refuse_other,
  refuse_other_head,
)
from agentrl_jax.model.hugging_face.tensor_files import TensorFile
from agentrl_jax.model.hugging_face.tensor_names import HEAD
from agentrl_jax.model.merging import MergeRule, Overlap, merge, overlaps

ABOUT = "merge.json"


class Model:
  """The tensors of a Hugging Face folder, read one at a time."""

  def __init__(self, folder: pathlib.Path, files: Sequence[TensorFile]) -> None:
    self.folder = folder
    self._files = {name: file for file in files for name in file.entries}

  @property
  def names(self) -> list[str]:
    """Names of all tensors, in order."""
    return sorted(self._files)

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns the shape of a tensor."""
    return self._files[name].entries[name].shape

  def dtype(self, name: str) -> np.dtype:
    """Returns the dtype of a tensor."""
    return self._files[name].entries[name].dtype

  def read(self, name: str) -> np.ndarray:
    """Reads one tensor."""
    shape = self.shape(name)
    return self._files[name].read(name, shape, (slice(None),) * len(shape))


@contextlib.contextmanager
def opened(folder: pathlib.Path) -> Iterator[Model]:
  """Opens a folder's tensors; a head that is the embedding is left out.

  Raises `CheckpointError` if there are none.
  """
  files = tensor_files.tensor_files(folder)
  is_tied = read_model(folder)[0].tied_embedding
  if is_tied:
    refuse_other_head(files)
  with contextlib.ExitStack() as stack:
    opened = [
      stack.enter_context(TensorFile(path, names))
      for path, names in files.items()
    ]
    for file in opened:
      if is_tied:
        file.entries.pop(HEAD, None)
    yield Model(folder, opened)


def merge_folders(
  base: pathlib.Path,
  experts: Sequence[pathlib.Path],
  to: pathlib.Path,
  rule: MergeRule,
) -> dict[str, Overlap]:
  """Writes the merge of `experts` as the folder `to`; returns their overlaps.

  The tokenizer and other small files are the base's. The folder appears under
  its name when it is complete. Raises `ConfigError` if the models do not fit
  together, or `to` exists, and `CheckpointError` for damaged files.
  """
  _require_mergeable(base, experts, to)
  with contextlib.ExitStack() as stack:
    origin = stack.enter_context(opened(base))
    models = {str(e): stack.enter_context(opened(e)) for e in experts}
    for model in models.values():
      _require_same_tensors(origin, model)
    whole = dict.fromkeys(models, Overlap())
    for name in track(origin.names, "comparing", transient=True):
      arrays = {key: model.read(name) for key, model in models.items()}
      for key, counted in overlaps(origin.read(name), arrays, rule).items():
        whole[key] += counted
    partial = to.with_name(to.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    dtype = _write(partial, origin, models, rule, whole)
    about = {
      "base": str(base),
      "rule": vars(rule),
      "experts": {key: vars(each) for key, each in whole.items()},
    }
    described = describe(read_model(base)[0], 0, dtype.name, base)
    write_small(partial, described, base)
    (partial / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
  partial.rename(to)
  return whole


def _require_mergeable(
  base: pathlib.Path, experts: Sequence[pathlib.Path], to: pathlib.Path
) -> None:
  if to.exists():
    raise ConfigError(f"{to} is there already; name one that is not")
  if len(set(experts)) < len(experts):
    raise ConfigError(
      f"--experts names a folder twice: {', '.join(map(str, experts))}"
    )
  for folder in (base, *experts):
    if not (folder / CONFIG_FILE).is_file():
      raise ConfigError(
        f"{folder} has no {CONFIG_FILE}: --base and --experts name Hugging "
        "Face folders, such as launch.export writes"
      )
  found, _ = read_model(base)
  for expert in experts:
    refuse_other(expert, read_model(expert)[0], found)


def _write(
  folder: pathlib.Path,
  base: Model,
  experts: Mapping[str, Model],
  rule: MergeRule,
  whole: Mapping[str, Overlap],
) -> np.dtype:
  """Writes the merged tensors; returns their dtype, the experts' most exact."""
  dtype = np.result_type(
    *(model.dtype(name) for model in experts.values() for name in base.names)
  )
  sizes = {
    name: math.prod(base.shape(name)) * dtype.itemsize for name in base.names
  }
  files = dict(tensor_files.split_by_size(sizes, MAX_FILE_BYTES))
  for file, names in files.items():
    merged = (
      merge(
        base.read(name).astype(dtype),
        {key: model.read(name) for key, model in experts.items()},
        rule,
        whole=whole,
        array_name=name,
      )
      for name in track(names, escape(f"merging {file}"), transient=True)
    )
    entries = {name: (dtype, base.shape(name)) for name in names}
    tensor_files.write_file(folder / file, entries, merged)
  tensor_files.write_index(folder, files, sum(sizes.values()))
  return dtype


def _require_same_tensors(base: Model, expert: Model) -> None:
  if differing := set(base.names) ^ set(expert.names):
    raise ConfigError(
      f"{', '.join(sorted(differing)[:3])} "
      f"{'is' if len(differing) == 1 else 'are'} in only one of {base.folder} "
      f"and {expert.folder}: merge models of one architecture"
    )
