"""Scripted policies: baselines that do not read the story."""

import math
import re
from collections.abc import Callable, Iterable, Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import GENERIC, ScriptedPolicies, ScriptedPolicy


def _number_of(compute: Callable[[Iterable[int]], int]) -> type[ScriptedPolicy]:
  class Number(ScriptedPolicy):
    def answer(
      self, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Message:
      """Answers with what `compute` makes of the story's numbers."""
      numbers = re.findall(r"\d+", messages[0].content)
      return Message("assistant", str(compute(map(int, numbers))))

  return Number


POLICIES: ScriptedPolicies = {
  **GENERIC,
  "sum": _number_of(sum),
  "product": _number_of(math.prod),
}
