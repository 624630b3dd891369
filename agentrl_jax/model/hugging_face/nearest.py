"""Says to which family a refused model is nearest, and what differs.

A folder is read as if it were of each family: keys of config.json differ that
the family refuses, lacks or does not read, and tensors of a layer that only one
of the two has, or in another shape. So nothing here knows other models.
"""

import copy
import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.errors import AgentRLError, CheckpointError, ConfigError
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.config import FAMILIES, to_model_config
from agentrl_jax.model.hugging_face.positions import ROPE
from agentrl_jax.model.hugging_face.settings import brief
from agentrl_jax.model.hugging_face.tensor_files import TensorFile, tensor_files
from agentrl_jax.model.hugging_face.tensor_names import places

# Keys that no reader needs, and that change no computation.
_NEUTRAL = frozenset(
  ("_name_or_path", "architectures", "attention_dropout", "bos_token_id")
  + ("dtype", "eos_token_id", "initializer_range", "max_position_embeddings")
  + ("model_type", "pad_token_id", "torch_dtype", "transformers_version")
  + ("unk_token_id", "use_cache", "embd_pdrop", "resid_pdrop")
  + ("max_window_layers", "output_router_logits", "pretraining_tp")
  + ("router_aux_loss_coef",)
)
_LAYER = re.compile(r"(?:model\.|language_model\.)*layers\.\*\.(.+)")
_FILLED = (2, 1.0, True, None)  # what a missing key is taken to be
_MOST = 6  # differences of a kind that a sentence lists
_LONGEST = 40  # characters of a value there
_ATTEMPTS = 100  # more than a config.json has keys to be refused

_Shapes = Mapping[str, tuple[int, ...] | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Differences:
  """Differences from a family, each in the words of a sentence."""

  is_readable: bool  # without the keys that differ
  keys: Sequence[str]
  more: Sequence[str] = ()  # tensors of a layer
  fewer: Sequence[str] = ()
  other: Sequence[str] = ()  # shapes

  def distance(self) -> tuple[bool, int]:
    """Orders families; the nearest is the least."""
    return not self.is_readable, len(
      [*self.keys, *self.more, *self.fewer, *self.other]
    )

  def __str__(self) -> str:
    texts = {
      "": self.keys,
      "each layer also has ": self.more,
      "lacks ": self.fewer,
      "shapes: ": self.other,
    }
    return "; ".join(
      f"{text}{_listed(parts)}" for text, parts in texts.items() if parts
    )


class _Noted(dict):
  """A dict that notes which of its keys are read."""

  def __init__(self, *args: Any):
    super().__init__(*args)
    self.read: set[str] = set()

  def __getitem__(self, key: str) -> Any:
    self.read.add(key)
    return super().__getitem__(key)

  def get(self, key: str, default: Any = None) -> Any:
    """Returns the value of a key, and notes the key."""
    self.read.add(key)
    return super().get(key, default)


def nearest(folder: pathlib.Path, described: Mapping[str, Any]) -> str:
  """Returns a sentence on the nearest family and the differences from it."""
  inner = described.get("text_config")
  is_nested = isinstance(inner, Mapping)
  shapes = _layer_shapes(folder)
  differences = {
    name: _differences(inner if is_nested else described, name, shapes)
    for name in FAMILIES
  }
  name = min(
    differences,
    key=lambda name: (differences[name].distance(), _num_traits(name)),
  )
  part = " for what text_config says" if is_nested else ""
  listed = str(differences[name]) or (
    "no key" + (" and no tensor" if shapes else "") + ", but perhaps its code"
  )
  return f"Nearest is {name}{part}; what differs: {listed}"


def _differences(
  described: Mapping[str, Any], name: str, shapes: _Shapes
) -> _Differences:
  config, keys = _as_if(described, name)
  if config is None or not shapes:
    return _Differences(is_readable=config is not None, keys=keys)
  theirs = {
    place.tensor.removeprefix("model.layers.{layer}."): place.matrix
    for place in places(config, name).values()
    if "{layer}" in place.tensor
  }
  return _Differences(
    is_readable=True,
    keys=keys,
    # Experts last: keys say that there are some.
    more=sorted(
      (_short(key) for key in shapes if key not in theirs),
      key=lambda key: "experts" in key,
    ),
    fewer=[_short(key) for key in theirs if key not in shapes],
    other=[
      f"{_short(key)} {shape}, not {theirs[key]}"
      for key, shape in shapes.items()
      if shape is not None and theirs.get(key, shape) != shape
    ],
  )


def _as_if(
  described: Mapping[str, Any], name: str
) -> tuple[ModelConfig | None, list[str]]:
  """Reads a config.json as one of the family, without what it refuses."""
  left = copy.deepcopy(dict(described)) | {"model_type": name}
  left.pop("architectures", None)
  differing: list[str] = []
  for _ in range(_ATTEMPTS):
    noted = _Noted(left)
    try:
      config = to_model_config(noted)
    except ConfigError as error:
      if not _amend(left, str(error), differing):
        return None, differing
      continue
    differing += [
      _setting(key, value)
      for key, value in left.items()
      if value and key not in noted.read | _NEUTRAL and key[:1] != "_"
    ]
    return config, differing
  return None, differing


def _amend(left: dict[str, Any], message: str, differing: list[str]) -> bool:
  """Takes out the key that a message refuses, or adds the one that it lacks.

  Rotary settings may be a level below.
  """
  named = re.findall(r"\w+", message)
  inner = [left[key] for key in ROPE if isinstance(left.get(key), dict)]
  for key in (key for key in named if key != "model_type"):
    for place in (left, *inner):
      if key not in place:
        continue
      value = place.pop(key)
      if key not in _refusal(left):
        differing.append(_setting(key, value))
        return True
      place[key] = value
  key = named[0]
  for value in _FILLED:
    if key not in _refusal(left | {key: value}):
      differing.append(f"no {key}")
      left[key] = value
      return True
  return False


def _refusal(described: Mapping[str, Any]) -> str:
  try:
    to_model_config(described)
  except ConfigError as error:
    return str(error)
  return ""


def _layer_shapes(folder: pathlib.Path) -> dict[str, tuple[int, ...] | None]:
  """Reads names and shapes of a layer's tensors, as far as files have them.

  Numbers of layers and experts are left out. A file with a dtype that is not
  read has no shapes here, and a folder without weights has nothing.
  """
  found: dict[str, tuple[int, ...] | None] = {}
  try:
    files = tensor_files(folder)
  except AgentRLError:
    return found
  for path, names in files.items():
    try:
      with TensorFile(path, names) as file:
        shapes = {name: entry.shape for name, entry in file.entries.items()}
    except CheckpointError:
      shapes = dict.fromkeys(names or ())
    for name, shape in shapes.items():
      if of_layer := _LAYER.fullmatch(re.sub(r"\.\d+(?=\.)", ".*", name)):
        found.setdefault(of_layer[1], shape)
  return found


def _num_traits(name: str) -> int:
  family = FAMILIES[name]
  return sum(
    getattr(family, field.name) != field.default
    for field in dataclasses.fields(family)
  )


def _setting(key: str, value: Any) -> str:
  return f"{key}={brief(value, _LONGEST)}"


def _short(tensor: str) -> str:
  return tensor.removesuffix(".weight")


def _listed(differences: Sequence[str]) -> str:
  more = len(differences) - _MOST
  return ", ".join(differences[:_MOST]) + (f" and {more} more" * (more > 0))
