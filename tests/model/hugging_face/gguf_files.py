"""Small GGUF files of every family, written as llama.cpp's converter does."""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer

from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.config import family_of
from agentrl_jax.model.hugging_face.export import Tensors
from tests.data.chat import families

SIZES = {
  "vocab_size": 320,
  "width": 64,
  "num_layers": 2,
  "num_heads": 4,
  "num_kv_heads": 2,
  "head_dim": 16,
  "mlp_width": 96,
  "rope_theta": 5e5,
  "norm_epsilon": 1e-5,
}
LLAMA3 = {
  "rope_type": "llama3",
  "rope_factor": 8.0,
  "rope_low_frequency": 1.0,
  "rope_high_frequency": 4.0,
  "rope_original_context": 8192,
}
CONFIGS = {
  "llama": ModelConfig(**SIZES, **LLAMA3, tied_embedding=True),
  "qwen2": ModelConfig(**SIZES, qkv_bias=True, tied_embedding=False),
  "qwen3": ModelConfig(**SIZES | {"head_dim": 32}, qk_norm=True),
  "glm4": ModelConfig(
    **SIZES,
    sandwich_norm=True,
    qkv_bias=True,
    partial_rotary_factor=0.5,
    tied_embedding=False,
  ),
}
CONFIGS["olmo2"] = ModelConfig(
  **SIZES, qk_norm=True, joint_qk_norm=True, pre_norm=False, sandwich_norm=True
)
CONFIGS["gemma3_text"] = ModelConfig(
  **SIZES,
  qk_norm=True,
  sandwich_norm=True,
  zero_centered_norm=True,
  activation="gelu_tanh",
  embedding_scale=8.0,
  window=32,
  local_rope_theta=1e4,
  query_pre_attn_scalar=16,
)
CONTEXT = 1024
# llama.cpp's names of families that have another one there.
_RENAMED = {"gemma3_text": "gemma3"}
CHATS = {
  "llama": ("llama31", "llama-bpe"),
  "qwen2": ("qwen25", "qwen2"),
  "qwen3": ("qwen3", "qwen2"),
  "glm4": ("glm4", "glm4"),
  "olmo2": ("qwen25", "qwen2"),
  "gemma3_text": ("qwen25", "qwen2"),
}
_K = {"Q4_K": (0, 2), "Q6_K": (208,)}  # bytes at which a block has its scales
_KINDS = {"normal": 1, "control": 3, "user": 4, "unused": 5}


