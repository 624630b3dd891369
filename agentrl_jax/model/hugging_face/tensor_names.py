"""Maps each leaf of the params to its tensor in a Hugging Face checkpoint.

There a layer's weights are matrices of [outputs, inputs], one tensor a layer;
here they are stacked leaves whose axes are heads and channels. `Place` converts
in both directions, for numpy and jax alike. `At` is where in its leaf a tensor
belongs: (), (layer,), or (layer, expert).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.model.config import STACKS, ModelConfig
from agentrl_jax.model.hugging_face.families.family import FAMILIES, Family

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

Path = tuple[str, ...]
At = tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
  """One leaf, or one layer or expert of it, as a part of a tensor.

  The tensor is a `matrix`, or a vector, and the part begins at number `start`
  of it; or of each entry of the first axes, where parts have these, `common`
  many, in common and then follow one another. The part's axes are read as
  `shape`; `order` transposes those to the leaf's. `interleaved` is the axis
  of `shape` in whose `rotary` channels, after the `still` ones, the pairs that
  turn together are neighbours; in the leaf they stand half of `rotary` apart.
  """

  tensor: str  # with {layer} and {expert} where there is one for each
  matrix: tuple[int, ...]
  shape: tuple[int, ...]
  order: tuple[int, ...]
  start: int = 0
  common: int = 0
  interleaved: int | None = None
  rotary: int = 0
  still: int = 0
  layers: Sequence[int] = ()  # of the stack that the leaf belongs to
  num_experts: int = 0  # of a layer, where each has a tensor
  dtype: str | None = None  # of leaf and tensor, whatever that of others is

  def name(self, at: At) -> str:
    """Returns the tensor's name in the files."""
    numbers = (self.layers[at[0]], *at[1:]) if at else ()
    keys = ("layer", "expert")[: len(at)]
    return self.tensor.format(**dict(zip(keys, numbers, strict=True)))

  def read(
    self, read: Callable[..., Any], name: str, index: tuple[slice, ...]
  ) -> Any:
    """Reads `index` of the part by a file's `read`."""
    if not self.common:
      return read(name, self.shape, index, self.start)
    outer, inner = self.shape[: self.common], self.shape[self.common :]
    *middle, last = inner or (1,)
    *others, of_last = index[self.common :] or (slice(None),)
    rows = math.prod(self.matrix) // math.prod(outer) // last
    first = self.start // last
    each = slice(first, first + math.prod(middle))
    part = read(
      name, (*outer, rows, last), (*index[: self.common], each, of_last)
    )
    part = part.reshape(*part.shape[: self.common], *middle, part.shape[-1])
    part = part[(slice(None),) * self.common + (*others, slice(None))]
    return part if inner else part[..., 0]

  def spec_in_file(self, leaf_spec: tuple[Any, ...]) -> tuple[Any, ...]:
    """Reorders a spec of the leaf's axes to the order of `shape`."""
    padded = (*leaf_spec, *[None] * (len(self.order) - len(leaf_spec)))
    return tuple(padded[self.order.index(axis)] for axis in range(len(padded)))

  def to_leaf(self, part: Any) -> Any:
    """Converts an array of `shape` to the leaf."""
    if self.interleaved is not None:
      part = self._regroup(part, neighbours=True)
    return part.transpose(self.order)

  def from_leaf(self, leaf: Any) -> Any:
    """Inverts `to_leaf`."""
    back = [self.order.index(axis) for axis in range(len(self.order))]
    part = leaf.transpose(back)
    if self.interleaved is not None:
      part = self._regroup(part, neighbours=False)
    return part

  def _regroup(self, part: Any, *, neighbours: bool) -> Any:
    """Maps rotated channels from [a0 b0 a1 b1 ..] to [a0 a1 .. b0 b1 ..].

    Maps them back if pairs are not `neighbours` in `part`.
    """
    axis, half = self.interleaved, self.rotary // 2
    two = (half, 2) if neighbours else (2, half)
    turning = np.arange(self.rotary).reshape(two).T.reshape(-1)
    channels = np.arange(self.shape[axis])
    channels[self.still : self.still + self.rotary] = self.still + turning
    return part.take(channels, axis)


