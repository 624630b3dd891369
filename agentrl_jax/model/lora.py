"""LoRA (arXiv:2106.09685): W + (alpha / rank) A B, with a frozen W.

Adapters are a tree of their own, stacked like the params they belong to: they
alone are trained, optimized and saved in checkpoints. `joined` puts them beside
the kernels of the frozen base, at no cost; `merged` makes plain params of both,
for rollouts and for files.

The forward pass multiplies by the merged kernel, so that the learner computes
with the same weights that the answers were sampled with. No gradient as large
as a kernel is ever computed: see `layers.projection.project_adapted`.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import Section, key
from agentrl_jax.model.config import STACKS

Params = dict[str, Any]

# Projections that can be adapted, and how many axes their inputs have.
INPUT_AXES = {"q": 1, "k": 1, "v": 1, "o": 3, "gate": 1, "up": 1, "down": 1}
# Trained as they are where there are any: the base has no critic to speak of.
WHOLE = ("critic",)
IN_ATTENTION = ("q", "k", "v", "o")
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
    tuple(INPUT_AXES), "matrices that are adapted", one_of=INPUT_AXES
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.targets:
      raise ConfigError(
        f"lora.targets=() must name some of {', '.join(INPUT_AXES)}"
      )

  def __bool__(self) -> bool:
    return self.rank > 0

  def refuse_experts(self) -> None:
    """Refuses projections that a layer with experts has not.

    Raises `ConfigError`.
    """
    if self and (others := set(self.targets) - set(IN_ATTENTION)):
      raise ConfigError(
        f"lora.targets={self.targets}: of a model with experts only attention "
        f"has adapters, and no {', '.join(sorted(others))}. Set "
        f'--config.lora.targets="{IN_ATTENTION}"'
      )

  @property
  def scale(self) -> float:
    """Factor of A B."""
    return self.alpha / self.rank


NO_ADAPTERS = LoraConfig()


def init(config: LoraConfig, base: Params, key: jax.Array) -> Params:
  """Makes fresh adapters of stacked params, which change nothing: B is 0.

  Only shapes of the base are read. A is uniform within 1 / sqrt(inputs), as
  PEFT draws it.
  """
  adapters: Params = {}
  kernels = {
    (stack, *path): kernel
    for stack in STACKS[::-1]
    for path, kernel in _targets(config.targets, base.get(stack, {}))
  }
  keys = jax.random.split(key, len(kernels))
  for (path, kernel), k in zip(kernels.items(), keys, strict=True):
    axes = 1 + INPUT_AXES[path[-1]]  # the axis of layers before the inputs
    inputs, outputs = kernel.shape[:axes], kernel.shape[axes:]
    bound = math.prod(inputs[1:]) ** -0.5
    shape_a = (*inputs, config.rank)
    shape_b = (kernel.shape[0], config.rank, *outputs)
    a = jax.random.uniform(k, shape_a, minval=-bound, maxval=bound)
    put(adapters, path, {A: a, B: jnp.zeros(shape_b)})
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
  return {
    name: _fold(name, part, scale) if isinstance(part, Mapping) else part
    for name, part in layers.items()
  }


def merged(params: Params, scale: float) -> Params:
  """Makes plain params: adapters are added to their kernels, and left out."""
  return {
    name: _without(folded(value, scale)) if name in STACKS else value
    for name, value in params.items()
  }


def is_adapted(layers: Any) -> bool:
  """Says if there are adapters beside any of the kernels."""
  return isinstance(layers, Mapping) and any(
    name == A or is_adapted(part) for name, part in layers.items()
  )


def _fold(name: str, part: Params, scale: float) -> Params:
  if A not in part:
    return folded(part, scale)
  a, b = part[A], part[B]
  stacked = a.ndim - INPUT_AXES[name] - 1
  multiply = jax.vmap(_product) if stacked else _product
  kernel = part["kernel"].astype(a.dtype) + scale * multiply(a, b)
  return dict(part) | {"kernel": jax.lax.stop_gradient(kernel)}


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
  return jnp.tensordot(a, b, axes=1)


def _without(layers: Params) -> Params:
  return {
    name: _without(part) if isinstance(part, Mapping) else part
    for name, part in layers.items()
    if name not in (A, B)
  }


def _only_adapters(layers: Params) -> Params:
  return {
    name: _only_adapters(part) if isinstance(part, Mapping) else part
    for name, part in layers.items()
    if is_adapted(part) or name in (A, B)
  }


def _targets(
  names: tuple[str, ...], layers: Params
) -> Iterator[tuple[tuple[str, ...], Any]]:
  """Yields path and kernel of every named projection, in a fixed order."""
  for name in INPUT_AXES:
    if layers and name in names:
      yield path_of(name), get(layers, path_of(name))["kernel"]


def path_of(name: str) -> tuple[str, ...]:
  """Returns the path of a projection within a layer."""
  return ("attention", name) if name in IN_ATTENTION else (name,)


def get(tree: Params, path: tuple[str, ...]) -> Any:
  """Returns the subtree at `path`."""
  for word in path:
    tree = tree[word]
  return tree


def put(tree: Params, path: tuple[str, ...], value: Params) -> None:
  """Puts `value` at `path`."""
  for word in path[:-1]:
    tree = tree.setdefault(word, {})
  tree[path[-1]] = value
