"""The reference policy of the KL term, on the devices or in host memory.

It is the policy that training begins with, or a teacher of any size.
It is read once per batch, before the first gradient, so it need not be on the
devices while gradients are computed.
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import Section, key
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.config.checks import require_read
from agentrl_jax.train.token_logprobs import hidden_states
from agentrl_jax.train.train_batch import batch_shardings, self_routed

PLACES = {
  "resident": "on the devices, split as the params",
  "offloaded": "in the hosts' memory, copied to the devices for each batch",
  "dropped": "not kept; there must be no KL term",
}
_HOST = "pinned_host"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceConfig(Section, section="reference"):
  """The `reference` section of the config."""

  place: str = key("resident", "of the KL reference", one_of=PLACES)
  path: str = key(
    "",
    "a teacher: a Hugging Face folder, or the folder of a run, with the same "
    "vocabulary; '': the policy that reinforcement learning begins with",
  )
  version: int = key(-1, "of that run's RL; -1: its best or last", at_least=-1)

  def __post_init__(self) -> None:
    super().__post_init__()
    require_read(
      "reference.version",
      self.version,
      idle=-1,
      is_read=bool(self.path),
      why="without reference.path, the run whose version it is",
    )


class Reference:
  """Frozen params in the dtype of the computation, split as the policy's."""

  def __init__(self, policy: Policy, params: Params, *, place: str):
    """Copies `params` unless dtypes and shardings are right already.

    They are of `policy`, which need not be the trained one.
    """
    self.policy = policy
    # Of the divergence over the whole vocabulary: maps params and a micro-batch
    # to hidden states, and params to the output matrix.
    self.hidden = jax.jit(
      lambda params, x: hidden_states(policy, params, self_routed(x).batch),
      compiler_options=policy.compiler_options,
    )
    where = policy.mesh and batch_shardings(policy.mesh).reference_output
    self.output = jax.jit(policy.output_matrix, out_shardings=where)
    mesh = policy.mesh or sharding.make_mesh({}, jax.local_devices()[:1])
    shardings = sharding.param_shardings(policy.abstract_params(), mesh)
    self._place = place

    def in_dtype(params: Params) -> Params:
      cast: Params = sharding.in_dtype(params, policy.compute.dtype)
      return cast

    self._shardings = shardings
    self._is_offloaded = place == "offloaded"
    self._params = params
    if not _is_as(params, jax.eval_shape(in_dtype, params), shardings):
      self._params = jax.jit(in_dtype, out_shardings=shardings)(params)
    if self._is_offloaded:
      self._params = jax.device_put(self._params, _on_host(shardings, mesh))

  def fetch(self) -> Params:
    """Returns the params on the devices; copies from a host are temporary."""
    if self._is_offloaded:
      return jax.device_put(self._params, self._shardings)
    return self._params


def _is_as(params: Params, shapes: Params, shardings: Any) -> bool:
  """Returns True if params have these dtypes and shardings already."""
  same = jax.tree.map(
    lambda x, s, to: (
      isinstance(x, jax.Array)
      and x.dtype == s.dtype
      and x.sharding.is_equivalent_to(to, x.ndim)
    ),
    params,
    shapes,
    shardings,
  )
  return all(jax.tree.leaves(same))


def _on_host(shardings: Any, mesh: Mesh) -> Any:
  """Returns the same shardings in the memory of each device's host."""
  device = mesh.local_devices[0]
  kinds = [memory.kind for memory in device.addressable_memories()]
  if _HOST not in kinds:
    raise ConfigError(
      f"reference.place='offloaded' needs memory of kind {_HOST}, and "
      f"{device.platform} devices have {', '.join(kinds)}: set "
      "--config.reference.place=resident"
    )
  return jax.tree.map(
    lambda s: NamedSharding(s.mesh, s.spec, memory_kind=_HOST), shardings
  )
