"""Levels of difficulty of generated shops: what stands in a shopper's way."""

import dataclasses
from collections.abc import Mapping

from agentrl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difficulty:
  """Three obstacles, each there or not.

  Attributes:
    siblings: each wanted product has siblings whose texts a search cannot tell
      from its own: some lack a wanted option, some a wanted attribute.
    prices: each wanted product has siblings above the price limit, alike in all
      else that is wanted.
    paraphrases: instructions say attributes in words that no listing has.
  """

  siblings: bool = False
  prices: bool = False
  paraphrases: bool = False

  @property
  def makes_families(self) -> bool:
    """Whether wanted products have siblings made against them."""
    return self.siblings or self.prices


DIFFICULTIES: Mapping[str, Difficulty] = {
  "easy": Difficulty(),
  "siblings": Difficulty(siblings=True),
  "prices": Difficulty(prices=True),
  "paraphrases": Difficulty(paraphrases=True),
  "hard": Difficulty(siblings=True, prices=True, paraphrases=True),
}


def find_difficulty(name: str) -> Difficulty:
  """The difficulty of this name."""
  if name not in DIFFICULTIES:
    raise ConfigError(
      f"webshop difficulty={name!r} is not one of {', '.join(DIFFICULTIES)}"
    )
  return DIFFICULTIES[name]
