"""The policy that the KL term pulls towards, and where it waits for its turn.

It is read once per batch, before the first gradient, so it need not lie on the
devices while gradients are made.
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.config import require_one_of

PLACES = {
  "resident": "on the devices, split as the params",
  "offloaded": "in the hosts' memory, brought in for each batch",
  "dropped": "nowhere; there must be no KL term",
}
_HOST = "pinned_host"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceConfig:
  """The `reference` section of the config."""

  place: str

  def __post_init__(self) -> None:
    require_one_of("reference.place", self.place, PLACES)


class Reference:
  """Frozen params in the dtype of the computation, split as the policy's."""

  def __init__(
    self, policy: Policy, params: Params, *, place: str = "resident"
  ):
    """`params` are copied unless they are already as they should be."""
    mesh = policy.mesh or sharding.make_mesh({}, jax.local_devices()[:1])
    where = sharding.param_shardings(policy.abstract_params(), mesh)

    def in_dtype(params: Params) -> Params:
      cast: Params = sharding.in_dtype(params, policy.compute.dtype)
      return cast

    self._where = where
    self._is_away = place == "offloaded"
    self._params = params
    if not _is_as(params, jax.eval_shape(in_dtype, params), where):
      self._params = jax.jit(in_dtype, out_shardings=where)(params)
    if self._is_away:
      self._params = jax.device_put(self._params, _on_host(where, mesh))

  def fetch(self) -> Params:
    """The params on the devices; those fetched from a host go when unused."""
    if self._is_away:
      return jax.device_put(self._params, self._where)
    return self._params


def _is_as(params: Params, shapes: Params, where: Any) -> bool:
  """Whether params have these dtypes and lie there already."""
  same = jax.tree.map(
    lambda x, s, to: (
      isinstance(x, jax.Array)
      and x.dtype == s.dtype
      and x.sharding.is_equivalent_to(to, x.ndim)
    ),
    params,
    shapes,
    where,
  )
  return all(jax.tree.leaves(same))


def _on_host(where: Any, mesh: Mesh) -> Any:
  """The same split, in the memory of each device's host."""
  device = mesh.local_devices[0]
  kinds = [memory.kind for memory in device.addressable_memories()]
  if _HOST not in kinds:
    raise ConfigError(
      f"reference.place='offloaded' needs memory of kind {_HOST}, and "
      f"{device.platform} devices have {', '.join(kinds)}: set "
      "--config.reference.place=resident"
    )
  return jax.tree.map(
    lambda s: NamedSharding(s.mesh, s.spec, memory_kind=_HOST), where
  )
