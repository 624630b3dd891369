"""Under which weights a request goes on that began before a swap.

With room for no older weights everyone goes on under the newest, from the next
step on. With room for some, an answer that has begun is finished on the weights
that it began with. They stay alive as long as a slot needs them; when another
publication would make them too many, slots on the oldest go over to the newest,
so a swap waits for nobody and memory is bounded.
"""

from collections.abc import Collection

from agentrl_jax.rollout.engine.weights import Published


class WeightVersions:
  """The newest weights of a policy slot, and up to `num_old` older ones."""

  def __init__(self, num_old: int):
    self._num_old = num_old
    self._served: list[Published] = []  # oldest first

  def set_weights(self, newest: Published, needed: Collection[int]) -> None:
    """Takes in what is served now; drops what no publication of `needed` is."""
    old = [
      served
      for served in self._served
      if served.publication in needed
      and served.publication != newest.publication
    ]
    self._served = [*old[max(len(old) - self._num_old, 0) :], newest]

  def forget(self) -> None:
    """Lets all weights go."""
    self._served = []

  @property
  def publications(self) -> list[int]:
    """Editions of weights that are at hand, oldest first."""
    return [served.publication for served in self._served]

  def of(self, publication: int) -> Published:
    """The weights of an publication; the newest for any that is not at hand."""
    for served in self._served:
      if served.publication == publication:
        return served
    return self._served[-1]
