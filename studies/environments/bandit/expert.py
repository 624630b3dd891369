"""Scripted expert of the risky bandit, with or without mistakes."""

from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.mistakes import BROKEN_JSON, ErringExpert

MISTAKES = (
  "worse_machine",  # pulls the machine with the lower expected pay
  "no_call",  # writes the name as text and calls no tool
  BROKEN_JSON,
  "unknown_machine",  # pulls a machine that is not there
)


class Puller(ErringExpert):
  """Pulls the better machine."""

  def __init__(
    self, better: str, worse: str, *, seed: int, mistakes: Mapping[str, float]
  ):
    super().__init__(
      seed=seed, mistakes=mistakes, known=MISTAKES, where="Bandit's expert"
    )
    self._better, self._worse = better, worse

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the call, whatever the messages say."""
    del messages
    name = self._worse if self.draws("worse_machine") else self._better
    if self.draws("no_call"):
      return Message("assistant", name)
    if self.draws("unknown_machine"):
      name = f"{name}s"
    return self.erring_call("pull", {"machine": name})