def places(
  config: ModelConfig, family: str, *, fused_experts: bool = False
) -> dict[Path, Place]:
  """Returns the place of every leaf in the family's Hugging Face model.

  With `fused_experts`, a layer's experts are one tensor each, as Qwen3.5's are
  published, and not as transformers writes them.
  """
  c, f = config, FAMILIES[family]
  found = {
    ("embedding",): _table(EMBEDDING, c.vocab_size, c.width),
    ("final_norm", "scale"): _vector("model.norm.weight", c.width),
    **_layer_inputs(c),
  }
  if not c.tied_embedding:
    found["head", "kernel"] = _matrix(HEAD, c.vocab_size, c.width)
  for stack, (c, numbers) in config.stacks.items():
    attention = _latent_attention if c.latent_dim else _attention
    mixer = _delta(c) if c.is_delta else attention(c, f.interleaved_rotary)
    layer = {**_norms(c), **mixer, **_mlps(c, f, fused_experts)}
    found |= {
      (stack, *path): dataclasses.replace(place, layers=tuple(numbers))
      for path, place in layer.items()
    }
  return found


def tensors(
  found: Mapping[Path, Place],
) -> Iterator[tuple[str, list[tuple[Path, At]]]]:
  """Yields every tensor's name, in the usual order, and its leaves."""
  outer = [path for path in found if path[0] not in STACKS]
  whole: dict[str, list[tuple[Path, At]]] = {}
  for path in outer[:1]:
    whole[found[path].name(())] = [(path, ())]
  for stack in STACKS:
    of_layer = [path for path in found if path[0] == stack]
    for layer in range(len(found[of_layer[0]].layers) if of_layer else 0):
      for path in of_layer:
        place = found[path]
        experts = [(layer, expert) for expert in range(place.num_experts)]
        for at in experts or [(layer,)]:
          whole.setdefault(place.name(at), []).append((path, at))
  for path in outer[1:]:
    whole[found[path].name(())] = [(path, ())]
  yield from whole.items()


def text_name(tensor: str) -> str:
  """Returns the name that a tensor has in a model of text alone.

  In a model of more than text the text model is called `language_model`, above
  or below `model` (Gemma 3).
  """
  below = tensor.removeprefix("model.language_model.")
  if below != tensor:
    return f"model.{below}"
  return tensor.removeprefix("language_model.")


def _vector(tensor: str, size: int) -> Place:
  return Place(tensor=tensor, matrix=(size,), shape=(size,), order=(0,))


def _table(tensor: str, *shape: int) -> Place:
  """Places a matrix whose axes are the leaf's in the same order."""
  return Place(tensor=tensor, matrix=shape, shape=shape, order=(0, 1))


def _matrix(
  tensor: str,
  outputs: int | tuple[int, ...],
  inputs: int | tuple[int, ...],
  **others: Any,
) -> Place:
  """Places a kernel, whose axes of outputs come first in the file."""
  outputs, inputs = (
    (n,) if isinstance(n, int) else n for n in (outputs, inputs)
  )
  axes = range(len(outputs) + len(inputs))
  return Place(
    **{
      "tensor": tensor,
      "matrix": (math.prod(outputs), math.prod(inputs)),
      "shape": (*outputs, *inputs),
      "order": (*axes[len(outputs) :], *axes[: len(outputs)]),
    }
    | others
  )


_SANDWICHES = {
  "gemma": {
    "after_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "after_mlp_norm": "post_feedforward_layernorm",
  },
  "glm": {
    "after_attention_norm": "post_self_attn_layernorm",
    "after_mlp_norm": "post_mlp_layernorm",
  },
  "olmo": {
    "after_attention_norm": "post_attention_layernorm",
    "after_mlp_norm": "post_feedforward_layernorm",
  },
}


def _norms(c: ModelConfig) -> dict[Path, Place]:
  names = {}
  if c.pre_norm:
    # With norms on either side the latter, too, is named after what stands
    # before it.
    names = {
      "attention_norm": "input_layernorm",
      "mlp_norm": "post_attention_layernorm",
    }
  if c.sandwich_norm:
    of = "gemma" if c.zero_centered_norm or c.value_norm else "glm"
    names |= _SANDWICHES[of if c.pre_norm else "olmo"]
  found = {
    (ours, "scale"): _vector(f"{_LAYER}.{theirs}.weight", c.width)
    for ours, theirs in names.items()
  }
  if c.layer_scale:
    found[("layer_scale",)] = _vector(f"{_LAYER}.layer_scalar", 1)
  if not c.layer_input_dim:
    return found
  tensor, sizes = f"{_LAYER}.per_layer", (c.layer_input_dim, c.width)
  return found | {
    ("input_gate", "kernel"): _matrix(f"{tensor}_input_gate.weight", *sizes),
    ("input_out", "kernel"): _matrix(
      f"{tensor}_projection.weight", *sizes[::-1]
    ),
    ("after_input_norm", "scale"): _vector(
      f"{_LAYER}.post_per_layer_input_norm.weight", c.width
    ),
  }


