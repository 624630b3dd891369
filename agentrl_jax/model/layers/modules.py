"""A decoder's modules as graphs of flax.nnx, rebuilt around params."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from agentrl_jax.model import lora
from agentrl_jax.model.config import STACKS, ModelConfig
from agentrl_jax.model.decoder import Layer, Stem, is_turned, make_modules
from agentrl_jax.model.lora import LoraConfig, Path

Params = dict[str, Any]


class Modules:
  """A decoder's stem and layers as nnx graphs, rebuilt when traced."""

  def __init__(self, config: ModelConfig, adaptation: LoraConfig):
    self._config = config

    def make() -> tuple[Stem, dict[str, list[Layer]]]:
      stem, stacks = make_modules(config, nnx.Rngs(params=0), copies=2)
      for _, turned_layer in stacks.values():
        turned_layer.turn()
      return stem, stacks

    stem, stacks = nnx.eval_shape(make)
    self._stem = nnx.split(stem)
    self._layers = {
      stack: _Forms(*layers, adaptation, adaptation.kernels(config, stack))
      for stack, layers in stacks.items()
    }

  def init(self, key: jax.Array) -> Params:
    """Makes fresh float32 params with stacked layers."""
    stem, stacks = make_modules(self._config, nnx.Rngs(params=key))
    params = nnx.to_pure_dict(nnx.state(stem))
    for stack, layers in stacks.items():
      states = [nnx.to_pure_dict(nnx.state(layer)) for layer in layers]
      params[stack] = jax.tree.map(lambda *x: jnp.stack(x), *states)
    return params

  def abstract_params(self) -> Params:
    """Returns the shapes and dtypes of `init`; allocates nothing."""
    params = nnx.to_pure_dict(self._stem[1])
    for stack, (_, numbers) in self._config.stacks.items():
      of_each = nnx.to_pure_dict(self._layers[stack].plain[1])
      params[stack] = jax.tree.map(
        lambda x, of=numbers: jax.ShapeDtypeStruct(
          (len(of), *x.shape), x.dtype
        ),
        of_each,
      )
    return params

  def stem(self, params: Params) -> Stem:
    """Builds the stem around these params."""
    of_stem = {name: x for name, x in params.items() if name not in STACKS}
    return _merge(*self._stem, of_stem)

  def layer(self, params: Params, stack: str) -> Layer:
    """Builds a layer of a stack around its params, in whichever form."""
    forms = self._layers[stack]
    if is_turned(params):
      return _merge(*forms.turned, params)
    if lora.is_adapted(params):
      return _merge(*forms.adapted, params)
    return _merge(*forms.plain, params)


class _Forms:
  """The graphs of a layer: plain, with adapters, and with turned kernels."""

  def __init__(
    self,
    layer: Layer,
    turned_layer: Layer,
    adaptation: LoraConfig,
    kernels: Mapping[str, Path],
  ):
    self.plain = nnx.split(layer)
    self.turned = nnx.split(turned_layer)
    if adaptation:
      layer.add_adapters(adaptation, kernels.values())
    self.adapted = nnx.split(layer)


def _merge(graph: Any, state: Any, params: Params) -> Any:
  state = nnx.clone(state)
  nnx.replace_by_pure_dict(state, params)
  return nnx.merge(graph, state)
