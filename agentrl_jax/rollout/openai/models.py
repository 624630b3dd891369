"""Names of models: the `model` of a call selects a version of the policy.

qwen               policy slot 0, which follows the learner
qwen@policy_slot1  policy slot 1, whichever version it serves
qwen@step120       the version after 120 updates, while it is served
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.remote.wire import ServedPolicySlot
from agentrl_jax.rollout.server.errors import ApiError

_VERSION = re.compile(r"@(policy_slot|step)(\d{1,18})\Z", re.ASCII)

Served = Callable[[], tuple[ServedPolicySlot | None, ...]]


class FixedNames:
  """Names of versions that the server has for its whole life."""

  def __init__(self, policy_slots: Mapping[str, int], served: Served):
    self._policy_slots, self._served = dict(policy_slots), served

  def knows(self, model: str) -> bool:
    """Returns whether this server answers calls of the model."""
    return model in self._policy_slots

  def policy_slot_of(self, model: str) -> int | None:
    """Returns the policy slot that a call names; None: it names none.

    Raises `ApiError` for a model that is not served.
    """
    if model not in self._policy_slots:
      raise unknown_model(model, list(self._policy_slots))
    return self._policy_slots[model]

  def listed(self) -> list[dict[str, Any]]:
    """Returns the entries of `/v1/models`, with `step` and `policy_slot`."""
    served = self._served()
    return [
      _entry(name, policy_slot, version)
      for name, policy_slot in self._policy_slots.items()
      if (version := served[policy_slot]) is not None
    ]


class ModelNames:
  """Names of the versions that are served at the time of a call."""

  def __init__(self, name: str, served: Served):
    if not name or _VERSION.search(name):
      raise ConfigError(
        f"a model served as {name!r} could not be told from its versions: "
        "choose a name without @policy_slot and @step"
      )
    self.name, self._served = name, served

  def knows(self, model: str) -> bool:
    """See `FixedNames`."""
    return _VERSION.sub("", model) == self.name

  def policy_slot_of(self, model: str) -> int | None:
    """See `FixedNames`; the plain name names no policy slot."""
    if model == self.name:
      return None
    version, served = _VERSION.search(model), self._served()
    if self.knows(model) and version is not None:
      number = int(version[2])
      if version[1] == "policy_slot" and number < len(served):
        return number
      versions = [None if s is None else s.version for s in served]
      if version[1] == "step" and number in versions:
        return versions.index(number)
    raise unknown_model(model, [entry["id"] for entry in self.listed()])

  def listed(self) -> list[dict[str, Any]]:
    """See `FixedNames`."""
    return [
      _entry(name, policy_slot, version)
      for policy_slot, version in enumerate(self._served())
      if version is not None
      for name in self._names(policy_slot, version)
    ]

  def _names(self, policy_slot: int, version: ServedPolicySlot) -> list[str]:
    names = [
      f"{self.name}@policy_slot{policy_slot}",
      f"{self.name}@step{version.version}",
    ]
    return names if policy_slot else [self.name, *names]


Names = FixedNames | ModelNames  # the models of a server by name


def unknown_model(model: str, served: list[str]) -> ApiError:
  """Returns the error of a call of a model that is not served."""
  return ApiError(
    f"no model {model!r} is served here; available are "
    f"{', '.join(served) or 'none yet'}",
    param="model",
    code="model_not_found",
    status=404,
  )


def _entry(
  name: str, policy_slot: int, version: ServedPolicySlot
) -> dict[str, Any]:
  return {
    "id": name,
    "object": "model",
    "created": 0,
    "owned_by": "agentrl_jax",
    "policy_slot": policy_slot,
    "step": version.version,
  }
