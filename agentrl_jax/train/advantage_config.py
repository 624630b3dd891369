"""The `advantage` section of the config: what can be chosen, and how."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.train import custom
from agentrl_jax.train.config_checks import (
  WithFunctions,
  require_one_of,
  require_read,
)

# One number per attempt, from its reward and its siblings'.
OF_ATTEMPTS = {
  "grpo": "distance from the group's mean, by its standard deviation",
  "rloo": "distance from the mean of the other attempts",
  "best_of_group": "only the best: its lead over the second",
  "pass_at_k": "what it does for the chance that one of k succeeds",
  "max_at_k": "what it adds to the best reward of k attempts",
  "reinforce_plus_plus": "the reward itself, whitened over the batch",
  "reinforce_plus_plus_baseline": "less the group's mean, whitened",
}
WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
# One number per turn, from the rewards of the turns.
OF_TURNS = {
  "turn_return": "discounted return from the turn on, against the group's",
  "gigpo": "grpo plus how a turn compares with turns from the same state",
}
# One number per token or turn, from a critic.
OF_CRITICS = {
  "gae": "generalised advantage estimation over tokens",
  "turn_gae": "the same, with a turn for a step",
  "bi_level_gae": "over turns, then over the tokens of each",
}
ESTIMATORS = OF_ATTEMPTS | OF_TURNS | OF_CRITICS
# Who reads a key, and the value at which it does nothing for the others.
READ_BY = {
  "scale_by_std": (True, ("grpo", "best_of_group", *OF_TURNS)),
  "ddof": (1, ("grpo", "turn_return")),
  "k": (1, ("pass_at_k", "max_at_k")),
  "discount": (1.0, (*OF_TURNS, *OF_CRITICS)),
  "gae_lambda": (0.95, tuple(OF_CRITICS)),
  "turn_discount": (1.0, ("bi_level_gae",)),
  "step_weight": (1.0, ("gigpo",)),
}
KEEPS = {
  "all": "every group",
  "signal": "groups whose attempts did not all score the same",
  "std": "those whose standard deviation exceeds keep_threshold",
  "top_share": "the share keep_threshold of groups that vary most",
  "top_signal": "the fewest that hold the share keep_threshold of all std",
}
STATISTICS = {
  "tokens": "every trained token counts once (AgentRL)",
  "trajectories": "every attempt counts once",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageConfig(WithFunctions):
  """What an attempt is worth; `configs/base.py` says what each key means."""

  SECTION = "advantage"
  FUNCTIONS = {
    "estimator": (custom.ESTIMATOR, ESTIMATORS),
    "keep": (custom.KEEP, KEEPS),
  }

  estimator: str
  estimator_settings: Mapping[str, Any]
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
    self._check_custom()
    self._check_ranges()
    self._check_readers()
    self._check_normalisation()
    if self.uses_critic and self.keep != "all":
      raise ConfigError(
        f"advantage.keep={self.keep!r} drops groups, and with advantage."
        f"estimator={self.estimator!r} every attempt teaches the critic: set "
        "--config.advantage.keep=all"
      )

  @property
  def uses_critic(self) -> bool:
    """Whether the estimator reads a value per token."""
    estimator = self.custom_function("estimator")
    if estimator is not None:
      return "value_BT" in estimator.reads
    return self.estimator in OF_CRITICS

  @property
  def varies_within_attempt(self) -> bool:
    """Whether tokens of one attempt may differ in advantage."""
    estimator = self.custom_function("estimator")
    if estimator is not None:
      return self.uses_critic or any(x.endswith("_NU") for x in estimator.reads)
    return self.estimator not in OF_ATTEMPTS

  @property
  def reads_states(self) -> bool:
    """Whether turns that saw the same must be told apart."""
    estimator = self.custom_function("estimator")
    if estimator is not None:
      return bool({"state_NU", "num_states"} & estimator.reads)
    return self.estimator == "gigpo"

  @property
  def normalises_tasks(self) -> bool:
    """Whether anything is done about the differences between tasks."""
    return self.task_center or self.task_scale

  def _check_custom(self) -> None:
    estimator = self.custom_function("estimator")
    if estimator is None or "value_BT" not in estimator.reads:
      return
    others = sorted(x for x in estimator.reads if not x.endswith("_BT"))
    if others:
      raise ConfigError(
        f"advantage.estimator={self.estimator!r} takes value_BT, a critic's "
        f"values of packed rows, and {', '.join(others)} of whole attempts: "
        "take one kind"
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
      if not 0 <= getattr(self, name) <= 1:
        raise ConfigError(
          f"advantage.{name}={getattr(self, name)} must lie in [0, 1]"
        )
    if not 0 <= self.task_decay < 1:
      raise ConfigError(
        f"advantage.task_decay={self.task_decay} must be 0 (this batch's "
        "statistics alone) or below 1: it is what the past keeps in an update"
      )
    if self.step_weight < 0 or self.epsilon < 0:
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
    require_read(
      "advantage.keep_threshold",
      threshold,
      idle=0,
      is_read=self.keep in ("std", "top_share", "top_signal"),
      why=f"for advantage.keep={self.keep!r}",
    )
    if self.keep in ("top_share", "top_signal") and not 0 < threshold <= 1:
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
    if self.task_statistics == "trajectories" and self.varies_within_attempt:
      raise ConfigError(
        "advantage.task_statistics='trajectories' counts one advantage per "
        f"attempt, and advantage.estimator={self.estimator!r} gives one per "
        "turn or token: use --config.advantage.task_statistics=tokens"
      )