def weights(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
  """Random float32 tensors by Hugging Face's names."""
  rng = np.random.default_rng(seed)
  entries = Tensors(config, np.dtype(np.float32)).entries
  return {
    name: rng.normal(0, 0.1, shape).astype(np.float32)
    for name, (_, shape) in entries.items()
  }


def write(
  path: pathlib.Path,
  config: ModelConfig,
  arrays: Mapping[str, np.ndarray],
  kind: str = "F32",
  *,
  keys: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
  """Writes a model; returns its tensors as they are in the file, dequantised.

  Matrices have the type `kind`, vectors are in float32. `keys` replace those of
  the metadata; None leaves one out.
  """
  family = family_of(config)
  writer = gguf.GGUFWriter(path, _RENAMED.get(family, family))
  for key, value in (_keys(config, family) | dict(keys or {})).items():
    if value is not None:
      _add(writer, key, value)
  expected = {}
  for name, array in arrays.items():
    kind_of = kind if array.ndim > 1 else "F32"
    shift = config.zero_centered_norm and "norm" in name
    data, read = _quantised(array + np.float32(shift), kind_of)
    expected[name] = read - np.float32(shift)
    if family == "llama" and (".q_proj" in name or ".k_proj" in name):
      data = permuted(data, config.head_dim)
    writer.add_tensor(gguf_name(name, config), data, raw_dtype=_type(kind_of))
  if config.rope_type == "llama3":
    writer.add_tensor("rope_freqs.weight", _stretch(config))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return expected


def permuted(rows: np.ndarray, head_dim: int) -> np.ndarray:
  """llama.cpp's order of a head's rows: channels that turn together adjoin."""
  order = np.arange(len(rows)).reshape(-1, 2, head_dim // 2).swapaxes(1, 2)
  return rows[order.reshape(-1)]


def gguf_name(name: str, config: ModelConfig) -> str:
  """Returns the file's name of a tensor of Hugging Face's."""
  family = family_of(config)
  of = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[
    _RENAMED.get(family, family)
  ]
  names = gguf.get_tensor_name_map(of, config.num_layers)
  return names.get_name(name, try_suffixes=(".weight", ".bias")) or name


def chat_keys(tokenizer: Tokenizer, family: str, size: int) -> dict[str, Any]:
  """Returns the metadata of a tokenizer that has `size` ids, with padding."""
  chat, cut = CHATS[family]
  of = families.SMALL[chat]
  text_of = {id: text for text, id in tokenizer.get_vocab().items()}
  kind_of = dict.fromkeys(of.special, "control") | dict.fromkeys(
    of.tags, "user"
  )
  texts = [text_of.get(id, f"[PAD{id}]") for id in range(size)]
  kinds = [
    kind_of.get(text, "normal") if id in text_of else "unused"
    for id, text in enumerate(texts)
  ]
  merges = json.loads(tokenizer.to_str())["model"]["merges"]
  found = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": cut,
    "tokenizer.ggml.tokens": texts,
    "tokenizer.ggml.token_type": [_KINDS[kind] for kind in kinds],
    "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
    "tokenizer.ggml.eos_token_id": tokenizer.token_to_id(of.eos),
    "tokenizer.chat_template": (families.HERE / f"{chat}.jinja").read_text(),
  }
  if of.bos:
    found["tokenizer.ggml.bos_token_id"] = tokenizer.token_to_id(of.bos)
  return found


def _keys(config: ModelConfig, family: str) -> dict[str, Any]:
  chat = families.tokenizer_of(families.SMALL[CHATS[family][0]])
  of = {
    "context_length": CONTEXT,
    "embedding_length": config.width,
    "block_count": config.num_layers,
    "feed_forward_length": config.mlp_width,
    "attention.head_count": config.num_heads,
    "attention.head_count_kv": config.num_kv_heads,
    "attention.key_length": config.head_dim,
    "attention.value_length": config.head_dim,
    "attention.layer_norm_rms_epsilon": config.norm_epsilon,
    "rope.freq_base": config.rope_theta,
    "rope.dimension_count": config.rotary_channels,
    "vocab_size": config.vocab_size,
  }
  if config.window:
    of["attention.sliding_window"] = config.window
  prefix = _RENAMED.get(family, family)
  return {f"{prefix}.{key}": value for key, value in of.items()} | chat_keys(
    chat, family, config.vocab_size
  )


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
  if isinstance(value, bool):
    writer.add_bool(key, value)
  elif isinstance(value, int):
    writer.add_uint32(key, value)
  elif isinstance(value, float):
    writer.add_float32(key, value)
  elif isinstance(value, str):
    writer.add_string(key, value)
  else:
    writer.add_array(key, value)


def _type(kind: str) -> gguf.GGMLQuantizationType:
  return gguf.GGMLQuantizationType[kind]


def _quantised(array: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows as the file has them, and as they are read."""
  data = (
    _k_blocks(array, kind) if kind in _K else gguf.quantize(array, _type(kind))
  )
  return data, gguf.dequantize(data, _type(kind))


def _k_blocks(array: np.ndarray, kind: str) -> np.ndarray:
  """Random blocks with small scales: the package does not quantise to these."""
  block, size = gguf.GGML_QUANT_SIZES[_type(kind)]
  rng = np.random.default_rng(int(abs(array).sum()))
  data = rng.integers(0, 256, (array.size // block, size), np.uint8)
  for at in _K[kind]:
    scale = rng.uniform(0, 1e-3, len(data)).astype(np.float16)
    data[:, at : at + 2] = scale[:, None].view(np.uint8)
  return data.reshape(len(array), -1)


def _stretch(config: ModelConfig) -> np.ndarray:
  """The tensor of Llama 3.1's wavelengths, one at a time."""
  stretch = []
  for channel in range(0, config.head_dim, 2):
    length = 2 * math.pi * config.rope_theta ** (channel / config.head_dim)
    turns = config.rope_original_context / length
    low, high = config.rope_low_frequency, config.rope_high_frequency
    if turns > high:
      stretch.append(1.0)
    elif turns < low:
      stretch.append(config.rope_factor)
    else:
      smooth = (turns - low) / (high - low)
      stretch.append(1 / ((1 - smooth) / config.rope_factor + smooth))
  return np.array(stretch, np.float32)
