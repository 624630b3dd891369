"""The weights that policy slots serve, and older ones that answers still need.

Publishing replaces a reference under a lock, and the engine reads the reference
before each step. A running request goes on with the new weights, and each token
is stamped with the version that it was sampled from. No array is moved here:
cast, reshard and place the weights before publishing them.
"""

import dataclasses
import threading
from collections.abc import Collection
from typing import Any

import jax

from agentrl_jax.errors import CheckpointError, ConfigError, GeneratorFault

Params = Any  # a pytree of arrays


@dataclasses.dataclass(frozen=True, eq=False)
class Published:
  """The weights of one publication."""

  params: Params
  step: int  # the version: number of optimizer updates
  publication: int  # unique, also among publications of the same version


class ServedWeights:
  """The published weights of each policy slot; slot 0 follows the learner."""

  def __init__(self, num_policy_slots: int):
    if num_policy_slots < 1:
      raise ConfigError(
        f"num_policy_slots={num_policy_slots} must be at least 1"
      )
    self._lock = threading.Lock()
    self._served: list[Published | None] = [None] * num_policy_slots
    self._num_published = 0

  @property
  def num_policy_slots(self) -> int:
    """Number of versions that can be served side by side."""
    return len(self._served)

  def publish(
    self, params: Params, version: int, *, policy_slot: int = 0
  ) -> None:
    """Makes `policy_slot` serve `params` from its next decode step on.

    Raises `CheckpointError`, and changes nothing, if the params differ in
    structure, shape or dtype from those of any policy slot, since the compiled
    programs fit only one of them.
    """
    self._check_policy_slot(policy_slot)
    served = next((p for p in self._served if p is not None), None)
    if served is not None:
      _check_like(params, served.params)
    with self._lock:
      self._num_published += 1
      self._served[policy_slot] = Published(
        params, version, self._num_published
      )

  def get(self, policy_slot: int) -> Published:
    """Returns the weights that `policy_slot` serves now."""
    self._check_policy_slot(policy_slot)
    with self._lock:
      served = self._served[policy_slot]
    if served is None:
      self.refuse_unserved(policy_slot)
      return self.get(policy_slot)  # weights were published in between
    return served

  def refuse_unserved(self, policy_slot: int) -> None:
    """Raises `GeneratorFault` if a policy slot has no weights yet."""
    if self._served[policy_slot] is None:
      raise GeneratorFault(
        f"policy slot {policy_slot} received a request before anything was "
        "published to it; call publish(params, version, policy_slot="
        f"{policy_slot}) first"
      )

  def steps(self) -> tuple[int | None, ...]:
    """The version of each policy slot; None for one without weights."""
    with self._lock:
      return tuple(None if p is None else p.step for p in self._served)

  def _check_policy_slot(self, policy_slot: int) -> None:
    if not 0 <= policy_slot < len(self._served):
      raise ConfigError(
        f"there is no policy slot {policy_slot}; policy slots are 0 to "
        f"{len(self._served) - 1}"
      )


class WeightVersions:
  """The newest weights of a policy slot, and up to `num_old` older ones.

  - With `num_old` 0, all answers go on with the newest weights from the next
    step on. Otherwise a started answer finishes on the weights it started with.
  - Old weights stay in memory only while a slot needs them. If a publication
    makes them too many, slots on the oldest go over to the newest: a swap never
    waits, and memory is bounded.
  """

  def __init__(self, num_old: int):
    self._num_old = num_old
    self._served: list[Published] = []  # oldest first

  def set_weights(self, newest: Published, needed: Collection[int]) -> None:
    """Adds the newest weights; drops those whose publication is not needed."""
    old = [
      served
      for served in self._served
      if served.publication in needed
      and served.publication != newest.publication
    ]
    self._served = [*old[max(len(old) - self._num_old, 0) :], newest]

  def clear(self) -> None:
    """Drops the references to all weights."""
    self._served = []

  @property
  def publications(self) -> list[int]:
    """The publications that are in memory, oldest first."""
    return [served.publication for served in self._served]

  def get(self, publication: int) -> Published:
    """Returns weights by their publication; the newest for a dropped one."""
    for served in self._served:
      if served.publication == publication:
        return served
    return self._served[-1]


def _check_like(params: Params, served: Params) -> None:
  new = dict(jax.tree_util.tree_leaves_with_path(params))
  expected = dict(jax.tree_util.tree_leaves_with_path(served))
  for path in expected.keys() ^ new.keys():
    problem = "is missing" if path in expected else "is not part of the policy"
    raise CheckpointError(f"leaf {jax.tree_util.keystr(path)} {problem}")
  for path, leaf in expected.items():
    if (new[path].shape, new[path].dtype) != (leaf.shape, leaf.dtype):
      raise CheckpointError(
        f"leaf {jax.tree_util.keystr(path)} is {new[path].dtype}"
        f"{list(new[path].shape)}; the compiled programs take "
        f"{leaf.dtype}{list(leaf.shape)}"
      )
