"""The controller's decisions about an attempt, as plain functions.

Which version answers, and whether an attempt succeeded. Nothing here waits or
remembers: equal arguments, equal answers. What an attempt is worth in training
is the learner's business (`train.train_batch`).
"""

import dataclasses
import itertools
import math

from agentrl_jax.controller import seeds
from agentrl_jax.data.trajectory import Trajectory
from agentrl_jax.errors import ConfigError

DRAWS = ("turn", "trajectory", "never")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossPolicy:
  """Draws the policy slot that answers (AgentRL, arXiv:2510.04206, §3.1).

  `draw_per` says how often: for every turn, once per trajectory, or never,
  which is policy slot 0 throughout. `weights` has one entry per policy slot and
  need not sum to 1. The draw is a function of (seed, turn), so a retry repeats
  it.
  """

  draw_per: str = "never"
  weights: tuple[float, ...] = (1.0,)

  def __post_init__(self) -> None:
    if self.draw_per not in DRAWS:
      raise ConfigError(
        f"cross_policy.draw_per is {self.draw_per!r}; choose one of"
        f" {', '.join(DRAWS)}"
      )
    usable = all(math.isfinite(w) and w >= 0 for w in self.weights)
    if not usable or not sum(self.weights) > 0:
      raise ConfigError(
        f"cross_policy.weights is {self.weights}; give one finite weight >= 0"
        " per policy slot, at least one of them above 0"
      )

  @property
  def is_drawn(self) -> bool:
    """Whether any chance is involved."""
    return self.draw_per != "never"

  @property
  def shares(self) -> tuple[float, ...]:
    """The weights as probabilities, which sum to 1."""
    if not self.is_drawn:
      return (1.0, *[0.0] * (len(self.weights) - 1))
    total = sum(self.weights)
    return tuple(weight / total for weight in self.weights)

  def __call__(self, seed: int, turn: int) -> int:
    """The policy slot that answers turn `turn` of the attempt with this
    seed.
    """
    if self.draw_per == "never":
      return 0
    where = turn if self.draw_per == "turn" else 0
    point = seeds.uniform_of(seed, "slot", where) * sum(self.weights)
    ends = itertools.accumulate(self.weights)
    owners = [
      policy_slot for policy_slot, end in enumerate(ends) if point < end
    ]
    return owners[0] if owners else self._last_drawable

  @property
  def _last_drawable(self) -> int:
    return max(
      policy_slot for policy_slot, w in enumerate(self.weights) if w > 0
    )


NEVER = CrossPolicy()  # policy slot 0, always


def succeeded(trajectory: Trajectory) -> bool:
  """The environment's own word on success, else whether it paid in full."""
  if "success" in trajectory.metrics:
    return trajectory.metrics["success"] > 0.5
  return trajectory.reward == 1.0
