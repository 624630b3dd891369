"""Reads a GGUF file, llama.cpp's format, as tensors of a Hugging Face model.

Quantised tensors are dequantised to float32 by the `gguf` package, a strip of
rows at a time; others keep their dtype. A key of the file that would change the
computation is read or refused, and so is a tensor that is missing, unknown or
of another shape: `ModelConfig` says which there must be.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading
from agentrl_jax.hugging_face_files import refuse_pointer
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.config import (
  from_model_config,
  to_model_config,
)
from agentrl_jax.model.hugging_face.families.family import FAMILIES, Family
from agentrl_jax.model.hugging_face.positions import read_stretch
from agentrl_jax.model.hugging_face.tensor_names import (
  Path,
  Place,
  places,
  tensors,
)

try:
  import gguf
except ImportError as missing:
  raise ConfigError(
    f"reading GGUF files needs the package {missing.name!r}, which is not "
    "installed: pip install 'agentrl_jax[gguf]'"
  ) from missing

_MAGIC = b"GGUF"
_STRIP = 1 << 22  # numbers that are dequantised at a time
_Type = gguf.GGMLQuantizationType
_DTYPES = {
  _Type.F32: np.dtype(np.float32),
  _Type.F16: np.dtype(np.float16),
  _Type.BF16: np.dtype(ml_dtypes.bfloat16),
}
# Families that have another name here, by llama.cpp's.
_RENAMED = {"gemma3": "gemma3_text"}
# Gemma 3 with as many layers (27B) scales queries by the width of a head's
# share of the model, which files do not say.
_QUERIES_BY_WIDTH = 62
_ROPE_FREQUENCIES = "rope_freqs.weight"
# What Llama 3.1 to 3.3 have beside the factor, which files do not name.
_LLAMA3 = {
  "rope_type": "llama3",
  "rope_low_frequency": 1.0,
  "rope_high_frequency": 4.0,
  "rope_original_context": 8192,
}
# Keys of other stretches, by config.json's.
_SCALING = {
  "rope_type": "rope.scaling.type",
  "factor": "rope.scaling.factor",
  "original_max_position_embeddings": "rope.scaling.original_context_length",
}
_ROPE_TOLERANCE = 1e-4  # relative, of the stretch of a wavelength
_FETCH = "fetch it again"


class GGUFFile:
  """One file, open for reading.

  `metadata` are its keys, `architecture` and `family` llama.cpp's and Hugging
  Face's names of the family, `config` what it computes, `entries` are dtype and
  shape of each tensor by Hugging Face's name.
  """

  def __init__(self, path: pathlib.Path):
    """Raises `ConfigError` if the file is damaged or of another model."""
    self.path = path
    self._reader = _opened(path)
    self.metadata: Mapping[str, Any] = {
      name: field.contents() for name, field in self._reader.fields.items()
    }
    self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
    self.architecture = self._architecture()
    self.family = _RENAMED.get(self.architecture, self.architecture)
    self.config = self._model_config()
    self._names = self._tensor_names()
    self._check_tensors()

  @property
  def entries(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Dtype and shape of each tensor that `rows` yields."""
    return {
      name: (
        _DTYPES.get(tensor.tensor_type, np.dtype(np.float32)),
        _shape(tensor),
      )
      for name, tensor in self._by_name().items()
    }

  @property
  def quantisation(self) -> str:
    """Types of the matrices, such as "Q4_1, Q8_0"."""
    return ", ".join(
      sorted({t.tensor_type.name for t in self._reader.tensors if _is_big(t)})
    )

  def described(self) -> dict[str, Any]:
    """Returns the contents of config.json, without the ids of tokens."""
    dtypes = {
      dtype.name for dtype, shape in self.entries.values() if len(shape) > 1
    }
    return from_model_config(
      self.config,
      context=self._size("context_length"),
      dtype=dtypes.pop() if len(dtypes) == 1 else "float32",
    )

  def rows(self, name: str) -> Iterator[np.ndarray]:
    """Yields the rows of a tensor in strips, as Hugging Face orders them.

    Raises `ConfigError` for NaN and infinities.
    """
    tensor = self._by_name()[name]
    data = tensor.data.reshape(len(tensor.data), -1)
    head = self.config.head_dim
    columns = max(tensor.n_elements // len(data), 1)
    step = max(_STRIP // columns // head, 1) * head
    for begin in range(0, len(data), step):
      strip = _numbers(data[begin : begin + step], tensor.tensor_type)
      if not np.isfinite(strip).all():
        raise ConfigError(
          f"{tensor.name} in {self.path} holds NaN or infinity: the model is "
          f"damaged; {_FETCH}, or start from another"
        )
      is_turned = self.architecture == "llama" and (
        ".attn_q." in tensor.name or ".attn_k." in tensor.name
      )
      strip = _unpermuted(strip, head) if is_turned else strip
      # llama.cpp's norms multiply by what is stored, without adding 1.
      is_shifted = self.config.zero_centered_norm and "norm" in tensor.name
      yield strip - 1 if is_shifted else strip

  def _by_name(self) -> dict[str, gguf.ReaderTensor]:
    return {name: self._tensors[theirs] for name, theirs in self._names.items()}

  def _architecture(self) -> str:
    name = self.metadata.get("general.architecture")
    known = set(FAMILIES) | set(_RENAMED)
    known &= set(gguf.MODEL_ARCH_NAMES.values())
    if name not in known:
      raise ConfigError(
        f"{self.path}: general.architecture={name!r} is not one of "
        f"{', '.join(sorted(known))}, which the decoder computes: take a model "
        "of these families"
      )
    if self.metadata.get("split.count", 1) > 1:
      raise ConfigError(
        f"{self.path} is one of {self.metadata['split.count']} parts of a "
        "model: join them with llama.cpp's `llama-gguf-split --merge`"
      )
    return str(name)

  def _model_config(self) -> ModelConfig:
    """Reads the architecture; every key of it is read or refused."""
    try:
      width, heads = self._size("embedding_length"), self._size(_HEADS)
      head_dim = self._size("attention.key_length", width // heads)
      family = FAMILIES[self.family]
      config = ModelConfig(
        vocab_size=len(self.metadata.get("tokenizer.ggml.tokens", ())),
        width=width,
        num_layers=self._size("block_count"),
        num_heads=heads,
        num_kv_heads=self._size("attention.head_count_kv", heads),
        head_dim=head_dim,
        mlp_width=self._size("feed_forward_length"),
        rope_theta=self._number("rope.freq_base", 1e4),
        partial_rotary_factor=self._size("rope.dimension_count", head_dim)
        / head_dim,
        norm_epsilon=self._number("attention.layer_norm_rms_epsilon"),
        tied_embedding="output.weight" not in self._tensors,
        qkv_bias="blk.0.attn_q.bias" in self._tensors
        if family.qkv_bias is None
        else family.qkv_bias,
        embedding_scale=width**0.5 if family.scaled_embedding else 1.0,
        **dict[str, Any](family.traits()),
        **self._rope(head_dim),
        **self._windows(family),
      )
      self._refuse_others(config)
      to_model_config(from_model_config(config, context=1, dtype="float32"))
    except ConfigError as error:
      raise ConfigError(f"{self.path}: {error}") from error
    return config

  def _refuse_others(self, config: ModelConfig) -> None:
    """Raises `ConfigError` for keys of the architecture that are not read."""
    only = {
      "vocab_size": config.vocab_size,
      "attention.value_length": config.head_dim,
      "attention.causal": True,
      _WINDOW: config.window,
      "expert_count": 0,
      "expert_used_count": 0,
    }
    prefix = f"{self.architecture}."
    for key, value in self.metadata.items():
      name = key.removeprefix(prefix)
      if name == key or name in _READ or only.get(name) == value:
        continue
      allowed = f"{only[name]!r} is" if name in only else "no such key is known"
      raise ConfigError(
        f"{key}={value!r:.60} is not computed here; {allowed}. Take a model "
        "that has no other"
      )

  def _rope(self, head_dim: int) -> dict[str, Any]:
    """Reads how wavelengths are stretched: by keys, or each by a number.

    In llama.cpp a factor without a type is linear.
    """
    rope = {
      key: self._value(name, None)
      for key, name in _SCALING.items()
      if f"{self.architecture}.{name}" in self.metadata
    }
    rope.setdefault("rope_type", "linear" if "factor" in rope else "none")
    if rope["rope_type"] == "none":
      rope["rope_type"] = "default"
    if "factor" in rope:
      rope["factor"] = self._number(_SCALING["factor"])
    by_keys = read_stretch(rope)
    tensor = self._tensors.get(_ROPE_FREQUENCIES)
    if tensor is None or by_keys["rope_type"] != "default":
      return by_keys
    stretch = _numbers(tensor.data, tensor.tensor_type)
    found: dict[str, Any] = {"rope_factor": float(stretch.max()), **_LLAMA3}
    channels = np.arange(0, head_dim, 2) / head_dim
    wavelength = 2 * np.pi * self._number("rope.freq_base", 1e4) ** channels
    turns = found["rope_original_context"] / wavelength
    low, high = found["rope_low_frequency"], found["rope_high_frequency"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / (kept + (1 - kept) / found["rope_factor"])
    if self.architecture != "llama" or not (
      stretch.shape == expected.shape
      and np.allclose(stretch, expected, rtol=_ROPE_TOLERANCE)
    ):
      raise ConfigError(
        f"{_ROPE_FREQUENCIES} stretches wavelengths otherwise than Llama 3.1 "
        "to 3.3, which is not computed here: take the model's Hugging Face "
        "folder"
      )
    return found

  def _windows(self, family: Family) -> dict[str, Any]:
    """Reads the window of Gemma 3's local layers, and what else those have.

    Files say the window alone; the rest is the same in every size.
    """
    if family.window_period is None:
      return {}
    width, heads = self._size("embedding_length"), self._size(_HEADS)
    by_width = self._size("block_count") == _QUERIES_BY_WIDTH
    return {
      "window": self._size(_WINDOW),
      "window_period": family.window_period,
      "local_rope_theta": family.defaults["rope_local_base_freq"],
      "query_pre_attn_scalar": width // heads
      if by_width
      else self._size("attention.key_length"),
    }

  def _tensor_names(self) -> dict[str, str]:
    """Returns the file's name of each tensor by Hugging Face's."""
    architectures = {n: a for a, n in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(
      architectures[self.architecture], self.config.num_layers
    )
    return {
      name: names.get_name(name, try_suffixes=(".weight", ".bias")) or name
      for name, _ in tensors(self._places())
    }

  def _places(self) -> Mapping[Path, Place]:
    return places(self.config, self.family)

  def _check_tensors(self) -> None:
    """Raises `ConfigError` unless the file has what the model computes with."""
    present = set(self._tensors)
    if self.config.rope_type == "llama3":
      present -= {_ROPE_FREQUENCIES}
    missing = sorted(set(self._names.values()) - present)
    unknown = sorted(present - set(self._names.values()))
    for problem, names in (("lacks", missing), ("also has", unknown)):
      if names:
        raise ConfigError(
          f"{self.path} {problem} {', '.join(names[:3])} ({len(names)} tensors "
          f"in all): it is no complete {self.architecture} model as computed "
          f"here; {_FETCH}, or take another"
        )
    shapes = {
      name: self._places()[leaves[0][0]].matrix
      for name, leaves in tensors(self._places())
    }
    for name, tensor in self._by_name().items():
      if _shape(tensor) != shapes[name]:
        raise ConfigError(
          f"{tensor.name} in {self.path} has shape {_shape(tensor)}, and its "
          f"keys make it {shapes[name]}: the file is damaged; {_FETCH}"
        )
      _require_readable(tensor, self.path)

  def _size(self, name: str, default: int | None = None) -> int:
    value = self._value(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
      raise ConfigError(
        f"{self.architecture}.{name}={value!r:.60} must be a whole number "
        f"above 0: the file is damaged, or of a model whose layers differ"
      )
    return value

  def _number(self, name: str, default: float | None = None) -> float:
    value = self._value(name, default)
    if not isinstance(value, float | int) or not 0 < value < np.inf:
      raise ConfigError(
        f"{self.architecture}.{name}={value!r:.60} must be a number above 0: "
        f"the file is damaged; {_FETCH}"
      )
    return float(str(np.float32(value)))  # 1e-5, and not its float32

  def _value(self, name: str, default: Any) -> Any:
    value = self.metadata.get(f"{self.architecture}.{name}", default)
    if value is None:
      raise ConfigError(
        f"{self.architecture}.{name} is missing: the file is damaged; {_FETCH}"
      )
    return value


_HEADS, _WINDOW = "attention.head_count", "attention.sliding_window"
_READ = (
  "context_length",
  "embedding_length",
  "block_count",
  "feed_forward_length",
  _HEADS,
  "attention.head_count_kv",
  "attention.key_length",
  *_SCALING.values(),
  "attention.layer_norm_rms_epsilon",
  "rope.freq_base",
  "rope.dimension_count",
)


def require_gguf(path: pathlib.Path) -> None:
  """Raises `ConfigError` for a file that does not begin as GGUF files do."""
  with reading(path), path.open("rb") as file:
    head = file.read(64)
  refuse_pointer(path, head)
  if not head.startswith(_MAGIC):
    raise ConfigError(
      f"{path} is no GGUF file: it begins with {head[:8]!r}, and not with "
      f"{_MAGIC!r}. Name a .gguf file, or a wheel that holds one"
    )


def _opened(path: pathlib.Path) -> gguf.GGUFReader:
  require_gguf(path)
  with reading(path):
    reader = gguf.GGUFReader(path)
  if reader.byte_order != "I":
    raise ConfigError(
      f"{path} has the byte order of another kind of machine, which is not "
      "read here: take the usual file of this model"
    )
  return reader


def _require_readable(tensor: gguf.ReaderTensor, path: pathlib.Path) -> None:
  block, size = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
  try:
    _numbers(np.zeros((1, size), np.uint8), tensor.tensor_type)
  except NotImplementedError as error:
    raise ConfigError(
      f"{tensor.name} in {path} has type {tensor.tensor_type.name}, which the "
      "gguf package does not dequantise: take the file in Q8_0, F16, BF16 or "
      "a K-quant"
    ) from error


def _numbers(data: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
  """Reads rows as numbers: as they are, or dequantised to float32."""
  if kind in _DTYPES:
    return np.ascontiguousarray(data).view(_DTYPES[kind])
  return gguf.dequantize(data, kind)


def _unpermuted(rows: np.ndarray, head_dim: int) -> np.ndarray:
  """Undoes llama.cpp's order of a head's channels.

  There the two channels that turn together are neighbours; in Hugging Face's
  Llama they stand half a head apart.
  """
  pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
  return pairs.swapaxes(1, 2).reshape(rows.shape)


def _shape(tensor: gguf.ReaderTensor) -> tuple[int, ...]:
  return tuple(map(int, reversed(tensor.shape)))


def _is_big(tensor: gguf.ReaderTensor) -> bool:
  return len(tensor.shape) > 1
