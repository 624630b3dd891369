"""Mistakes that an expert makes on purpose: their checks, and their drawing."""

import json
import random
from collections.abc import Collection, Mapping
from typing import Any

from agentrl_jax.data.records import Message
from agentrl_jax.env.interface import Expert
from agentrl_jax.errors import ConfigError

BROKEN_JSON = "broken_json"  # the closing brace of a call is missing


class ErringExpert(Expert):
  """Base of experts that draw a mistake wherever one could be made.

  Args:
    seed: all randomness of the expert.
    mistakes: the probability of each mistake, by its name.
    known: the names that the expert knows.
    where: owner of the mistakes, for messages.

  Raises `ConfigError` for a mistake that is not known.
  """

  def __init__(
    self,
    *,
    seed: int,
    mistakes: Mapping[str, float],
    known: Collection[str],
    where: str,
  ):
    require_known(mistakes, known, where=where)
    self.rng = random.Random(seed)
    self._mistakes = mistakes

  def draws(self, mistake: str) -> bool:
    """Draws whether to make the mistake now."""
    return self.rng.random() < self._mistakes.get(mistake, 0.0)

  def erring_call(self, tool: str, arguments: Mapping[str, Any]) -> Message:
    """Returns an answer of one call, whose JSON may be `BROKEN_JSON`."""
    text = json.dumps(arguments)
    if self.draws(BROKEN_JSON):
      text = text[:-1]
    return Message("assistant", tool_calls=(self.write_call(tool, text),))


def require_known(
  mistakes: Mapping[str, float], known: Collection[str], *, where: str
) -> None:
  """Refuses unknown names, and rates outside [0, 1].

  Args:
    mistakes: the probability of each mistake, by its name.
    known: the names that the expert knows.
    where: owner of the mistakes, for the message: a key of the config, or the
      expert.

  Raises `ConfigError`.
  """
  if unknown := sorted(map(str, mistakes.keys() - set(known))):
    raise ConfigError(
      f"{where}: no mistake is called {', '.join(unknown)}; the expert knows "
      f"{', '.join(known) or 'none'}. Correct the name, or leave it out"
    )
  require_rates(mistakes, where=where)


def draw_mistakes(
  mistakes: Mapping[str, float],
  known: Collection[str],
  rng: random.Random,
  *,
  where: str,
) -> list[str]:
  """Draws the mistakes of an episode, after the checks of `require_known`."""
  require_known(mistakes, known, where=where)
  return [name for name in known if rng.random() < mistakes.get(name, 0.0)]


def require_rates(mistakes: Mapping[str, float], *, where: str) -> None:
  """Raises `ConfigError` for a rate that is not a probability."""
  for name, rate in mistakes.items():
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not is_number or not 0.0 <= rate <= 1.0:
      raise ConfigError(
        f"{where}: {name}={rate!r} is no probability; set a number from 0 "
        "(never) to 1 (always)"
      )
