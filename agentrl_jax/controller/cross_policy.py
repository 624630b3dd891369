"""Cross-policy sampling: draws the policy slots that answer.

AgentRL (arXiv:2510.04206, section 3.1).
"""

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from agentrl_jax.data.records import Group, uniform_of
from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import Section, key

DRAWS = ("turn", "trajectory", "never")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossPolicy(Section, section="cross_policy"):
  """Draws the policy slot that answers a turn.

  `draw_per` is the unit of a draw: every turn, or a whole trajectory, or never,
  which is policy slot 0 throughout. `weights` has one entry per policy slot and
  need not sum to 1. The draw is a function of (seed, turn), so a retry repeats
  it.
  """

  draw_per: str = key("turn", "unit that draws a policy slot", one_of=DRAWS)
  policy_slots: tuple[str, ...] = key(
    ("fresh", "every 25"),
    'version of each policy slot: "fresh"; "every 25", the newest such '
    'update; "every 25 lag 50", at least 50 updates old; "steps 0,100", the '
    'newest of them; "steps 300 of FOLDER", of another run\'s checkpoints',
  )
  weights: tuple[float, ...] = key(
    (0.75, 0.25), "probability of each policy slot"
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if not sum(self.weights) > 0:
      raise ConfigError(
        f"cross_policy.weights={self.weights} draws nothing: set one of them "
        "above 0"
      )

  @property
  def is_drawn(self) -> bool:
    """True if policy slots are drawn at random."""
    return self.draw_per != "never"

  def __call__(self, seed: int, turn: int) -> int:
    """Returns the policy slot that answers a turn of the episode."""
    if self.draw_per == "never":
      return 0
    drawn_turn = turn if self.draw_per == "turn" else 0
    point = uniform_of(seed, "slot", drawn_turn) * sum(self.weights)
    for policy_slot, end in enumerate(itertools.accumulate(self.weights)):
      if point < end:
        return policy_slot
    # Rounding may put the point at the end of the last interval.
    return max(z for z, weight in enumerate(self.weights) if weight > 0)


NEVER = CrossPolicy(draw_per="never", weights=(1.0,))  # policy slot 0, always


def slot_successes(groups: Sequence[Group]) -> dict[str, float]:
  """Returns the mean success of the turns of each policy slot, by task."""
  successes: dict[str, list[bool]] = collections.defaultdict(list)
  for group in groups:
    for trajectory in group.trajectories:
      for turn in trajectory.turns:
        key = f"policy_slot{turn.policy_slot}/{group.task.name}"
        successes[f"policy_slots/success/{key}"].append(trajectory.is_success)
  return {name: statistics.fmean(x) for name, x in successes.items()}
