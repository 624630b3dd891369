"""Which version of the policy a call's `model` names.

qwen            version slot 0, which follows the learner
qwen@slot1      version slot 1, whatever it serves
qwen@step120    the version that 120 updates made, while a slot serves it
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.remote.wire import ServedSlot
from agentrl_jax.rollout.server.errors import ApiError

_CHOICE = re.compile(r"@(slot|step)(\d{1,18})\Z", re.ASCII)


class Names(Protocol):
  """The models of a server by name."""

  def knows(self, model: str) -> bool:
    """Whether a call of this model is answered here."""
    ...

  def slot_of(self, model: str) -> int | None:
    """The version slot that a call names; None: the caller may choose.

    Raises `ApiError` for what is not served.
    """
    ...

  def listed(self) -> list[dict[str, Any]]:
    """As `/v1/models` lists them; `step` and `slot` are ours."""
    ...


class FixedNames:
  """Names of versions that stay as long as the server."""

  def __init__(
    self,
    slots: Mapping[str, int],
    served: Callable[[], tuple[ServedSlot | None, ...]],
  ):
    """`slots` has the version slot that each name stands for."""
    self._slots, self._served = dict(slots), served

  def knows(self, model: str) -> bool:
    """See `Names`."""
    return model in self._slots

  def slot_of(self, model: str) -> int | None:
    """See `Names`."""
    if model not in self._slots:
      raise unknown(model, list(self._slots))
    return self._slots[model]

  def listed(self) -> list[dict[str, Any]]:
    """See `Names`."""
    served = self._served()
    return [
      _entry(name, slot, found)
      for name, slot in self._slots.items()
      if (found := served[slot]) is not None
    ]


class ModelNames:
  """The names of what is served now."""

  def __init__(
    self, name: str, slots: Callable[[], tuple[ServedSlot | None, ...]]
  ):
    if not name or _CHOICE.search(name):
      raise ConfigError(
        f"a model served as {name!r} could not be told from its versions: "
        "choose a name without @slot and @step"
      )
    self.name, self._slots = name, slots

  def knows(self, model: str) -> bool:
    """See `Names`."""
    return _CHOICE.sub("", model) == self.name

  def slot_of(self, model: str) -> int | None:
    """The version slot that a call names; None for the bare name.

    Raises `ApiError` for what is not served.
    """
    base = _CHOICE.sub("", model)
    choice = _CHOICE.search(model)
    slots = self._slots()
    if base == self.name and choice is None:
      return None
    if base == self.name and choice is not None:
      number = int(choice[2])
      if choice[1] == "slot" and number < len(slots):
        return number
      steps = [None if slot is None else slot.step for slot in slots]
      if choice[1] == "step" and number in steps:
        return steps.index(number)
    raise unknown(model, [entry["id"] for entry in self.listed()])

  def listed(self) -> list[dict[str, Any]]:
    """As `/v1/models` lists them; `step` and `slot` are ours."""
    return [
      _entry(name, slot, served)
      for slot, served in enumerate(self._slots())
      if served is not None
      for name in self._names(slot, served)
    ]

  def _names(self, slot: int, served: ServedSlot) -> list[str]:
    names = [f"{self.name}@slot{slot}", f"{self.name}@step{served.step}"]
    return names if slot else [self.name, *names]


def _entry(name: str, slot: int, served: ServedSlot) -> dict[str, Any]:
  return {
    "id": name,
    "object": "model",
    "created": 0,
    "owned_by": "agentrl_jax",
    "slot": slot,
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
