"""Which version of the policy a call's `model` names.

qwen               policy slot 0, which follows the learner
qwen@policy_slot1  policy slot 1, whatever it serves
qwen@step120       the version that 120 updates made, while it is served
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.remote.wire import ServedPolicySlot
from agentrl_jax.rollout.server.errors import ApiError

_CHOICE = re.compile(r"@(policy_slot|step)(\d{1,18})\Z", re.ASCII)


class Names(Protocol):
  """The models of a server by name."""

  def knows(self, model: str) -> bool:
    """Whether a call of this model is answered here."""
    ...

  def policy_slot_of(self, model: str) -> int | None:
    """The policy slot that a call names; None: the caller may choose.

    Raises `ApiError` for what is not served.
    """
    ...

  def listed(self) -> list[dict[str, Any]]:
    """As `/v1/models` lists them; `step` and `policy_slot` are ours."""
    ...


class FixedNames:
  """Names of versions that stay as long as the server."""

  def __init__(
    self,
    policy_slots: Mapping[str, int],
    served: Callable[[], tuple[ServedPolicySlot | None, ...]],
  ):
    """`policy_slots` has the policy slot that each name stands for."""
    self._policy_slots, self._served = dict(policy_slots), served

  def knows(self, model: str) -> bool:
    """See `Names`."""
    return model in self._policy_slots

  def policy_slot_of(self, model: str) -> int | None:
    """See `Names`."""
    if model not in self._policy_slots:
      raise unknown(model, list(self._policy_slots))
    return self._policy_slots[model]

  def listed(self) -> list[dict[str, Any]]:
    """See `Names`."""
    served = self._served()
    return [
      _entry(name, policy_slot, found)
      for name, policy_slot in self._policy_slots.items()
      if (found := served[policy_slot]) is not None
    ]


class ModelNames:
  """The names of what is served now."""

  def __init__(
    self,
    name: str,
    policy_slots: Callable[[], tuple[ServedPolicySlot | None, ...]],
  ):
    if not name or _CHOICE.search(name):
      raise ConfigError(
        f"a model served as {name!r} could not be told from its versions: "
        "choose a name without @policy_slot and @step"
      )
    self.name, self._policy_slots = name, policy_slots

  def knows(self, model: str) -> bool:
    """See `Names`."""
    return _CHOICE.sub("", model) == self.name

  def policy_slot_of(self, model: str) -> int | None:
    """The policy slot that a call names; None for the bare name.

    Raises `ApiError` for what is not served.
    """
    base = _CHOICE.sub("", model)
    choice = _CHOICE.search(model)
    policy_slots = self._policy_slots()
    if base == self.name and choice is None:
      return None
    if base == self.name and choice is not None:
      number = int(choice[2])
      if choice[1] == "policy_slot" and number < len(policy_slots):
        return number
      steps = [
        None if policy_slot is None else policy_slot.step
        for policy_slot in policy_slots
      ]
      if choice[1] == "step" and number in steps:
        return steps.index(number)
    raise unknown(model, [entry["id"] for entry in self.listed()])

  def listed(self) -> list[dict[str, Any]]:
    """As `/v1/models` lists them; `step` and `policy_slot` are ours."""
    return [
      _entry(name, policy_slot, served)
      for policy_slot, served in enumerate(self._policy_slots())
      if served is not None
      for name in self._names(policy_slot, served)
    ]

  def _names(self, policy_slot: int, served: ServedPolicySlot) -> list[str]:
    names = [
      f"{self.name}@policy_slot{policy_slot}",
      f"{self.name}@step{served.step}",
    ]
    return names if policy_slot else [self.name, *names]


def _entry(
  name: str, policy_slot: int, served: ServedPolicySlot
) -> dict[str, Any]:
  return {
    "id": name,
    "object": "model",
    "created": 0,
    "owned_by": "agentrl_jax",
    "policy_slot": policy_slot,
    "step": served.step,
  }


def unknown(model: str, there: list[str]) -> ApiError:
  """Refuses a model by its name; `there` are those that are served."""
  return ApiError(
    f"no model {model!r} is served here; there are "
    f"{', '.join(there) or 'none yet'}",
    param="model",
    code="model_not_found",
    status=404,
  )
