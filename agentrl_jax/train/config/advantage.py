"""The `advantage` section of the config: its estimators, and its checks."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import FUNCTION, key
from agentrl_jax.train import custom
from agentrl_jax.train.config.checks import Setting, WithFunctions, require_read

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
  "discount": (1.0, (*TURN_ESTIMATORS, *CRITIC_ESTIMATORS)),
  "gae_lambda": (0.95, tuple(CRITIC_ESTIMATORS)),
}

KEEPS = {
  "all": "every group",
  "signal": "groups whose trajectories did not all score the same",
  "std": "those whose standard deviation exceeds a threshold",
  "top_share": "a share of the groups, those that vary most",
  "top_signal": "the fewest that hold a share of all std",
  "top_softmax": "the fewest that hold a share of softmax(std) (RAGEN-2)",
}

COMPARE = ("episodes", "roles", "lines")  # see `train.compared`

STATISTICS = {
  "tokens": "every trained token counts once (AgentRL)",
  "trajectories": "every trajectory counts once",
}


_NOT_NEGATIVE = (lambda value: value >= 0, "at least 0")
_SHARE = (lambda value: 0 < value <= 1, "the share that it keeps, in (0, 1]")
_DISCOUNT = (lambda value: 0 <= value <= 1, "in [0, 1]")
_AT_LEAST_1 = (lambda value: value >= 1, "the attempts that count as one")
_AT_LEAST_2 = (
  lambda value: value >= 2,
  "the attempts that count as one, at least 2",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageConfig(WithFunctions, section="advantage"):
  """The `advantage` section: see docs/losses.md."""

  FUNCTIONS = {"estimator": custom.ESTIMATOR, "keep": custom.KEEP}
  SETTINGS = {
    "estimator": {
      "pass_at_k": {"k": Setting(1, *_AT_LEAST_1)},
      "max_at_k": {"k": Setting(1, *_AT_LEAST_2)},
      "gigpo": {"step_weight": Setting(1.0, *_NOT_NEGATIVE)},
      "bi_level_gae": {"turn_discount": Setting(1.0, *_DISCOUNT)},
    },
    "keep": {
      "std": {"threshold": Setting(0.0, *_NOT_NEGATIVE)},
      **{
        name: {"share": Setting(0.0, *_SHARE)}
        for name in ("top_share", "top_signal", "top_softmax")
      },
    },
  }

  estimator: str = key(
    "grpo",
    "of a trajectory's advantage, or that of its turns or tokens",
    one_of=(*ESTIMATORS, FUNCTION),
  )
  estimator_settings: Mapping[str, Any] = key(
    {},
    "keyword arguments of the estimator: k of pass_at_k and max_at_k, the "
    "attempts that count as one; step_weight=1.0 of gigpo, the weight of a "
    "turn's advantage; turn_discount=1.0 of bi_level_gae; or those of your "
    "function",
  )
  compare: str = key(
    "episodes",
    "unit that is compared within a group, where an episode has several lines "
    "of tokens: episodes, roles (each by its own reward), or lines",
    one_of=COMPARE,
  )
  scale_by_std: bool = key(True, "divide by the group's standard deviation")
  discount: float = key(
    1.0,
    "per turn for turn_return, gigpo and turn_gae; else per token",
    at_most=1,
  )
  gae_lambda: float = key(0.95, "lambda of the gae family", at_most=1)
  keep: str = key(
    "all",
    "filter of groups before the loss takes its mean",
    one_of=(*KEEPS, FUNCTION),
  )
  keep_settings: Mapping[str, Any] = key(
    {},
    "keyword arguments of the filter: threshold=0.0 of std; share of "
    "top_share, top_signal and top_softmax; or those of your function",
  )
  weight: float = key(
    1.0,
    "factor of the advantage that comes from rewards; 0 leaves the KL alone",
  )
  whiten: bool = key(False, "normalise over the batch, in place of each task")
  task_center: bool = key(True, "subtract the mean advantage of a task")
  task_scale: bool = key(True, "divide by the standard deviation of a task")
  task_statistics: str = key(
    "tokens", "unit that counts once", one_of=STATISTICS
  )
  task_decay: float = key(
    0.0, "share of past statistics kept per update; 0 keeps none", below=1
  )
  incomplete_reward: float = key(
    -0.2,
    "reward of an episode that did not complete",
    at_least=-1e6,
    at_most=1e6,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    self._check_custom()
    self._check_readers()
    self._check_normalisation()
    require_read(
      "advantage.compare",
      self.compare,
      idle="episodes",
      is_read=not self.uses_critic,
      why=f"for the critic of advantage.estimator={self.estimator!r}",
    )
    if self.uses_critic and self.keep != "all":
      raise ConfigError(
        f"advantage.keep={self.keep!r} drops groups, and with advantage."
        f"estimator={self.estimator!r} the critic learns from every "
        "trajectory: set --config.advantage.keep=all"
      )

  @functools.cached_property
  def uses_critic(self) -> bool:
    """True if the estimator reads a value per token."""
    estimator = self.custom_function("estimator")
    if estimator is not None:
      return "value_BT" in estimator.reads
    return self.estimator in CRITIC_ESTIMATORS

  @property
  def varies_within_trajectory(self) -> bool:
    """True if tokens of one trajectory may differ in advantage."""
    estimator = self.custom_function("estimator")
    if estimator is not None:
      return self.uses_critic or any(x.endswith("_NU") for x in estimator.reads)
    return self.estimator not in TRAJECTORY_ESTIMATORS

  @functools.cached_property
  def reads_states(self) -> bool:
    """True if turns need a number for the state that they start from."""
    estimator = self.custom_function("estimator")
    if estimator is not None:
      return bool({"state_NU", "num_states"} & estimator.reads)
    return self.estimator == "gigpo"

  @property
  def num_attempts(self) -> int:
    """The attempts at a task that count as one."""
    is_of_k = self.estimator in ("pass_at_k", "max_at_k")
    return int(self.estimator_settings["k"]) if is_of_k else 1

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
