"""Weights of tasks that follow the share of groups that teach something.

A group whose trajectories all get the same reward has no signal: its task is
too easy for the policy, or too hard. With `rule="signal"` environment n is
drawn with the weight

  w_n = w0_n (floor + (1 - floor) s_n)

of its configured weight w0_n, and s_n the mean over its finished groups of 1 if
a group has a signal, else 0. Older groups are discounted by `memory` per group
of the environment; before the first, s_n is 1. For a task of success p and G
attempts s is 1 - p^G - (1 - p)^G, as for rewards 0 and 1.
"""

import dataclasses
from collections.abc import Mapping

from agentrl_jax.errors import ConfigError

RULES = ("fixed", "signal")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskWeightsConfig:
  """The `task_weights` section of the config."""

  rule: str
  floor: float  # least weight, as a share of the configured one
  memory: float  # share of the evidence kept per group of an environment

  def __post_init__(self) -> None:
    if self.rule not in RULES:
      raise ConfigError(
        f"task_weights.rule={self.rule!r} is not one of {', '.join(RULES)}"
      )
    if not 0 < self.floor <= 1:
      raise ConfigError(
        f"task_weights.floor={self.floor} must be above 0, or a task that is"
        " not drawn could never come back, and at most 1"
      )
    if not 0 <= self.memory < 1:
      raise ConfigError(
        f"task_weights.memory={self.memory} must be at least 0 and below 1"
      )


class TaskWeights:
  """Weights of the environments, and what they follow."""

  def __init__(
    self, configured: Mapping[str, float], config: TaskWeightsConfig
  ):
    """`configured` are the weights before anything is learned."""
    self._configured = dict(configured)
    self._config = config
    self._signal = dict.fromkeys(configured, 1.0)

  def learn(self, name: str, has_signal: bool) -> None:
    """Notes whether a finished group of environment `name` has a signal."""
    memory = self._config.memory
    old = self._signal[name]
    self._signal[name] = memory * old + (1 - memory) * has_signal

  def shares(self) -> dict[str, float]:
    """Returns the share of the draws of each environment; they sum to 1."""
    floor = self._config.floor
    weights = {
      name: weight * (floor + (1 - floor) * self._signal[name])
      for name, weight in self._configured.items()
    }
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}

  def metrics(self) -> dict[str, float]:
    """Returns share and signal of each environment, by metric."""
    return {
      **{f"tasks/share/{name}": share for name, share in self.shares().items()},
      **{f"tasks/signal/{name}": s for name, s in self._signal.items()},
    }

  def state(self) -> dict[str, float]:
    """Returns the state for `restore`."""
    return dict(self._signal)

  def restore(self, state: Mapping[str, float]) -> None:
    """Continues from `state`."""
    self._signal = {name: float(state[name]) for name in self._configured}
