"""What is minimised: from names in the config to functions in `losses`."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.batch import Batch
from agentrl_jax.errors import ConfigError
from agentrl_jax.losses import Mean
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.token_logprobs import token_logprobs

Metrics = dict[str, Mean]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lesson:
  """A packed batch and what its tokens are worth."""

  batch: Batch
  advantage: jax.Array | np.ndarray  # float32 [..., B, T], 0 off the mask
  reference_logprob: (
    jax.Array | np.ndarray
  )  # float32 [..., B, T]; zeros without a reference


# Maps (params, micro-batch) to the mean to minimise and what to report.
Objective = Callable[[Params, Lesson], tuple[Mean, Metrics]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
  """The `loss` section of the config, checked before anything is compiled."""

  surrogate: str
  reduction: str
  clip_low: float
  clip_high: float
  dual_clip: float  # 0 is off
  kl_coefficient: float  # 0 keeps no reference policy
  entropy_coefficient: float
  token_chunk: int  # tokens per row whose logits are held at once

  def __post_init__(self) -> None:
    require_one_of("loss.surrogate", self.surrogate, SURROGATES)
    require_one_of("loss.reduction", self.reduction, REDUCTIONS)
    if not 0 < self.clip_low < 1:
      raise ConfigError(
        f"loss.clip_low={self.clip_low} must lie between 0 and 1: it is the "
        "share of its probability that a token may lose in one update"
      )
    if not self.clip_high > 0:
      raise ConfigError(f"loss.clip_high={self.clip_high} must be positive")
    if self.dual_clip and self.dual_clip <= 1 + self.clip_high:
      raise ConfigError(
        f"loss.dual_clip={self.dual_clip} must be 0 (off) or above 1 + "
        f"loss.clip_high = {1 + self.clip_high}: it bounds ratios that the "
        "clip lets through"
      )
    if self.dual_clip and self.surrogate != "clipped":
      raise ConfigError(
        f"loss.dual_clip={self.dual_clip} means nothing for loss.surrogate="
        f"{self.surrogate!r}; set --config.loss.dual_clip=0"
      )
    for name in ("kl_coefficient", "entropy_coefficient"):
      if getattr(self, name) < 0:
        raise ConfigError(f"loss.{name}={getattr(self, name)} is negative")
    if self.token_chunk < 1:
      raise ConfigError(f"loss.token_chunk={self.token_chunk} is below 1")


# Each entry binds what its loss needs; what is left maps
# (log_ratio_BT, advantage_BT) to loss_BT.
SURROGATES: Mapping[str, Callable[[LossConfig], Callable]] = {
  "reinforce": lambda c: losses.reinforce,
  "clipped": lambda c: partial(
    losses.clipped_surrogate,
    clip_low=c.clip_low,
    clip_high=c.clip_high,
    dual_clip=c.dual_clip or None,
  ),
}

# Each maps (x_BT, batch) to a Mean over the trained tokens.
REDUCTIONS: Mapping[str, Callable[[jax.Array, Batch], Mean]] = {
  "token_mean": lambda x, batch: losses.token_mean(x, batch.mask),
  # No row holds more segments than tokens; two tokens make the least one.
  "sequence_mean": lambda x, batch: losses.segment_mean(
    x, batch.mask, batch.segment, batch.segment.shape[1] // 2 + 1
  ),
}


def policy_objective(
  policy: Policy, config: LossConfig, *, temperature: float
) -> Objective:
  """The reinforcement objective of `config`.

  The ratio is that of the policy to the distribution that really drew the
  token, whichever version and temperature: both are taken at `temperature`.
  """
  surrogate = SURROGATES[config.surrogate](config)
  reduce = REDUCTIONS[config.reduction]

  def objective(params: Params, lesson: Lesson) -> tuple[Mean, Metrics]:
    batch = lesson.batch
    logprob_BT, entropy_BT = token_logprobs(
      policy,
      params,
      batch,
      temperature=temperature,
      chunk_size=config.token_chunk,
      entropy_gradient=config.entropy_coefficient > 0,
    )
    log_ratio_BT = losses.log_ratio(
      logprob_BT, batch.behavior_logprob, batch.mask
    )
    loss_BT = surrogate(log_ratio_BT, lesson.advantage)
    metrics = _report(log_ratio_BT, entropy_BT, config, batch)
    if config.kl_coefficient:
      kl_BT = losses.k3(
        losses.log_ratio(logprob_BT, lesson.reference_logprob, batch.mask),
        limit=10.0,
      )
      loss_BT = loss_BT + config.kl_coefficient * kl_BT
      metrics["policy/kl_to_reference"] = losses.token_mean(kl_BT, batch.mask)
    if config.entropy_coefficient:
      loss_BT = loss_BT - config.entropy_coefficient * entropy_BT
    return reduce(loss_BT, batch), metrics

  return objective


def supervised_objective(policy: Policy, config: LossConfig) -> Objective:
  """Negative log-likelihood of the demonstrated answers, by token."""

  def objective(params: Params, lesson: Lesson) -> tuple[Mean, Metrics]:
    batch = lesson.batch
    logprob_BT, entropy_BT = token_logprobs(
      policy, params, batch, temperature=1.0, chunk_size=config.token_chunk
    )
    loss_BT = losses.negative_log_likelihood(logprob_BT)
    metrics = {"policy/entropy": losses.token_mean(entropy_BT, batch.mask)}
    return losses.token_mean(loss_BT, batch.mask), metrics

  return objective


def require_one_of(key: str, name: str, options: Mapping[str, object]) -> None:
  """Raises `ConfigError` naming the key and what it may be."""
  if name not in options:
    raise ConfigError(
      f"{key}={name!r} is not one of {', '.join(options)}. "
      f"Set it with --config.{key}=<name>."
    )


def _report(
  log_ratio_BT: jax.Array,
  entropy_BT: jax.Array,
  config: LossConfig,
  batch: Batch,
) -> Metrics:
  """How far the policy is from who sampled; constants for the gradient."""
  log_ratio_BT = jax.lax.stop_gradient(log_ratio_BT)
  ratio_BT = jnp.exp(log_ratio_BT)
  outside_BT = (ratio_BT < 1 - config.clip_low) | (
    ratio_BT > 1 + config.clip_high
  )

  def mean(x_BT: jax.Array) -> Mean:
    return losses.token_mean(x_BT, batch.mask)

  return {
    "policy/entropy": mean(jax.lax.stop_gradient(entropy_BT)),
    "policy/kl_to_behavior": mean(losses.k3(-log_ratio_BT)),
    "policy/ratio_outside_clip": mean(outside_BT.astype(jnp.float32)),
    "policy/abs_log_ratio": mean(jnp.abs(log_ratio_BT)),
  }
