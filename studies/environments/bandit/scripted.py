"""Scripted policies: one machine by its place, by its pay, or by chance."""

import re
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import (
  Constant,
  RandomCall,
  ScriptedPolicies,
  ScriptedPolicy,
)


class _Reader(ScriptedPolicy):
  """Base of players that read names and pays."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Pulls the machine that `choose` names."""
    found = re.findall(
      r"(?m)^(\w+) pays ([\d.]+)(?: with a chance of ([\d.]+))?\.$",
      messages[0].content,
    )
    expected = {
      name: float(pay) * float(chance or 1) for name, pay, chance in found
    }
    risky = next(name for name, _, chance in found if chance)
    return self.call("pull", machine=self.choose(expected, risky))

  def choose(self, expected: dict[str, float], risky: str) -> str:
    """Returns a machine by the expected pays and the risky one's name."""
    raise NotImplementedError


class First(_Reader):
  """Pulls the machine that is named first."""

  def choose(self, expected: dict[str, float], risky: str) -> str:
    """Ignores the pays."""
    return next(iter(expected))


class Careful(_Reader):
  """Pulls the machine that pays for sure."""

  def choose(self, expected: dict[str, float], risky: str) -> str:
    """Avoids the risk."""
    return next(name for name in expected if name != risky)


class Reckoner(_Reader):
  """Pulls the machine with the higher expected pay."""

  def choose(self, expected: dict[str, float], risky: str) -> str:
    """Compares pay times chance."""
    return max(expected, key=expected.__getitem__)


POLICIES: ScriptedPolicies = {
  "constant": Constant,
  "random": RandomCall,
  "first": First,
  "careful": Careful,
  "reckoner": Reckoner,
}
