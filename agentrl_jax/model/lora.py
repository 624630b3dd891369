"""LoRA (arXiv:2106.09685): W + (alpha / rank) A B, with a frozen W.

Adapters are a tree of their own, stacked like the params they belong to: they
alone are trained, optimized and saved in checkpoints. `joined` puts them beside
the kernels of the frozen base, at no cost; `merged` makes plain params of both,
for rollouts and for files. Each expert has factors of its own.

The forward pass multiplies by the merged kernel, so that the learner computes
with the same weights that the answers were sampled with. No gradient as large
as a kernel is ever computed: see `multiply`.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import Section, key
from agentrl_jax.model.config import STACKS, ModelConfig

Params = dict[str, Any]
Path = tuple[str, ...]
Product = Callable[..., jax.Array]

_OF_LATENTS = ("q_down", "kv_down", "kv_up")
IN_ATTENTION = ("q", "k", "v", "o", *_OF_LATENTS)
OF_MLPS = ("gate", "up", "down")
# Projections that can be adapted.
TARGETS = (*IN_ATTENTION, *OF_MLPS)
# How many axes the inputs of projections have, also of delta layers' own.
INPUT_AXES = dict.fromkeys(TARGETS, 1) | {
  "o": 3,
  "query": 1,
  "key": 1,
  "value": 1,
  "out_gate": 1,
}
# Trained as they are where there are any: the base has no critic to speak of.
WHOLE = ("critic",)
A, B = "lora_a", "lora_b"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig(Section, section="lora"):
  """The `lora` section of the config."""

  rank: int = key(
    0, "of adapters, trained in place of the params; 0 trains the params"
  )
  alpha: float = key(
    16.0, "numerator of the adapters' scale, alpha / rank", above=0
  )
  targets: tuple[str, ...] = key(
    tuple(name for name in TARGETS if name not in _OF_LATENTS),
    "matrices that are adapted; gate, up and down are those of experts, if any",
    one_of=TARGETS,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.targets:
      raise ConfigError(
        f"lora.targets=() must name some of {', '.join(TARGETS)}"
      )

  def __bool__(self) -> bool:
    return self.rank > 0

  def kernels(self, model: ModelConfig, stack: str) -> dict[str, Path]:
    """Maps the targets to their kernels' paths in a layer of a stack.

    In a model with experts gate, up and down are theirs. Dense layers and
    shared experts stay as they are: PEFT adapts experts alone under these
    names. Layers that do not attend have adapters in their MLPs alone, and
    values that keys stand for have the keys' adapters.
    """
    c, _ = model.stacks[stack]
    paths: dict[str, Path] = {}
    for name in sorted(self.targets, key=TARGETS.index):
      if name in IN_ATTENTION:
        absent = ("k", "v") if c.shares_kv else ("v",) * c.keys_as_values
        if not c.is_delta and name not in absent:
          paths[name] = ("attention", name, "kernel")
      elif c.num_experts:
        paths[name] = ("experts", name)
      elif not model.num_experts:
        paths[name] = (name, "kernel")
    return paths

  def check(self, model: ModelConfig) -> None:
    """Refuses projections that the model's attention has not.

    Also adapters of experts that no file of PEFT's could hold. Raises
    `ConfigError`.
    """
    there = projections(model)
    of_experts = {*self.targets} - {*IN_ATTENTION}
    if self and (absent := {*self.targets} - of_experts - {*there}):
      raise ConfigError(
        f"lora.targets={self.targets}: this model's attention has no "
        f"{', '.join(sorted(absent))}; it has {', '.join(there)}. Set "
        f'--config.lora.targets="{there}"'
      )
    if self and model.num_experts and len(of_experts & {"gate", "up"}) == 1:
      raise ConfigError(
        f"lora.targets={self.targets}: transformers keeps gate and up of all "
        "experts in one tensor, so PEFT adapts both or neither: name both"
      )

  @property
  def scale(self) -> float:
    """Factor of A B."""
    return self.alpha / self.rank


NO_ADAPTERS = LoraConfig()


def projections(c: ModelConfig) -> tuple[str, ...]:
  """Names the projections that a layer's attention has."""
  if not c.latent_dim:
    return ("q", "k", "v", "o")
  has_down = ("q_down",) if c.query_rank else ()
  return ("q", *has_down, "kv_down", "kv_up", "o")


def init(
  config: LoraConfig, model: ModelConfig, base: Params, key: jax.Array
) -> Params:
  """Makes fresh adapters of stacked params, which change nothing: B is 0.

  Only shapes of the base are read. A is uniform within 1 / sqrt(inputs), as
  PEFT draws it.
  """
  adapters: Params = {}
  kernels = {
    (stack, *path): (get(base[stack], path), INPUT_AXES[name])
    for stack in STACKS[::-1]
    if stack in base
    for name, path in config.kernels(model, stack).items()
  }
  keys = jax.random.split(key, len(kernels))
  for (path, (kernel, num_axes)), k in zip(kernels.items(), keys, strict=True):
    # Those of layers and of experts come before the axes of inputs.
    first = 2 if "experts" in path else 1
    before, rest = kernel.shape[:first], kernel.shape[first:]
    inputs, outputs = rest[:num_axes], rest[num_axes:]
    bound = math.prod(inputs) ** -0.5
    shape_a = (*before, *inputs, config.rank)
    a = jax.random.uniform(k, shape_a, minval=-bound, maxval=bound)
    at_a, at_b = factors_of(path)
    put(adapters, at_a, a)
    put(adapters, at_b, jnp.zeros((*before, config.rank, *outputs)))
  return adapters


