"""The weights that are being served, one version per policy slot.

Publishing changes a pointer under a lock; whoever decodes reads the pointer
before each step. So a running request goes on under the new weights, and every
token can be stamped with the weights it was sampled from. This module moves no
array: cast, reshard and place the weights before publishing them.
"""

import dataclasses
import threading
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.errors import CheckpointError, ConfigError, GeneratorFault

Params = Any  # a pytree of arrays


@dataclasses.dataclass(frozen=True, eq=False)
class Published:
  """What a policy slot serves from one publication to the next."""

  params: Params
  step: int  # optimizer updates behind the weights
  publication: int  # no two publications share one, even at the same step


class ServedWeights:
  """One published version per policy slot; policy slot 0 follows the
  learner.
  """

  def __init__(self, num_policy_slots: int):
    if num_policy_slots < 1:
      raise ConfigError(
        f"num_policy_slots={num_policy_slots}; one is the least there can be"
      )
    self._lock = threading.Lock()
    self._served: list[Published | None] = [None] * num_policy_slots
    self._num_published = 0

  @property
  def num_policy_slots(self) -> int:
    """How many versions can be served side by side."""
    return len(self._served)

  def publish(
    self,
    policy_slot: int,
    params: Params,
    step: int,
    *,
    check_finite: bool = False,
  ) -> None:
    """Makes `policy_slot` serve `params` from its next decode step on.

    Raises `CheckpointError`, and changes nothing, if the params differ in
    structure, shape or dtype from what any policy slot serves, since the
    compiled step fits only one of them. `check_finite` reads every number once.
    """
    self._check_policy_slot(policy_slot)
    served = next((p for p in self._served if p is not None), None)
    if served is not None:
      _check_like(params, served.params)
    if check_finite:
      _check_finite(params)
    with self._lock:
      self._num_published += 1
      self._served[policy_slot] = Published(params, step, self._num_published)

  def get(self, policy_slot: int) -> Published:
    """What `policy_slot` serves now."""
    self._check_policy_slot(policy_slot)
    with self._lock:
      served = self._served[policy_slot]
    if served is None:
      self.refuse_unserved(policy_slot)
      return self.get(policy_slot)  # it was published in between
    return served

  def refuse_unserved(self, policy_slot: int) -> None:
    """Raises `GeneratorFault` while nothing was published to a policy slot."""
    if self._served[policy_slot] is None:
      raise GeneratorFault(
        f"policy slot {policy_slot} was asked for before anything was "
        f"published to it; "
        f"call publish({policy_slot}, params, step) first"
      )

  def steps(self) -> tuple[int | None, ...]:
    """The step behind each policy slot's weights; None where nothing is
    served.
    """
    with self._lock:
      return tuple(None if p is None else p.step for p in self._served)

  def _check_policy_slot(self, policy_slot: int) -> None:
    if not 0 <= policy_slot < len(self._served):
      raise ConfigError(
        f"there is no policy slot {policy_slot}; policy slots are 0 to "
        f"{len(self._served) - 1}"
      )


def _check_like(params: Params, served: Params) -> None:
  found = dict(jax.tree_util.tree_leaves_with_path(params))
  wanted = dict(jax.tree_util.tree_leaves_with_path(served))
  for path in wanted.keys() ^ found.keys():
    what = "is missing" if path in wanted else "is not part of what is served"
    raise CheckpointError(f"leaf {jax.tree_util.keystr(path)} {what}")
  for path, leaf in wanted.items():
    if (found[path].shape, found[path].dtype) != (leaf.shape, leaf.dtype):
      raise CheckpointError(
        f"leaf {jax.tree_util.keystr(path)} is {found[path].dtype}"
        f"{list(found[path].shape)}; the compiled step takes "
        f"{leaf.dtype}{list(leaf.shape)}"
      )


def _check_finite(params: Params) -> None:
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if not bool(jnp.all(jnp.isfinite(leaf))):
      raise CheckpointError(
        f"leaf {jax.tree_util.keystr(path)} has a number that is not finite; "
        "these weights were not published"
      )
