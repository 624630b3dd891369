"""Drawing again until what was drawn fits its split."""

from collections.abc import Callable
from typing import TypeVar

from agentrl_jax.errors import ConfigError

MAX_DRAWS = 10_000  # each text falls on the right side with probability 1/2

T = TypeVar("T")


def draw(make: Callable[[], T], is_fit: Callable[[T], bool]) -> T:
  """The first draw that fits."""
  for _ in range(MAX_DRAWS):
    drawn = make()
    if is_fit(drawn):
      return drawn
  raise ConfigError(
    f"WebShop found nothing fit for its split in {MAX_DRAWS} draws; make the "
    "catalogue larger or let fewer tasks share it (webshop catalogue_size, "
    "tasks_per_catalogue)"
  )