def _layer_inputs(c: ModelConfig) -> dict[Path, Place]:
  """Gemma 4's: what layers read of a token, all in one tensor."""
  if not c.layer_input_dim:
    return {}
  shape = (c.num_layers, c.layer_input_dim)
  return {
    ("layer_embedding",): _table(
      "model.embed_tokens_per_layer.weight", c.vocab_size, math.prod(shape)
    ),
    ("layer_inputs", "projection", "kernel"): _matrix(
      "model.per_layer_model_projection.weight", shape, c.width
    ),
    ("layer_inputs", "norm", "scale"): _vector(
      "model.per_layer_projection_norm.weight", c.layer_input_dim
    ),
  }


def _attention(c: ModelConfig, interleaved: bool) -> dict[Path, Place]:
  q_shape = (c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim)
  gate = c.head_dim if c.attention_gate else 0  # channels after the queries'
  module = f"{_LAYER}.self_attn"
  found: dict[Path, Place] = {}
  for name, shape in {
    "q": (*q_shape[:2], c.head_dim + gate),
    "k": (c.num_kv_heads, c.head_dim),
    "v": (c.num_kv_heads, c.head_dim),
  }.items():
    if name != "q" and c.shares_kv or name == "v" and c.keys_as_values:
      continue
    axes, tensor = len(shape), f"{module}.{name}_proj"
    turns = {"interleaved": axes - 1, "rotary": c.rotary_channels}
    if not interleaved or name == "v":
      turns = {}
    found[name, "kernel"] = _matrix(f"{tensor}.weight", shape, c.width, **turns)
    if c.qkv_bias:
      found[name, "bias"] = dataclasses.replace(
        _vector(f"{tensor}.bias", math.prod(shape)),
        shape=shape,
        order=tuple(range(axes)),
        **turns,
      )
    if c.qk_norm and name != "v":
      found[f"{name}_norm", "scale"] = _vector(
        f"{module}.{name}_norm.weight",
        math.prod(shape) if c.joint_qk_norm else c.head_dim,
      )
  if c.sinks:
    found["sinks",] = dataclasses.replace(
      _vector(f"{module}.sinks", c.num_heads), shape=q_shape[:2], order=(0, 1)
    )
  if c.o_bias:
    found["o", "bias"] = _vector(f"{module}.o_proj.bias", c.width)
  found["o", "kernel"] = _matrix(f"{module}.o_proj.weight", c.width, q_shape)
  return {("attention", *path): place for path, place in found.items()}


def _latent_attention(c: ModelConfig, interleaved: bool) -> dict[Path, Place]:
  """DeepSeek-V3's: the last channels turn, of each query and of kv_a_proj."""
  num_still, inner = c.head_dim - c.rotary_key_dim, c.query_rank or c.width

  def matrix(
    tensor: str,
    outputs: tuple[int, ...],
    inputs: int | tuple[int, ...],
    still: int | None = None,
  ) -> Place:
    return _matrix(
      f"{_LAYER}.self_attn.{tensor}.weight",
      outputs,
      inputs,
      interleaved=len(outputs) - 1
      if interleaved and still is not None
      else None,
      rotary=c.rotary_key_dim,
      still=still or 0,
    )

  q = "q_b_proj" if c.query_rank else "q_proj"
  kernels = {
    "q": matrix(q, (c.num_heads, 1, c.head_dim), inner, num_still),
    "kv_down": matrix(
      "kv_a_proj_with_mqa",
      (c.latent_dim + c.rotary_key_dim,),
      c.width,
      c.latent_dim,
    ),
    "kv_up": matrix(
      "kv_b_proj", (c.num_heads, num_still + c.value_dim), c.latent_dim
    ),
    "o": matrix("o_proj", (c.width,), (c.num_heads, 1, c.value_dim)),
  }
  norms = {"kv_norm": ("kv_a", c.latent_dim)}
  if c.query_rank:
    kernels["q_down"] = matrix("q_a_proj", (c.query_rank,), c.width)
    norms["q_norm"] = ("q_a", c.query_rank)
  found = {("attention", n, "kernel"): place for n, place in kernels.items()}
  return found | {
    ("attention", name, "scale"): _vector(
      f"{_LAYER}.self_attn.{theirs}_layernorm.weight", size
    )
    for name, (theirs, size) in norms.items()
  }


