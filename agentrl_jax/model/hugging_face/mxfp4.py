"""Dequantises gpt-oss's MXFP4 weights while they are read.

Files have two tensors of bytes for a weight [E, D, O] of E experts: `_blocks`
[E, O, D / 32, 16], whose bytes are two FP4 numbers each, the lower bits first,
and `_scales` [E, O, D / 32], exponents of 2 plus 127 (OCP's MX formats, version
1.0). The numbers are bfloat16, bit for bit those of transformers. They are
computed for one expert at a time, and only for the part that is asked for.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.errors import CheckpointError
from agentrl_jax.model.hugging_face.tensor_files import (
  DTYPES,
  Entry,
  TensorFile,
  require_finite,
)

BLOCKS, SCALES = "_blocks", "_scales"
_GROUP, _BYTES = 32, 16  # numbers with one scale, and their bytes
_HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_ALL = slice(None)


def is_mxfp4(described: Mapping[str, Any]) -> bool:
  """True if a config.json says that its weights are in this format."""
  settings = described.get("quantization_config")
  return isinstance(settings, dict) and settings.get("quant_method") == "mxfp4"


def dequantised(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
  """Returns bfloat16 [..., 32 G] of blocks [..., G, 16] and scales [..., G]."""
  place = (scales.astype(np.uint16) << 8)[..., None] | blocks
  pairs = _pairs().take(place.reshape(*scales.shape[:-1], -1))
  return pairs.view(DTYPES["BF16"])


@functools.cache
def _pairs() -> np.ndarray:
  """Returns the two numbers of each byte under each scale, as uint32."""
  fp4 = np.array([*_HALF, *(-number for number in _HALF)], np.float32)
  pairs = np.stack([np.tile(fp4, 16), np.repeat(fp4, 16)], axis=-1)
  # 2^128 is infinite, as in transformers: `PackedTensor` refuses it.
  with np.errstate(over="ignore", invalid="ignore"):
    scale = np.ldexp(np.float32(1), np.arange(256) - 127)[:, None, None]
    return (scale * pairs).astype(DTYPES["BF16"]).reshape(-1).view(np.uint32)


def unpacked(
  files: Sequence[TensorFile],
) -> Iterator[tuple["TensorFile | PackedTensor", str]]:
  """Yields each tensor with what reads it, two of bytes as the one they make.

  The two may be in different files. Raises `CheckpointError` if one is missing.
  """
  of = {name: file for file in files for name in file.entries}
  for name, file in of.items():
    if file.entries[name].dtype != np.uint8:
      yield file, name
    elif name.endswith(BLOCKS):
      whole = name.removesuffix(BLOCKS)
      if whole + SCALES not in of:
        raise CheckpointError(
          f"{file.path} has {name}, and no file beside it {whole + SCALES}: "
          "the folder is incomplete. Fetch it again"
        )
      yield PackedTensor(whole, file, of[whole + SCALES]), whole
    elif name.removesuffix(SCALES) + BLOCKS not in of:
      raise CheckpointError(
        f"{file.path} has {name} without its blocks: the folder is incomplete. "
        "Fetch it again"
      )


@dataclasses.dataclass(frozen=True)
class PackedTensor:
  """A weight [E, D, O], read as a tensor of a `TensorFile` is."""

  name: str
  blocks: TensorFile
  scales: TensorFile

  def __post_init__(self) -> None:
    shape = self.blocks.entries[self.name + BLOCKS].shape
    scales = self.scales.entries[self.name + SCALES]
    is_right = len(shape) == 4 and shape[3] == _BYTES
    if not is_right or scales.shape != shape[:3] or scales.dtype != np.uint8:
      raise CheckpointError(
        f"{self.name} in {self.path} has blocks {list(shape)} and scales "
        f"{list(scales.shape)}, which are [E, O, D / 32, 16] and [E, O, D / 32]"
        " in MXFP4: the files are damaged, or of another format"
      )

  @property
  def path(self) -> Any:
    """The file of the blocks."""
    return self.blocks.path

  @property
  def entries(self) -> Mapping[str, Entry]:
    """The header entry of the weight that the two tensors make."""
    num, outputs, groups, _ = self.blocks.entries[self.name + BLOCKS].shape
    shape = (num, groups * _GROUP, outputs)
    return {self.name: Entry(dtype=DTYPES["BF16"], shape=shape, offset=0)}

  def read(
    self, name: str, shape: tuple[int, ...], index: tuple[slice, ...], start=0
  ) -> np.ndarray:
    """Copies `index` of the weight, taken as `shape`: [E, D, ...]."""
    assert not start, "parts of a packed weight begin at its first number"
    num, inputs, *rest = shape
    packed = (num, *rest, inputs // _GROUP)
    sizes = [
      len(range(*s.indices(n))) for s, n in zip(index, shape, strict=True)
    ]
    out = np.empty(sizes, DTYPES["BF16"])
    for n, expert in enumerate(range(*index[0].indices(num))):
      at = (slice(expert, expert + 1), *index[2:], _ALL)
      blocks = self.blocks.read(name + BLOCKS, (*packed, _BYTES), (*at, _ALL))
      scales = self.scales.read(name + SCALES, packed, at)
      numbers = dequantised(blocks[0], scales[0])
      out[n] = np.moveaxis(numbers, -1, 0)[index[1]]
      require_finite(out[n], name, self.path)
    return out
