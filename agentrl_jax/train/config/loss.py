"""The `loss` section of the config: names of losses, and their checks."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import FUNCTION, key
from agentrl_jax.train import custom
from agentrl_jax.train.config.checks import Setting, WithFunctions, require_read

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


# Surrogates whose clip_low is no share of a probability: 1 and more bound less,
# or nothing.
UNBOUNDED_BELOW = ("cispo", "gmpo", "dppo_tv", "dppo_kl")

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
class LossConfig(WithFunctions, section="loss"):
  """The `loss` section: see docs/losses.md."""

  FUNCTIONS = {
    "surrogate": custom.SURROGATE,
    "token_weight": custom.TOKEN_WEIGHT,
    "reduction": custom.REDUCTION,
    "kl_estimator": custom.KL_ESTIMATOR,
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

  surrogate: str = key(
    "clipped", "term of the advantage", one_of=(*SURROGATES, FUNCTION)
  )
  surrogate_settings: Mapping[str, Any] = key(
    {},
    "keyword arguments of the surrogate: tau_positive=1.0 and tau_negative=1.05"
    " of sapo's gate, or those of your function",
  )
  token_weight: str = key(
    "",
    "function of the whole batch, whose value multiplies each token's "
    "surrogate; '' is 1",
    one_of=("", FUNCTION),
  )
  token_weight_settings: Mapping[str, Any] = key(
    {}, "keyword arguments of your function"
  )
  reduction: str = key(
    "token_mean", "mean of the tokens' losses", one_of=(*REDUCTIONS, FUNCTION)
  )
  reduction_settings: Mapping[str, Any] = key(
    {},
    "keyword arguments of the reduction: length, the tokens that "
    "fixed_length_mean divides by, or those of your function",
  )
  task_share: str = key(
    "tokens", "weight of a task; equal: the same for all", one_of=TASK_SHARES
  )
  clip_low: float = key(
    0.2,
    "largest relative fall of a token's probability, below 1. For cispo 1 is no"
    " bound; for gmpo and dppo_kl the bound is in nats",
    above=0,
  )
  clip_high: float = key(
    0.2,
    "largest relative rise of a token's probability; for gmpo and dppo_kl in "
    "nats",
    above=0,
  )
  dual_clip: float = key(
    3.0, "bound on the ratio where the advantage is negative; 0: none"
  )
  proximal: str = key(
    "behavior",
    "policy that the ratio is to: behavior, which sampled; or recomputed, as in"
    " decoupled PPO. The latter is for admission.versions_per_step of 2 or "
    "more: in a batch's first update its ratio is 1, and nothing is clipped",
    one_of=PROXIMALS,
  )
  importance: str = key(
    "none",
    "correction by the ratio of the proximal to the behavior policy",
    one_of=IMPORTANCE,
  )
  importance_level: str = key(
    "token", "unit of a ratio", one_of=IMPORTANCE_LEVELS
  )
  importance_low: float = key(0.0, "least ratio that masked keeps")
  importance_high: float = key(
    2.0, "largest ratio that the correction lets through", above=0
  )
  stale_failures: float = key(
    0.0, "nats per token beyond which failures are masked as stale; 0: off"
  )
  kl_coefficient: float = key(
    1e-4,
    "weight of the KL term to the reference, which is the warm start; 0 keeps "
    "no reference",
  )
  kl_estimator: str = key(
    "k3",
    "estimator of the KL term; full: no estimate but all of the vocabulary",
    one_of=(*KL_ESTIMATORS, FUNCTION),
  )
  kl_estimator_settings: Mapping[str, Any] = key(
    {}, "keyword arguments of your function"
  )
  kl_place: str = key(
    "loss",
    "where the KL term is charged: the loss; the episode's reward; or the "
    "advantage of each token, which is on-policy distillation",
    one_of=KL_PLACES,
  )
  entropy_coefficient: float = key(
    0.0, "weight of the policy's entropy in the loss"
  )
  value_coefficient: float = key(
    0.0, "weight of the critic's loss; 0: no critic"
  )
  value_clip: float = key(0.0, "bound on a value's change in an update; 0: off")
  token_chunk: int = key(
    0,
    "tokens per row whose logits are in memory at once; 0: 128, and on a CPU "
    "whole rows of up to 256 MiB of logits",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    self._check_clips()
    self._check_reduction()
    self._check_importance()
    self._check_kl()
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
  def tiles(self) -> dict[str, int]:
    """Arguments of `losses.fused_token_logprob` that cut the logits."""
    return {"chunk_size": self.token_chunk}

  @property
  def reads_entropy(self) -> bool:
    """True if the loss is differentiated through the entropy."""
    surrogate = self.custom_function("surrogate")
    return self.entropy_coefficient > 0 or (
      surrogate is not None and "entropy_BT" in surrogate.reads
    )

  def _check_clips(self) -> None:
    if self.surrogate not in UNBOUNDED_BELOW and self.clip_low >= 1:
      raise ConfigError(
        f"loss.clip_low={self.clip_low} must be below 1: it is the "
        "share of its probability that a token may lose in one update (1 and "
        f"more are for loss.surrogate={' and '.join(UNBOUNDED_BELOW)})"
      )
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
    if low >= high:
      raise ConfigError(
        f"loss.importance_low={low} must be below loss.importance_high={high}"
      )

  def _check_kl(self) -> None:
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
    for name, idle, reader, is_read in (
      ("importance_level", "token", "importance", weighs),
      ("importance_low", 0.0, "importance='masked'", masks),
      ("importance_high", 2.0, "importance", weighs),
      ("value_clip", 0.0, "value_coefficient", self.has_critic),
    ):
      require_read(
        f"loss.{name}",
        getattr(self, name),
        idle=idle,
        is_read=is_read,
        why=f"without loss.{reader}",
      )
