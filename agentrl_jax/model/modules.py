"""Modules taken apart, to be put together around params when they are traced.

Nobody else meets nnx: what comes in and goes out is plain params.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from agentrl_jax.model import layer_forms, lora
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.decoder import Layer, Stem, make_modules
from agentrl_jax.model.lora import LoraConfig

Params = dict[str, Any]


class Modules:
  """A decoder's stem and its layer, in each form that the layer can have."""

  def __init__(self, config: ModelConfig, adaptation: LoraConfig):
    self._config = config

    def made() -> tuple[Stem, Layer, Layer]:
      rngs = nnx.Rngs(params=0)
      stem, (layer, turned) = make_modules(config, rngs, num_layers=2)
      turned.turn()
      return stem, layer, turned

    stem, layer, turned = nnx.eval_shape(made)
    self._stem, self._layer = nnx.split(stem), nnx.split(layer)
    self._turned = nnx.split(turned)
    if adaptation:
      layer.add_adapters(adaptation)
    self._adapted = nnx.split(layer)

  def init(self, key: jax.Array) -> Params:
    """Fresh float32 params, layers stacked."""
    stem, layers = make_modules(self._config, nnx.Rngs(params=key))
    states = [nnx.to_pure_dict(nnx.state(layer)) for layer in layers]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    return nnx.to_pure_dict(nnx.state(stem)) | {"layers": stacked}

  def abstract_params(self) -> Params:
    """The shapes and dtypes of `init`, with nothing behind them."""
    stacked = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        (self._config.num_layers, *x.shape), x.dtype
      ),
      nnx.to_pure_dict(self._layer[1]),
    )
    return nnx.to_pure_dict(self._stem[1]) | {"layers": stacked}

  def stem(self, params: Params) -> Stem:
    """All but the layers, around these params."""
    of_stem = {name: x for name, x in params.items() if name != "layers"}
    return _merge(*self._stem, of_stem)

  def layer(self, params: Params) -> Layer:
    """A layer around its params, in whichever form they are."""
    if layer_forms.is_turned(params):
      return _merge(*self._turned, params)
    if lora.is_adapted(params):
      return _merge(*self._adapted, params)
    return _merge(*self._layer, params)


def _merge(graph: Any, state: Any, params: Params) -> Any:
  state = nnx.clone(state)
  nnx.replace_by_pure_dict(state, params)
  return nnx.merge(graph, state)
