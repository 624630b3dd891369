"""The `loss` section of the config: names of losses, and their checks."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.train import custom
from agentrl_jax.train.config.checks import (
  Setting,
  WithFunctions,
  require_one_of,
  require_read,
)

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
  "fixed_length_mean": "the same, over a number of tokens, its length",
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
  "k1": "unbiased in value; as a reward or an advantage only",
  "k2": "the gradient of KL(policy || reference)",
  "k3": "unbiased in value, low variance (AgentRL, GRPO)",
  "k3_k2": "the value of k3 with the gradient of k2",
  "unbiased": "unbiased in value and gradient, for stale tokens too",
  "full": "the divergence itself, over the whole vocabulary (GKD)",
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

LOSS_ONLY = ("k3_k2", "unbiased", "full")

KL_PLACES = {
  "loss": "differentiated",
  "reward": "subtracted from rewards, which are then compared",
  "advantage": "subtracted from the advantage of its own token: on-policy "
  "distillation",
}

TASK_SHARES = {
  "tokens": "a task weighs as its tokens",
  "equal": "every task of the batch weighs the same",
}


_POSITIVE = (lambda value: value > 0, "a positive number")
_LENGTH = (
  lambda value: value >= 1,
  "the number of tokens that fixed_length_mean divides by, such as the most "
  "that a policy may sample in an episode",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig(WithFunctions):
  """The `loss` section; `configs` explains each key."""

  SECTION = "loss"
  FUNCTIONS = {
    "surrogate": (custom.SURROGATE, SURROGATES),
    "token_weight": (custom.TOKEN_WEIGHT, ("",)),
    "reduction": (custom.REDUCTION, REDUCTIONS),
    "kl_estimator": (custom.KL_ESTIMATOR, KL_ESTIMATORS),
  }
  SETTINGS = {
    "surrogate": {
      "sapo": {  # temperatures of its gate, by the sign of the advantage
        "tau_positive": Setting(1.0, *_POSITIVE),
        "tau_negative": Setting(1.05, *_POSITIVE),
      }
    },
    "reduction": {"fixed_length_mean": {"length": Setting(0, *_LENGTH)}},
  }

  surrogate: str
  surrogate_settings: Mapping[str, Any]
  token_weight: str  # "" is 1 for every token
  token_weight_settings: Mapping[str, Any]
  reduction: str
  reduction_settings: Mapping[str, Any]
  task_share: str
  clip_low: float
  clip_high: float
  dual_clip: float  # 0 is off
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
  # Tokens per row whose logits are in memory at once; 0: see `token_logprobs`.
  token_chunk: int
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
      if not getattr(self, name) >= 0:
        raise ConfigError(
          f"loss.{name}={getattr(self, name)} is negative or no number"
        )
    if self.token_chunk < 0:
      raise ConfigError(
        f"loss.token_chunk={self.token_chunk} must be 0 (by the platform) or a "
        "number of tokens"
      )
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

  @functools.cached_property
  def needs_advantage(self) -> bool:
    """True if a sequence of advantage 0 adds exactly 0 to loss and gradient.

    It may then be left out of the computation, but not of the denominator.
    Every surrogate of `SURROGATES` is a multiple of the advantage; the other
    terms of the loss are not, a custom function need not be, and a custom
    weight of tokens may be a rank among all of them.
    """
    of_tokens = self.kl_coefficient > 0 and self.kl_place != "reward"
    others = of_tokens or self.entropy_coefficient or self.has_critic
    return not (others or self._functions)

  @functools.cached_property
  def sums_sequences(self) -> bool:
    """True if the loss is a sum over sequences, divided by their number."""
    reductions = ("sequence_sum_mean", "fixed_length_mean")
    return self.task_share == "tokens" and self.reduction in reductions

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
    if self.dual_clip and not self.dual_clip > 1 + self.clip_high:
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

  def _check_reduction(self) -> None:
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
    if not self.kl_coefficient >= 0:
      raise ConfigError(
        f"loss.kl_coefficient={self.kl_coefficient} is negative or no number"
      )
    if not self.kl_limit > 0:
      raise ConfigError(f"loss.kl_limit={self.kl_limit} must be positive")
    is_charged = self.kl_place != "loss"
    if is_charged and not self.kl_coefficient:
      raise ConfigError(
        f"loss.kl_place={self.kl_place!r} does nothing with loss."
        "kl_coefficient=0; set a coefficient, or --config.loss.kl_place=loss"
      )
    if self.kl_place == "loss" and self.kl_estimator == "k1":
      raise ConfigError(
        "loss.kl_estimator='k1' in the loss has a gradient of mean zero and "
        "penalises nothing: use k2, k3, k3_k2 or unbiased, or "
        "--config.loss.kl_place=reward or advantage"
      )
    estimator = self.custom_function("kl_estimator")
    if is_charged and estimator is not None:
      others = sorted(estimator.reads - {"log_ratio_BT", "mask_BT"})
      if others:
        raise ConfigError(
          f"loss.kl_estimator={self.kl_estimator!r} takes {', '.join(others)}, "
          f"which the {self.kl_place} does not have: it is charged to the "
          "policy that sampled. Take log_ratio_BT alone, or set "
          "--config.loss.kl_place=loss"
        )
    if is_charged and self.kl_estimator in LOSS_ONLY:
      raise ConfigError(
        f"loss.kl_estimator={self.kl_estimator!r} is about gradients, and a "
        f"KL in the {self.kl_place} has none: use k1, which is unbiased there"
      )

  def _check_readers(self) -> None:
    weighs = self.importance != "none"
    masks = self.importance == "masked"
    in_loss = self.kl_coefficient > 0 and self.kl_place == "loss"
    for name, idle, reader, is_read in (
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
