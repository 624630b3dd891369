"""The `loss` and `advantage` sections of the config, with their checks.

Everything is checked before anything is compiled. A key that would change
nothing under the other keys is refused, with the reason: a config that says
more than its run does is worse than a run that does not start.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from agentrl_jax.data.compared import COMPARE
from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.train import custom
from agentrl_jax.train.custom import CustomFunction, Role


def require_one_of(key: str, name: str, options: Iterable[str]) -> None:
  """Raises `ConfigError` with the key and its options."""
  options = list(options)
  if name not in options:
    near = suggestion(str(name), options)
    raise ConfigError(
      f"{key}={name!r} is not one of {', '.join(options)}{near}. "
      f"Set it with --config.{key}=<name>."
    )


def require_read(
  key: str, value: object, *, idle: object, is_read: bool, why: str
) -> None:
  """Raises `ConfigError` if a key is set that nothing would read.

  `idle` is the value that it may have all the same; `why` completes the
  message "means nothing".
  """
  if value != idle and not is_read:
    raise ConfigError(
      f"{key}={value} means nothing {why}; set --config.{key}={idle}"
    )


class WithFunctions:
  """A section with keys that may name functions outside the package.

  `FUNCTIONS` maps each such key to its role and to the names that it may have
  beside `module:function`. The settings of the function stand under the key
  with `_settings` at its end.
  """

  SECTION: ClassVar[str]
  FUNCTIONS: ClassVar[Mapping[str, tuple[Role, Iterable[str]]]]
  _functions: ClassVar[Mapping[str, CustomFunction]]  # set on each instance

  def custom_function(self, key: str) -> CustomFunction | None:
    """Returns the function that a key names as module:function, else None."""
    return self._functions.get(key)

  def _check_functions(self) -> None:
    """Finds the functions and makes their settings hashable."""
    functions = {}
    for name, (role, options) in self.FUNCTIONS.items():
      key, target = f"{self.SECTION}.{name}", getattr(self, name)
      settings = custom.require_settings(
        key, target, getattr(self, f"{name}_settings"), options
      )
      object.__setattr__(self, f"{name}_settings", settings)
      if custom.is_custom(target):
        functions[name] = custom.find_custom(key, target, role, settings)
    object.__setattr__(self, "_functions", functions)


SURROGATES = {
  "reinforce": "importance-weighted, unclipped",
  "clipped": "PPO; clip-higher with clip_high; dual clip (AgentRL)",
  "cispo": "clips the weight and keeps every token's gradient",
  "gspo": "PPO on the ratio of whole trajectories",
  "gspo_token": "the same, with an advantage per token",
  "dppo_tv": "clips where a token's probability moved far (total variation)",
  "dppo_kl": "the same, measured by the KL divergence",
  "sapo": "a soft gate for a clip",
  "gmpo": "the geometric mean of a trajectory's clipped ratios",
}

REDUCTIONS = {
  "token_mean": "every token weighs the same",
  "sequence_mean": "every trajectory weighs the same",
  "sequence_sum_mean": "tokens summed, trajectories averaged",
  "fixed_length_mean": "the same, over loss.reduction_length",
}

PROXIMALS = {
  "behavior": "the ratio is to the distribution that sampled the token",
  "recomputed": "to the policy before the update (decoupled PPO)",
}

IMPORTANCE = {
  "none": "sampler and proximal policy are taken to be the same",
  "truncated": "weights are at most importance_high",
  "masked": "weights outside [importance_low, importance_high] become 0",
}

IMPORTANCE_LEVELS = {
  "token": "each token's ratio",
  "sequence": "the product over the trajectory",
  "sequence_mean": "the geometric mean over the trajectory",
}

KL_ESTIMATORS = {
  "k1": "unbiased in value; as a reward only",
  "k2": "the gradient of KL(policy || reference)",
  "k3": "unbiased in value, low variance (AgentRL, GRPO)",
  "k3_k2": "the value of k3 with the gradient of k2",
  "unbiased": "unbiased in value and gradient, for stale tokens too",
}


# Surrogates whose lower bound may be absent, with the meaning of clip_low.
UNBOUNDED_BELOW = {
  "cispo": "1 minus the smallest weight of a token; from 1 on there is no "
  "lower bound, as in the paper (arXiv:2506.13585)",
  "gmpo": "the most that a bad token's log-ratio may fall, in nats "
  "(arXiv:2507.20673 has 0.4)",
  "dppo_tv": "the most that a bad token's probability may fall",
  "dppo_kl": "the most that the policy may diverge by a bad token that falls, "
  "in nats",
}

GRADIENTS_ONLY = ("k3_k2", "unbiased")

KL_PLACES = {"loss": "differentiated", "reward": "subtracted from rewards"}

TASK_SHARES = {
  "tokens": "a task weighs as its tokens",
  "equal": "every task of the batch weighs the same",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig(WithFunctions):
  """The `loss` section; `configs/base.py` explains each key."""

  SECTION = "loss"
  FUNCTIONS = {
    "surrogate": (custom.SURROGATE, SURROGATES),
    "token_weight": (custom.TOKEN_WEIGHT, ("",)),
    "reduction": (custom.REDUCTION, REDUCTIONS),
    "kl_estimator": (custom.KL_ESTIMATOR, KL_ESTIMATORS),
  }

  surrogate: str
  surrogate_settings: Mapping[str, Any]
  token_weight: str  # "" is 1 for every token
  token_weight_settings: Mapping[str, Any]
  reduction: str
  reduction_settings: Mapping[str, Any]
  reduction_length: int  # tokens; 0 where no reduction takes it
  task_share: str
  clip_low: float
  clip_high: float
  dual_clip: float  # 0 is off
  sapo_tau_positive: float
  sapo_tau_negative: float
  proximal: str
  importance: str
  importance_level: str
  importance_low: float
  importance_high: float
  stale_failures: float  # nats per token; 0 is off
  kl_coefficient: float  # 0 keeps no reference policy
  kl_estimator: str
  kl_estimator_settings: Mapping[str, Any]
  kl_place: str
  kl_limit: float  # on one token's k3
  entropy_coefficient: float
  value_coefficient: float  # 0 trains no critic
  value_clip: float  # 0 is off
  token_chunk: int  # tokens per row whose logits are in memory at once
  vocab_chunk: int  # vocabulary entries of them; 0 takes all

  def __post_init__(self) -> None:
    self._check_names()
    self._check_clips()
    self._check_reduction()
    self._check_importance()
    self._check_kl()
    for name in (
      "stale_failures",
      "entropy_coefficient",
      "value_coefficient",
      "value_clip",
    ):
      if getattr(self, name) < 0:
        raise ConfigError(f"loss.{name}={getattr(self, name)} is negative")
    if self.token_chunk < 1:
      raise ConfigError(f"loss.token_chunk={self.token_chunk} is below 1")
    if self.vocab_chunk < 0:
      raise ConfigError(
        f"loss.vocab_chunk={self.vocab_chunk} must be 0 (all vocabulary "
        "entries at once) or a number of entries"
      )
    self._check_readers()

  @property
  def has_critic(self) -> bool:
    """True if a value head is trained beside the policy."""
    return self.value_coefficient > 0

  @property
  def needs_advantage(self) -> bool:
    """True if a sequence of advantage 0 adds exactly 0 to loss and gradient.

    It may then be left out of the computation, but not of the denominator.
    Every surrogate of `SURROGATES` is a multiple of the advantage; the other
    terms of the loss are not, a custom function need not be, and a custom
    weight of tokens may be a rank among all of them.
    """
    in_loss = self.kl_coefficient > 0 and self.kl_place == "loss"
    others = in_loss or self.entropy_coefficient or self.has_critic
    return not (others or self._functions)

  @property
  def tiles(self) -> dict[str, int | None]:
    """Arguments of `losses.fused_token_logprob` that cut the logits."""
    return {
      "chunk_size": self.token_chunk,
      "vocab_chunk_size": self.vocab_chunk or None,
    }

  @property
  def reads_entropy(self) -> bool:
    """True if the loss is differentiated through the entropy."""
    surrogate = self.custom_function("surrogate")
    return self.entropy_coefficient > 0 or (
      surrogate is not None and "entropy_BT" in surrogate.reads
    )

  def _check_names(self) -> None:
    for name, options in (
      ("task_share", TASK_SHARES),
      ("proximal", PROXIMALS),
      ("importance", IMPORTANCE),
      ("importance_level", IMPORTANCE_LEVELS),
      ("kl_place", KL_PLACES),
    ):
      require_one_of(f"loss.{name}", getattr(self, name), options)
    self._check_functions()

  def _check_clips(self) -> None:
    if self.surrogate in UNBOUNDED_BELOW:
      if not self.clip_low > 0:
        raise ConfigError(
          f"loss.clip_low={self.clip_low} must be positive: it is "
          f"{UNBOUNDED_BELOW[self.surrogate]}"
        )
    elif not 0 < self.clip_low < 1:
      raise ConfigError(
        f"loss.clip_low={self.clip_low} must lie between 0 and 1: it is the "
        "share of its probability that a token may lose in one update (1 and "
        f"more are for loss.surrogate={' and '.join(UNBOUNDED_BELOW)})"
      )
    if not self.clip_high > 0:
      raise ConfigError(f"loss.clip_high={self.clip_high} must be positive")
    if self.dual_clip and self.dual_clip <= 1 + self.clip_high:
      raise ConfigError(
        f"loss.dual_clip={self.dual_clip} must be 0 (off) or above 1 + "
        f"loss.clip_high = {1 + self.clip_high}: it bounds ratios that the "
        "clip lets through"
      )
    require_read(
      "loss.dual_clip",
      self.dual_clip,
      idle=0,
      is_read=self.surrogate == "clipped",
      why=f"for loss.surrogate={self.surrogate!r}",
    )
    for name in ("sapo_tau_positive", "sapo_tau_negative"):
      if not getattr(self, name) > 0:
        raise ConfigError(f"loss.{name}={getattr(self, name)} must be positive")

  def _check_reduction(self) -> None:
    takes_length = self.reduction == "fixed_length_mean"
    if takes_length and self.reduction_length < 1:
      raise ConfigError(
        f"loss.reduction_length={self.reduction_length} must be the number of "
        "tokens that fixed_length_mean divides by, such as the most that a "
        "policy may sample in an episode"
      )
    require_read(
      "loss.reduction_length",
      self.reduction_length,
      idle=0,
      is_read=takes_length,
      why=f"for loss.reduction={self.reduction!r}",
    )
    if self.task_share != "tokens" and self.reduction != "token_mean":
      raise ConfigError(
        f"loss.task_share={self.task_share!r} weighs tokens, and loss."
        f"reduction={self.reduction!r} weighs trajectories: use "
        "--config.loss.reduction=token_mean"
      )

  def _check_importance(self) -> None:
    if self.importance == "none":
      return
    if self.proximal == "behavior":
      raise ConfigError(
        f"loss.importance={self.importance!r} would correct twice: with "
        "loss.proximal='behavior' the ratio itself is to the distribution "
        "that sampled the token. Set --config.loss.proximal=recomputed, or "
        "--config.loss.importance=none"
      )
    low, high = self.importance_low, self.importance_high
    if not high > 0 or not 0 <= low < high:
      raise ConfigError(
        f"loss.importance_low={low} and loss.importance_high={high} must "
        "satisfy 0 <= low < high"
      )

  def _check_kl(self) -> None:
    if self.kl_coefficient < 0:
      raise ConfigError(
        f"loss.kl_coefficient={self.kl_coefficient} is negative"
      )
    if not self.kl_limit > 0:
      raise ConfigError(f"loss.kl_limit={self.kl_limit} must be positive")
    if self.kl_place == "reward" and not self.kl_coefficient:
      raise ConfigError(
        "loss.kl_place='reward' does nothing with loss.kl_coefficient=0; set a "
        "coefficient, or --config.loss.kl_place=loss"
      )
    if self.kl_place == "loss" and self.kl_estimator == "k1":
      raise ConfigError(
        "loss.kl_estimator='k1' in the loss has a gradient of mean zero and "
        "penalises nothing: use k2, k3, k3_k2 or unbiased, or "
        "--config.loss.kl_place=reward"
      )
    estimator = self.custom_function("kl_estimator")
    if self.kl_place == "reward" and estimator is not None:
      others = sorted(estimator.reads - {"log_ratio_BT", "mask_BT"})
      if others:
        raise ConfigError(
          f"loss.kl_estimator={self.kl_estimator!r} takes {', '.join(others)}, "
          "which a reward does not have: it is charged to the policy that "
          "sampled. Take log_ratio_BT alone, or set --config.loss.kl_place=loss"
        )
    if self.kl_place == "reward" and self.kl_estimator in GRADIENTS_ONLY:
      raise ConfigError(
        f"loss.kl_estimator={self.kl_estimator!r} is about gradients, and a "
        "reward has none: use k1, which is unbiased there"
      )

  def _check_readers(self) -> None:
    of_sapo, weighs = self.surrogate == "sapo", self.importance != "none"
    masks = self.importance == "masked"
    in_loss = self.kl_coefficient > 0 and self.kl_place == "loss"
    for name, idle, reader, is_read in (
      ("sapo_tau_positive", 1.0, "surrogate='sapo'", of_sapo),
      ("sapo_tau_negative", 1.05, "surrogate='sapo'", of_sapo),
      ("importance_level", "token", "importance", weighs),
      ("importance_low", 0.0, "importance='masked'", masks),
      ("importance_high", 2.0, "importance", weighs),
      ("kl_limit", 10.0, "kl_coefficient, in the loss", in_loss),
      ("value_clip", 0.0, "value_coefficient", self.has_critic),
    ):
      require_read(
        f"loss.{name}",
        getattr(self, name),
        idle=idle,
        is_read=is_read,
        why=f"without loss.{reader}",
      )


# One number per trajectory, from its reward and those of its group.
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

STATISTICS = {
  "tokens": "every trained token counts once (AgentRL)",
  "trajectories": "every trajectory counts once",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageConfig(WithFunctions):
  """The `advantage` section; `configs/base.py` explains each key."""

  SECTION = "advantage"
  FUNCTIONS = {
    "estimator": (custom.ESTIMATOR, ESTIMATORS),
    "keep": (custom.KEEP, KEEPS),
  }

  estimator: str
  estimator_settings: Mapping[str, Any]
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