def _delta(c: ModelConfig) -> dict[Path, Place]:
  heads = (c.delta_key_heads, c.delta_heads // c.delta_key_heads)
  keys, values = (heads[0], c.delta_key_dim), (*heads, c.delta_value_dim)
  module = f"{_LAYER}.linear_attn"
  shapes = {"query": keys, "key": keys, "value": values, "out_gate": values}
  shapes |= {"beta": heads, "decay": heads}
  fused = ("in_proj_qkv", 3), ("in_proj_z", 1), ("in_proj_b", 1)
  fused += (("in_proj_a", 1),)
  if c.delta_by_head:
    fused = ("in_proj_qkvz", 4), ("in_proj_ba", 2)
  found: dict[Path, Place] = {}
  left = iter(shapes)
  for tensor, number in fused:
    names = list(itertools.islice(left, number))
    found |= _parts(
      f"{module}.{tensor}.weight",
      {(name, "kernel"): (*shapes[name], c.width) for name in names},
      common=int(c.delta_by_head),
    )
  found |= _parts(
    f"{module}.conv1d.weight",
    {
      (f"{name}_taps",): (*shapes[name], c.delta_taps)
      for name in ("query", "key", "value")
    },
    turned=False,
  )
  for ours, theirs in (("decay_log", "A_log"), ("decay_bias", "dt_bias")):
    found[ours,] = Place(
      tensor=f"{module}.{theirs}",
      matrix=(c.delta_heads,),
      shape=heads,
      order=(0, 1),
      dtype="float32",
    )
  found["norm", "scale"] = _vector(f"{module}.norm.weight", c.delta_value_dim)
  found["o", "kernel"] = _matrix(f"{module}.out_proj.weight", c.width, values)
  return {("delta", *path): place for path, place in found.items()}


def _parts(
  tensor: str,
  shapes: Mapping[Path, tuple[int, ...]],
  *,
  common: int = 0,
  turned: bool = True,
) -> dict[Path, Place]:
  """Places the parts of one tensor, whose last axis is the leaf's first.

  Not `turned`, it is the taps of a convolution of each channel by itself.
  """
  rows = sum(math.prod(shape[:-1]) for shape in shapes.values())
  found, start = {}, 0
  for path, shape in shapes.items():
    last = len(shape) - 1
    found[path] = Place(
      tensor=tensor,
      matrix=(rows, shape[-1]) if turned else (rows, 1, shape[-1]),
      shape=shape,
      order=(last, *range(last)) if turned else (*range(last), last),
      start=start,
      common=common,
    )
    start += math.prod(shape[common:])
  return found


def _mlps(
  c: ModelConfig, family: Family, fused_experts: bool
) -> dict[Path, Place]:
  if c.expert_bias:
    return _fused_experts(c)
  if not c.num_experts:
    return _mlp(c, c.mlp_width, "mlp", fused=family.fused_gate_up)
  if c.normed_branches:
    return _beside_experts(c) | _mlp(c, c.shared_width, "mlp")
  found = _experts(c, fused_experts)
  if not c.shared_width:
    return found
  if not c.shared_gate:
    return found | _mlp(c, c.shared_width, "mlp.shared_experts")
  found["shared_gate", "kernel"] = _matrix(
    f"{_LAYER}.mlp.shared_expert_gate.weight", 1, c.width
  )
  return found | _mlp(c, c.shared_width, "mlp.shared_expert")


def _mlp(
  c: ModelConfig, mlp_width: int, module: str, *, fused: bool = False
) -> dict[Path, Place]:
  of_both = {"matrix": (2 * mlp_width, c.width)} if fused else {}
  sizes = {
    name: _matrix(
      f"{_LAYER}.{module}.{'gate_up' if fused else name}_proj.weight",
      mlp_width,
      c.width,
      start=n * mlp_width * c.width if fused else 0,
      **of_both,
    )
    for n, name in enumerate(("gate", "up"))
  }
  sizes["down"] = _matrix(
    f"{_LAYER}.{module}.down_proj.weight", c.width, mlp_width
  )
  return {(name, "kernel"): place for name, place in sizes.items()}


def _experts(c: ModelConfig, fused: bool) -> dict[Path, Place]:
  def matrix(name: str, *shape: int) -> Place:
    tensor = f"{_LAYER}.mlp.experts.{{expert}}.{name}_proj.weight"
    return _matrix(tensor, *shape, num_experts=c.num_experts)

  router = _matrix(f"{_LAYER}.mlp.gate.weight", c.num_experts, c.width)
  routers = {("experts", "router"): router}
  if c.sigmoid_router:
    bias = _vector(f"{_LAYER}.mlp.gate.e_score_correction_bias", c.num_experts)
    exact = {"exact_router": router, "correction_bias": bias}
    routers = {
      ("experts", name): dataclasses.replace(place, dtype="float32")
      for name, place in exact.items()
    }
  if fused:
    wide, count = (c.num_experts, c.mlp_width, c.width), c.num_experts
    for n, name in enumerate(("gate", "up")):
      routers["experts", name] = Place(
        tensor=f"{_LAYER}.{FUSED_EXPERTS}",
        matrix=(count, 2 * c.mlp_width, c.width),
        shape=wide,
        order=(0, 2, 1),
        start=n * c.mlp_width * c.width,
        common=1,
      )
    routers["experts", "down"] = Place(
      tensor=f"{_LAYER}.mlp.experts.down_proj",
      matrix=(count, c.width, c.mlp_width),
      shape=(count, c.width, c.mlp_width),
      order=(0, 2, 1),
    )
    return routers
  return routers | {
    ("experts", "gate"): matrix("gate", c.mlp_width, c.width),
    ("experts", "up"): matrix("up", c.mlp_width, c.width),
    ("experts", "down"): matrix("down", c.width, c.mlp_width),
  }


def _beside_experts(c: ModelConfig) -> dict[Path, Place]:
  """Gemma 4's: experts and their router stand beside the MLP."""
  found = {
    path: dataclasses.replace(
      place,
      tensor=place.tensor.replace("mlp.gate", "router.proj").replace(
        "mlp.experts", "experts"
      ),
    )
    for path, place in _experts(c, fused=True).items()
  }
  after = "post_feedforward_layernorm"
  vectors = {
    ("experts", "router_scale"): ("router.scale", c.width),
    ("experts", "expert_scale"): ("router.per_expert_scale", c.num_experts),
    ("experts", "input_scale"): ("pre_feedforward_layernorm_2.weight", c.width),
    ("after_shared_norm", "scale"): (f"{after}_1.weight", c.width),
    ("after_experts_norm", "scale"): (f"{after}_2.weight", c.width),
  }
  return found | {
    path: _vector(f"{_LAYER}.{tensor}", size)
    for path, (tensor, size) in vectors.items()
  }


def _fused_experts(c: ModelConfig) -> dict[Path, Place]:
  """gpt-oss's: all experts in a tensor, a channel's gate before its up."""

  def part(tensor: str, *shape: int, start: int = 0, parts: int = 1) -> Place:
    shape = (c.num_experts, *shape)
    return Place(
      tensor=f"{_LAYER}.mlp.experts.{tensor}",
      matrix=(*shape[:-1], shape[-1] * parts),
      shape=shape,
      order=tuple(range(len(shape))),
      start=start,
      common=len(shape) if parts > 1 else 0,
    )

  found = {
    ("experts", "router"): _matrix(
      f"{_LAYER}.mlp.router.weight", c.num_experts, c.width
    ),
    ("experts", "router_bias"): _vector(
      f"{_LAYER}.mlp.router.bias", c.num_experts
    ),
    ("experts", "down"): part("down_proj", c.mlp_width, c.width),
    ("experts", "down_bias"): part("down_proj_bias", c.width),
  }
  for start, name in enumerate(("gate", "up")):
    at = {"start": start, "parts": 2}
    tensor = "gate_up_proj"
    found["experts", name] = part(tensor, c.width, c.mlp_width, **at)
    found["experts", f"{name}_bias"] = part(f"{tensor}_bias", c.mlp_width, **at)
  return found


_LAYER = "model.layers.{layer}"
FUSED_EXPERTS = "mlp.experts.gate_up_proj"
