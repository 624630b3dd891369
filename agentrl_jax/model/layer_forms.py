"""Other forms of the params of layers, those to decode with.

Stacked, a leaf holds all layers; apart, every layer has a dict of its own.
Turned, kernels have their outputs first: see `projection.project_turned`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.model.lora import INPUT_AXES

# Name of a kernel with its outputs first, as `decoder.Projection` has it.
TURNED = "turned"


def unstacked(layers: dict[str, Any]) -> list[dict[str, Any]]:
  """Params of each layer, first to last, from stacked ones."""
  leaves, tree = jax.tree.flatten(layers)
  # One split per leaf, whose transpose is one join; slices would each be
  # padded to the whole stack and added up.
  parts = [_split(leaf) for leaf in leaves]
  return [jax.tree.unflatten(tree, part) for part in zip(*parts, strict=True)]


def turned(layer: dict[str, Any]) -> dict[str, Any]:
  """Params of a layer whose projections have had their `turn`."""
  return {
    name: _turned(name, part) if isinstance(part, dict) else part
    for name, part in layer.items()
  }


def is_turned(layer: Any) -> bool:
  """Whether any of a layer's kernels has its outputs first."""
  return isinstance(layer, dict) and any(
    name == TURNED or is_turned(part) for name, part in layer.items()
  )


def _turned(name: str, part: dict[str, Any]) -> dict[str, Any]:
  if "kernel" not in part:
    return turned(part)
  rest = {name: x for name, x in part.items() if name != "kernel"}
  inputs = range(INPUT_AXES[name])
  return rest | {
    TURNED: jnp.moveaxis(
      part["kernel"], inputs, [n - len(inputs) for n in inputs]
    )
  }


def _split(stacked: jax.Array) -> list[jax.Array]:
  return [
    jnp.squeeze(part, 0)
    for part in jax.lax.split(stacked, (1,) * stacked.shape[0])
  ]