def split(params: Params) -> tuple[Params, Params]:
  """Splits params with adapters into trained and frozen ones; see `joined`.

  Trained ones are float32; frozen ones keep their dtype, which may be bfloat16.
  """
  trained, frozen = {}, {}
  for name, value in params.items():
    if name in STACKS:
      trained[name], frozen[name] = _only_adapters(value), _without(value)
    else:
      (trained if name in WHOLE else frozen)[name] = value
  return jax.tree.map(lambda x: x.astype(jnp.float32), trained), frozen


def joined(base: Params, adapters: Params) -> Params:
  """Puts adapters beside the kernels of the base; arrays are shared."""
  out = dict(base)
  for name, value in adapters.items():
    is_branch = isinstance(value, Mapping) and name not in WHOLE
    out[name] = joined(base.get(name, {}), value) if is_branch else value
  return out


def folded(layers: Params, scale: float) -> Params:
  """Adds adapters to their kernels, behind a stop_gradient.

  Kernels get the dtype of the adapters, which stay beside them. For one layer,
  or for stacked ones.
  """
  out = {
    name: folded(part, scale) if isinstance(part, Mapping) else part
    for name, part in layers.items()
  }
  for name in [name for name in layers if name.endswith(A)]:
    kernel = name.removesuffix(A).removesuffix("_") or "kernel"
    _, at_b = factors_of((kernel,))
    a, b = layers[name], get(layers, at_b)
    multiply = functools.partial(jnp.tensordot, axes=1)
    for _ in range(a.ndim + b.ndim - 2 - layers[kernel].ndim):
      multiply = jax.vmap(multiply)  # over layers, and over experts
    whole = layers[kernel].astype(a.dtype) + scale * multiply(a, b)
    out[kernel] = jax.lax.stop_gradient(whole)
  return out


def merged(params: Params, scale: float) -> Params:
  """Makes plain params: adapters are added to their kernels, and left out."""
  return {
    name: _without(folded(value, scale)) if name in STACKS else value
    for name, value in params.items()
  }


def is_adapted(layers: Any) -> bool:
  """Says if there are adapters beside any of the kernels."""
  return isinstance(layers, Mapping) and any(
    name.endswith(A) or is_adapted(part) for name, part in layers.items()
  )


def factors_of(kernel: Path) -> tuple[Path, Path]:
  """Returns the paths of A and B, which stand beside their kernel."""
  *owner, name = kernel
  prefix = "" if name == "kernel" else f"{name}_"
  return (*owner, prefix + A), (*owner, prefix + B)


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=("kernel", "a", "b"),
  meta_fields=("scale",),
)
@dataclasses.dataclass(frozen=True, eq=False)
class Adapted:
  """Matrices of experts that contain `scale` a b, in the place of the array."""

  kernel: jax.Array
  a: jax.Array
  b: jax.Array
  scale: float

  def __len__(self) -> int:
    """Number of experts."""
    return len(self.kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def multiply(
  products: tuple[Product, Product, Product],
  scale: float,
  x: jax.Array,
  kernel: jax.Array,
  a: jax.Array,
  b: jax.Array,
  *more: jax.Array,
) -> jax.Array:
  """Multiplies x by a kernel that already contains `scale` a b.

  The gradient goes to x, a and b and not to the kernel: products as thin as
  the rank replace one as wide as the kernel.

  Args:
    products: those of x and the kernel, of x and a, and of that and b.
    scale: factor of a b.
    x: inputs.
    kernel: what x is multiplied by.
    a: from inputs to ranks.
    b: from ranks to outputs.
    *more: further arguments of each product, without a gradient.
  """
  del scale, a, b
  return products[0](x, kernel, *more)


def _forward(
  products: Any, scale: float, *args: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  return multiply(products, scale, *args), args


def _backward(
  products: tuple[Product, Product, Product],
  scale: float,
  kept: tuple[jax.Array, ...],
  slope: jax.Array,
) -> tuple[jax.Array | None, ...]:
  x, kernel, a, b, *more = kept
  whole, inwards, outwards = products
  _, to_x = jax.vjp(lambda x: whole(x, kernel, *more), x)
  low, to_a = jax.vjp(lambda a: inwards(x, a, *more), a)
  _, to_low_b = jax.vjp(lambda low, b: outwards(low, b, *more), low, b)
  of_low, of_b = to_low_b(slope * scale)
  return *to_x(slope), None, *to_a(of_low), of_b, *[None] * len(more)


multiply.defvjp(_forward, _backward)


def _without(layers: Params) -> Params:
  return {
    name: _without(part) if isinstance(part, Mapping) else part
    for name, part in layers.items()
    if not name.endswith((A, B))
  }


def _only_adapters(layers: Params) -> Params:
  return {
    name: _only_adapters(part) if isinstance(part, Mapping) else part
    for name, part in layers.items()
    if is_adapted(part) or name.endswith((A, B))
  }


def get(tree: Params, path: Path) -> Any:
  """Returns the subtree at `path`."""
  return functools.reduce(operator.getitem, path, tree)


def put(tree: Params, path: Path, value: Any) -> None:
  """Puts `value` at `path`."""
  for word in path[:-1]:
    tree = tree.setdefault(word, {})
  tree[path[-1]] = value
