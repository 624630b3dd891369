"""The `advantage` section of the config: its estimators, and its checks."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.train import custom
from agentrl_jax.train.compared import COMPARE
from agentrl_jax.train.config.checks import (
  WithFunctions,
  require_one_of,
  require_read,
)

TRAJECTORY_ESTIMATORS = {
  "grpo": "distance from the group's mean, by its standard deviation",
  "rloo": "distance from the mean of the other trajectories",
  "best_of_group": "the lead of the best over the second; 0 for the others",
  "pass_at_k": "contribution to the chance that one of k succeeds",
  "max_at_k": "contribution to the best reward of k trajectories",
  "reinforce_plus_plus": "the reward itself, whitened over the batch",
  "reinforce_plus_plus_baseline": "the same, less the group's mean",
}

WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")


# One number per turn, from the rewards of the turns.
TURN_ESTIMATORS = {
  "turn_return": "discounted return from the turn on, against the group's",
  "gigpo": "grpo plus how a turn compares with turns from the same state",
}


# One number per token or turn, from a critic.
CRITIC_ESTIMATORS = {
  "gae": "generalised advantage estimation over tokens",
  "turn_gae": "the same over turns",
  "bi_level_gae": "over turns, then over the tokens of each",
}

ESTIMATORS = TRAJECTORY_ESTIMATORS | TURN_ESTIMATORS | CRITIC_ESTIMATORS


# Estimators that read a key, and the value that it has for all others.
READ_BY = {
  "scale_by_std": (True, ("grpo", "best_of_group", *TURN_ESTIMATORS)),
  "ddof": (1, ("grpo", "turn_return")),
  "k": (1, ("pass_at_k", "max_at_k")),
  "discount": (1.0, (*TURN_ESTIMATORS, *CRITIC_ESTIMATORS)),
  "gae_lambda": (0.95, tuple(CRITIC_ESTIMATORS)),
  "turn_discount": (1.0, ("bi_level_gae",)),
  "step_weight": (1.0, ("gigpo",)),
}

KEEPS = {
  "all": "every group",
  "signal": "groups whose trajectories did not all score the same",
  "std": "those whose standard deviation exceeds keep_threshold",
  "top_share": "the share keep_threshold of groups that vary most",
  "top_signal": "the fewest that hold the share keep_threshold of all std",
  "top_softmax": "the fewest that hold that share of softmax(std) (RAGEN-2)",
}

CRITIC_INPUTS = {
  "trajectory": "the tokens that the policy read and sampled",
  "information": "before them, training-time information of the task",
}

STATISTICS = {
  "tokens": "every trained token counts once (AgentRL)",
  "trajectories": "every trajectory counts once",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageConfig(WithFunctions):
  """The `advantage` section; `configs` explains each key."""

  SECTION = "advantage"
  FUNCTIONS = {
    "estimator": (custom.ESTIMATOR, ESTIMATORS),
    "keep": (custom.KEEP, KEEPS),
  }

  estimator: str
  estimator_settings: Mapping[str, Any]
  critic_input: str
  compare: str
  scale_by_std: bool
  ddof: int
  k: int
  discount: float
  gae_lambda: float
  turn_discount: float
  step_weight: float
  keep: str
  keep_settings: Mapping[str, Any]
  keep_threshold: float
  whiten: bool
  task_center: bool
  task_scale: bool
  task_statistics: str
  task_decay: float
  incomplete_reward: float
  epsilon: float

  def __post_init__(self) -> None:
    self._check_functions()
    require_one_of(
      "advantage.task_statistics", self.task_statistics, STATISTICS
    )
    require_one_of("advantage.compare", self.compare, COMPARE)
    require_one_of("advantage.critic_input", self.critic_input, CRITIC_INPUTS)
    self._check_custom()
    self._check_ranges()
    self._check_readers()
    self._check_normalisation()
    require_read(
      "advantage.compare",
      self.compare,
      idle="episodes",
      is_read=not self.uses_critic,
      why=f"for the critic of advantage.estimator={self.estimator!r}",
    )
    require_read(
      "advantage.critic_input",
      self.critic_input,
      idle="trajectory",
      is_read=self.uses_critic,
      why=f"for advantage.estimator={self.estimator!r}, which has no critic",
    )
    if self.uses_critic and self.keep != "all":
      raise ConfigError(
        f"advantage.keep={self.keep!r} drops groups, and with advantage."
        f"estimator={self.estimator!r} the critic learns from every "
        "trajectory: set --config.advantage.keep=all"
      )

  @property
  def uses_critic(self) -> bool:
    """True if the estimator reads a value per token."""
    estimator = self.custom_function("estimator")
    if estimator is not None:
      return "value_BT" in estimator.reads
    return self.estimator in CRITIC_ESTIMATORS

  @property
  def informs_critic(self) -> bool:
    """True if the critic reads training-time information."""
    return self.critic_input == "information"

  @property
  def varies_within_trajectory(self) -> bool:
    """True if tokens of one trajectory may differ in advantage."""
    estimator = self.custom_function("estimator")
    if estimator is not None:
      return self.uses_critic or any(x.endswith("_NU") for x in estimator.reads)
    return self.estimator not in TRAJECTORY_ESTIMATORS

  @property
  def reads_states(self) -> bool:
    """True if turns need a number for the state that they start from."""
    estimator = self.custom_function("estimator")
    if estimator is not None:
      return bool({"state_NU", "num_states"} & estimator.reads)
    return self.estimator == "gigpo"

  @property
  def normalises_tasks(self) -> bool:
    """True if advantages are centered or scaled by task."""
    return self.task_center or self.task_scale

  def _check_custom(self) -> None:
    estimator = self.custom_function("estimator")
    if estimator is None or "value_BT" not in estimator.reads:
      return
    others = sorted(x for x in estimator.reads if not x.endswith("_BT"))
    if others:
      raise ConfigError(
        f"advantage.estimator={self.estimator!r} takes value_BT, a critic's "
        f"values of packed rows, and {', '.join(others)} of whole "
        "trajectories: take one kind"
      )

  def _check_ranges(self) -> None:
    if self.ddof not in (0, 1):
      raise ConfigError(
        f"advantage.ddof={self.ddof} must be 1 (unbiased, AgentRL) or 0"
      )
    least = 2 if self.estimator == "max_at_k" else 1
    if self.k < least:
      raise ConfigError(
        f"advantage.k={self.k} must be at least {least} for advantage."
        f"estimator={self.estimator!r}"
      )
    for name in ("discount", "gae_lambda", "turn_discount"):
      value = getattr(self, name)
      if not 0 <= value <= 1:
        raise ConfigError(f"advantage.{name}={value} must lie in [0, 1]")
    if not 0 <= self.task_decay < 1:
      raise ConfigError(
        f"advantage.task_decay={self.task_decay} must be 0 (this batch's "
        "statistics alone) or below 1: it is the weight that earlier batches "
        "keep in an update"
      )
    if not (self.step_weight >= 0 and self.epsilon >= 0):
      raise ConfigError(
        f"advantage.step_weight={self.step_weight} and advantage.epsilon="
        f"{self.epsilon} must not be negative"
      )
    self._check_threshold()

  def _check_readers(self) -> None:
    for name, (idle, readers) in READ_BY.items():
      require_read(
        f"advantage.{name}",
        getattr(self, name),
        idle=idle,
        is_read=self.estimator in readers,
        why=f"for advantage.estimator={self.estimator!r}, only for "
        f"{', '.join(readers)}",
      )

  def _check_threshold(self) -> None:
    threshold = self.keep_threshold
    is_share = self.keep in ("top_share", "top_signal", "top_softmax")
    require_read(
      "advantage.keep_threshold",
      threshold,
      idle=0,
      is_read=is_share or self.keep == "std",
      why=f"for advantage.keep={self.keep!r}",
    )
    if is_share and not 0 < threshold <= 1:
      raise ConfigError(
        f"advantage.keep_threshold={threshold} must lie in (0, 1]: it is the "
        f"share that advantage.keep={self.keep!r} keeps"
      )
    if threshold < 0:
      raise ConfigError(f"advantage.keep_threshold={threshold} is negative")

  def _check_normalisation(self) -> None:
    if self.whiten and self.normalises_tasks:
      raise ConfigError(
        "advantage.whiten=True and task normalisation both set mean and "
        "deviation, one over the batch and one by task: choose one, with "
        "--config.advantage.whiten=False or --config.advantage.task_center="
        "False --config.advantage.task_scale=False"
      )
    if self.estimator in WHITENED and not self.whiten:
      raise ConfigError(
        f"advantage.estimator={self.estimator!r} takes the batch for its "
        "baseline: set --config.advantage.whiten=True"
      )
    require_read(
      "advantage.task_decay",
      self.task_decay,
      idle=0,
      is_read=self.normalises_tasks,
      why="without task normalisation",
    )
    if self.task_statistics == "trajectories" and self.varies_within_trajectory:
      raise ConfigError(
        "advantage.task_statistics='trajectories' counts one advantage per "
        f"trajectory, and advantage.estimator={self.estimator!r} gives one "
        "per turn or token: use --config.advantage.task_statistics=tokens"
      )
