"""Which version of the policy a call's `model` names.

qwen            version slot 0, which follows the learner
qwen@slot1      version slot 1, whatever it serves
qwen@step120    the version that 120 updates made, while a slot serves it
"""

import re
from collections.abc import Callable
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.openai_errors import ApiError
from agentrl_jax.rollout.wire import ServedSlot

_CHOICE = re.compile(r"@(slot|step)(\d{1,18})\Z", re.ASCII)


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
    raise ApiError(
      f"no model {model!r} is served here; there are {', '.join(self._all())}",
      param="model",
      code="model_not_found",
      status=404,
    )

  def listed(self) -> list[dict[str, Any]]:
    """As `/v1/models` lists them; `step` and `slot` are ours."""
    entries = []
    for slot, served in enumerate(self._slots()):
      if served is not None:
        for name in self._names(slot, served):
          entries.append(
            {
              "id": name,
              "object": "model",
              "created": 0,
              "owned_by": "agentrl_jax",
              "slot": slot,
              "step": served.step,
            }
          )
    return entries

  def _all(self) -> list[str]:
    return [entry["id"] for entry in self.listed()] or ["none yet"]

  def _names(self, slot: int, served: ServedSlot) -> list[str]:
    names = [f"{self.name}@slot{slot}", f"{self.name}@step{served.step}"]
    return names if slot else [self.name, *names]
