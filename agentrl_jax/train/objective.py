"""The loss of a micro-batch, from functions of `losses` that a config names."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax import losses
from agentrl_jax.data.batch import Batch
from agentrl_jax.losses import ExplainedVariance, Mean, RatioMoments
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.custom_trial import try_loss
from agentrl_jax.train.metrics import (
  DRIFT,
  POLICY_LOGPROB,
  EngineDrift,
  TokenValues,
  measure_drift,
  measure_policy_slots,
  measure_replay,
)
from agentrl_jax.train.token_logprobs import (
  reference_divergence,
  routed_states,
  token_logprobs,
  token_values,
)
from agentrl_jax.train.train_batch import Array, TrainBatch

# Those of binary probabilities, by the surrogate that bounds them.
_DIVERGENCES = {"dppo_tv": "tv", "dppo_kl": "kl"}

Metrics = dict[
  str, Mean | RatioMoments | ExplainedVariance | EngineDrift | TokenValues
]


# Maps (params, micro-batch, the params' version) to the mean to minimise and
# the metrics.
Objective = Callable[[Params, TrainBatch, jax.Array], tuple[Mean, Metrics]]
_KL_LIMIT = 10.0  # bound on one token's k3, as in AgentRL and verl


def policy_objective(
  policy: Policy,
  config: LossConfig,
  *,
  temperature: float,
  num_policy_slots: int = 1,
  tasks: Mapping[str, int] | None = None,
) -> Objective:
  """Returns the objective of `config`: `batch_loss` of a policy's outputs.

  Log-probabilities are taken at `temperature`, the sampler's.
  `num_policy_slots` is the number of policy slots in the metrics; `tasks`
  numbers the tasks by name for metrics by task.
  """
  try_loss(config)

  def objective(
    params: Params, micro_batch: TrainBatch, version: jax.Array | None = None
  ) -> tuple[Mean, Metrics]:
    batch, value_BT = micro_batch.batch, None
    hidden_BTD, fit = routed_states(policy, params, batch)
    logprob_BT, entropy_BT = token_logprobs(
      policy,
      params,
      batch,
      temperature=temperature,
      **config.tiles,
      entropy_gradient=config.reads_entropy,
      hidden_BTD=hidden_BTD,
    )
    if micro_batch.value_target is not None:
      value_BT = token_values(policy, params, batch, hidden_BTD)
    divergence_BT = None
    if micro_batch.reference_hidden is not None:
      divergence_BT = reference_divergence(
        policy,
        params,
        batch,
        hidden_BTD,
        (micro_batch.reference_hidden, micro_batch.reference_output),
        temperature=temperature,
        chunk_size=config.token_chunk,
      )
    loss, metrics = batch_loss(
      config,
      micro_batch,
      logprob_BT,
      entropy_BT,
      value_BT,
      divergence_BT,
      version=version,
      num_policy_slots=num_policy_slots,
      tasks=tasks,
    )
    if fit is not None:
      metrics |= measure_replay(*fit, batch.mask)
    return loss, metrics | {POLICY_LOGPROB: TokenValues(logprob_BT)}

  return objective


def supervised_objective(policy: Policy, config: LossConfig) -> Objective:
  """Returns the negative log-likelihood of demonstrated answers, by token."""

  def objective(
    params: Params, micro_batch: TrainBatch, version: jax.Array | None = None
  ) -> tuple[Mean, Metrics]:
    del version  # no engine sampled the demonstrations
    batch = micro_batch.batch
    logprob_BT, entropy_BT = token_logprobs(
      policy, params, batch, temperature=1.0, **config.tiles
    )
    loss_BT = losses.negative_log_likelihood(logprob_BT)
    metrics: Metrics = {
      "policy/entropy": losses.token_mean(entropy_BT, batch.mask)
    }
    return losses.token_mean(loss_BT, batch.mask), metrics

  return objective


@dataclasses.dataclass(frozen=True)
class Terms:
  """Inputs of a surrogate, [B, T] each."""

  logprob: jax.Array
  log_ratio: jax.Array
  advantage: Array
  batch: Batch
  # Differentiable; None unless `LossConfig.reads_entropy`, since its gradient
  # costs another pass over the vocabulary.
  entropy: jax.Array | None = None
  task: Array | None = None
  version: Array | None = None

  @property
  def sequences(self) -> dict[str, jax.Array | int]:
    """Segment ids of the tokens, as arguments of `losses`."""
    return sequences_of(self.batch)


def sequences_of(batch: Batch) -> dict[str, jax.Array | int]:
  """Returns the segment of each token of packed rows, for `losses`."""
  # A trajectory has at least two tokens, so a row holds at most T / 2.
  num_segments = batch.segment.shape[1] // 2 + 1
  return {"segment_BT": batch.segment, "num_segments": num_segments}


def token_inputs(batch: Batch, task: Array, version: Array) -> dict[str, Any]:
  """Returns the inputs that all custom functions of tokens may take."""
  return {
    "mask_BT": batch.mask,
    **sequences_of(batch),
    "trajectory_BT": batch.trajectory,
    "turn_BT": batch.turn,
    "task_BT": task,
    "policy_slot_BT": batch.policy_slot,
    "version_BT": version,
    "behavior_logprob_BT": batch.behavior_logprob,
  }


def batch_loss(
  config: LossConfig,
  micro_batch: TrainBatch,
  logprob_BT: jax.Array,
  entropy_BT: jax.Array,
  value_BT: jax.Array | None = None,
  divergence_BT: jax.Array | None = None,
  *,
  version: jax.Array | None = None,
  num_policy_slots: int = 1,
  tasks: Mapping[str, int] | None = None,
) -> tuple[Mean, Metrics]:
  """Returns the loss of a micro-batch and its metrics.

  With loss.proximal='behavior' the ratio is to the distribution that sampled
  the token, whatever version and temperature that was. `version` is that of
  the policy's params: tokens that it sampled measure the engine's drift.

  Args:
    logprob_BT, entropy_BT: of the policy, as from `token_logprobs`.
    value_BT: of the critic; None without one.
    divergence_BT: from the reference, over the whole vocabulary; None leaves it
      to an estimator.
  """
  batch = micro_batch.batch
  behavior_BT = _ratio(logprob_BT, batch.behavior_logprob, batch)
  metrics = _report(behavior_BT, logprob_BT, entropy_BT, micro_batch, config)
  metrics |= measure_policy_slots(
    behavior_BT,
    batch,
    micro_batch.task,
    num_policy_slots=num_policy_slots,
    tasks=tasks or {},
  )
  if version is not None and micro_batch.version is not None:
    metrics[DRIFT] = measure_drift(
      behavior_BT, batch.mask, micro_batch.version, version
    )
  proximal_BT = behavior_BT
  if micro_batch.proximal_logprob is not None:
    proximal_BT = _ratio(logprob_BT, micro_batch.proximal_logprob, batch)
  terms = Terms(
    logprob_BT,
    proximal_BT,
    micro_batch.advantage,
    batch,
    entropy_BT if config.reads_entropy else None,
    micro_batch.task,
    micro_batch.version,
  )
  loss_BT = surrogate_loss(config, terms)
  loss_BT = _weigh_tokens(loss_BT, micro_batch, config, metrics)
  if config.importance != "none":
    loss_BT = loss_BT * _importance(micro_batch, terms, config, metrics)
  if config.stale_failures:
    loss_BT = loss_BT * _stale_failures(behavior_BT, terms, config, metrics)
  if micro_batch.reference_logprob is not None:
    kl_BT = _kl(
      logprob_BT, behavior_BT, divergence_BT, micro_batch, config, metrics
    )
    loss_BT = loss_BT + config.kl_coefficient * kl_BT
  if config.entropy_coefficient:
    loss_BT = loss_BT - config.entropy_coefficient * entropy_BT
  if value_BT is not None:
    loss_BT = loss_BT + _value_loss(value_BT, micro_batch, config, metrics)
  return _reduce(loss_BT, micro_batch, config), metrics


def surrogate_loss(config: LossConfig, terms: Terms) -> jax.Array:
  """Returns the loss of each token by the surrogate that the config names."""
  function = config.custom_function("surrogate")
  if function is None:
    return SURROGATES[config.surrogate](config, terms)
  mask_BT = terms.batch.mask
  available = {
    "log_ratio_BT": terms.log_ratio,
    "advantage_BT": jax.lax.stop_gradient(terms.advantage),
    "policy_logprob_BT": terms.logprob,
    "entropy_BT": terms.entropy,
    **token_inputs(terms.batch, terms.task, terms.version),
  }
  loss_BT = function.require_shape(function(available), mask_BT.shape)
  return jnp.where(mask_BT, loss_BT, 0)


def _reduce(
  loss_BT: jax.Array, micro_batch: TrainBatch, config: LossConfig
) -> Mean:
  """Reduces to the mean over all sequences that count, packed or not."""
  packed = _reduce_packed(loss_BT, micro_batch, config)
  if micro_batch.left_out is None:
    return packed
  return packed + Mean(jnp.zeros(()), micro_batch.left_out)


def _reduce_packed(
  loss_BT: jax.Array, micro_batch: TrainBatch, config: LossConfig
) -> Mean:
  mask_BT = micro_batch.batch.mask
  function = config.custom_function("reduction")
  if function is not None:
    mean = function(
      {
        "x_BT": loss_BT,
        "mask_BT": mask_BT,
        **sequences_of(micro_batch.batch),
        "task_BT": micro_batch.task,
      }
    )
    return function.require_mean(mean)
  if micro_batch.weight is not None:
    return losses.weighted_mean(loss_BT, mask_BT, micro_batch.weight)
  if config.reduction == "token_mean":
    return losses.token_mean(loss_BT, mask_BT)
  over_sequences = {
    "sequence_mean": losses.segment_mean,
    "sequence_sum_mean": losses.sequence_sum_mean,
    "fixed_length_mean": partial(
      losses.fixed_length_mean, **config.reduction_settings
    ),
  }[config.reduction]
  sequences = sequences_of(micro_batch.batch)
  return over_sequences(loss_BT, mask_BT, **sequences)


def _weigh_tokens(
  loss_BT: jax.Array,
  micro_batch: TrainBatch,
  config: LossConfig,
  metrics: Metrics,
) -> jax.Array:
  """Multiplies the surrogate by `loss.token_weight`.

  The mean of a custom surrogate becomes a metric, so that `NotFinite` names
  the function that computed NaN.
  """
  mask_BT = micro_batch.batch.mask
  surrogate = config.custom_function("surrogate")
  if surrogate is not None:
    metrics[f"loss/{surrogate.name}"] = losses.token_mean(
      jax.lax.stop_gradient(loss_BT), mask_BT
    )
  if micro_batch.token_weight is None:
    return loss_BT
  weight_BT = jax.lax.stop_gradient(micro_batch.token_weight)
  metrics["policy/token_weight"] = losses.token_mean(weight_BT, mask_BT)
  return loss_BT * weight_BT


def _ratio(logprob_BT: jax.Array, other_BT: Array, batch: Batch) -> jax.Array:
  return losses.log_ratio(logprob_BT, other_BT, batch.mask)


def _importance(
  micro_batch: TrainBatch, terms: Terms, config: LossConfig, metrics: Metrics
) -> jax.Array:
  """Returns weights that correct the proximal policy to the sampler."""
  batch = micro_batch.batch
  log_ratio_BT = losses.log_ratio(
    micro_batch.proximal_logprob, batch.behavior_logprob, batch.mask, limit=None
  )
  if config.importance_level != "token":
    log_ratio_BT = losses.sequence_log_ratio(
      log_ratio_BT,
      batch.mask,
      **terms.sequences,
      average=config.importance_level == "sequence_mean",
      limit=None,
    )
  if config.importance == "truncated":
    weight_BT = losses.truncated_weight(
      log_ratio_BT, cap=config.importance_high
    )
  else:
    weight_BT = losses.masked_weight(
      log_ratio_BT, low=config.importance_low, high=config.importance_high
    )
  metrics["policy/importance_weight"] = losses.token_mean(weight_BT, batch.mask)
  return weight_BT


def _stale_failures(
  log_ratio_BT: jax.Array, terms: Terms, config: LossConfig, metrics: Metrics
) -> jax.Array:
  """Returns weight 0 for failures that have become unlikely, else 1."""
  log_ratio_BT = losses.sequence_log_ratio(
    jax.lax.stop_gradient(log_ratio_BT),
    terms.batch.mask,
    **terms.sequences,
    average=True,
  )
  weight_BT = losses.stale_failure_weight(
    log_ratio_BT, terms.advantage, divergence=config.stale_failures
  )
  metrics["policy/stale_failures"] = losses.token_mean(
    1 - weight_BT, terms.batch.mask
  )
  return weight_BT


def _kl(
  logprob_BT: jax.Array,
  behavior_BT: jax.Array,
  divergence_BT: jax.Array | None,
  micro_batch: TrainBatch,
  config: LossConfig,
  metrics: Metrics,
) -> jax.Array:
  """Estimates the KL divergence from the reference, with its gradient."""
  log_ratio_BT = _ratio(
    logprob_BT, micro_batch.reference_logprob, micro_batch.batch
  )
  k3_BT = losses.k3(log_ratio_BT, limit=_KL_LIMIT)
  reverse_BT = log_ratio_BT if divergence_BT is None else divergence_BT
  metrics["policy/reverse_kl"] = losses.token_mean(
    jax.lax.stop_gradient(reverse_BT), micro_batch.batch.mask
  )
  metrics["policy/kl_to_reference"] = losses.token_mean(
    jax.lax.stop_gradient(k3_BT), micro_batch.batch.mask
  )
  if divergence_BT is not None:
    return divergence_BT
  function = config.custom_function("kl_estimator")
  if function is not None:
    available = {
      "log_ratio_BT": log_ratio_BT,
      "behavior_log_ratio_BT": behavior_BT,
      "mask_BT": micro_batch.batch.mask,
    }
    return function.require_shape(function(available), log_ratio_BT.shape)
  estimators = {
    "k2": lambda: losses.k2(log_ratio_BT),
    "k3": lambda: k3_BT,
    "k3_k2": lambda: losses.with_gradient_of(k3_BT, losses.k2(log_ratio_BT)),
    "unbiased": lambda: losses.unbiased_kl(log_ratio_BT, behavior_BT),
  }
  return estimators[config.kl_estimator]()


def reward_kl_estimator(
  config: LossConfig, mask_BT: Array
) -> Callable[[jax.Array], jax.Array]:
  """Returns the KL estimator that penalises rewards, or advantages."""
  function = config.custom_function("kl_estimator")
  if function is None:
    estimators = {"k1": losses.k1, "k2": losses.k2, "k3": losses.k3}
    return estimators[config.kl_estimator]

  def estimate(log_ratio_BT: jax.Array) -> jax.Array:
    inputs = {"log_ratio_BT": log_ratio_BT, "mask_BT": mask_BT}
    return function.require_shape(function(inputs), mask_BT.shape)

  return estimate


def _value_loss(
  value_BT: jax.Array,
  micro_batch: TrainBatch,
  config: LossConfig,
  metrics: Metrics,
) -> jax.Array:
  loss_BT = losses.clipped_value_loss(
    value_BT,
    micro_batch.old_value,
    micro_batch.value_target,
    micro_batch.value_mask,
    clip=config.value_clip or None,
  )
  metrics["critic/loss"] = losses.token_mean(
    jax.lax.stop_gradient(loss_BT), micro_batch.value_mask
  )
  metrics["critic/explained_variance"] = losses.explained_variance(
    value_BT, micro_batch.value_target, micro_batch.value_mask
  )
  return config.value_coefficient * loss_BT


def _report(
  log_ratio_BT: jax.Array,
  logprob_BT: jax.Array,
  entropy_BT: jax.Array,
  micro_batch: TrainBatch,
  config: LossConfig,
) -> Metrics:
  """Measures how far the policy is from the sampler; passes no gradient."""
  mask_BT = micro_batch.batch.mask
  log_ratio_BT = jax.lax.stop_gradient(log_ratio_BT)
  moved_BT = jnp.expm1(log_ratio_BT)
  if config.surrogate in ("gspo", "gspo_token"):  # bounds of sequences
    sequence_BT = losses.sequence_log_ratio(
      log_ratio_BT, mask_BT, **sequences_of(micro_batch.batch), average=True
    )
    moved_BT = jnp.expm1(sequence_BT)
  elif config.surrogate == "gmpo":  # its bounds are in nats
    moved_BT = log_ratio_BT
  elif config.surrogate in _DIVERGENCES:  # and these of the probability
    moved_BT = losses.binary_divergence(
      log_ratio_BT,
      logprob_BT,
      mask_BT,
      divergence=_DIVERGENCES[config.surrogate],
    )
  outside_BT = (moved_BT < -config.clip_low) | (moved_BT > config.clip_high)

  def mean(x_BT: jax.Array) -> Mean:
    return losses.token_mean(x_BT, mask_BT)

  return {
    "policy/entropy": mean(jax.lax.stop_gradient(entropy_BT)),
    "policy/kl_to_behavior": mean(losses.k3(-log_ratio_BT)),
    "policy/ratio_outside_clip": mean(outside_BT.astype(jnp.float32)),
    "policy/abs_log_ratio": mean(jnp.abs(log_ratio_BT)),
  }


def _clip(config: LossConfig) -> dict[str, float]:
  return {"clip_low": config.clip_low, "clip_high": config.clip_high}


def _clipped(config: LossConfig, terms: Terms) -> jax.Array:
  return losses.clipped_surrogate(
    terms.log_ratio,
    terms.advantage,
    **_clip(config),
    dual_clip=config.dual_clip or None,
  )


def _cispo(config: LossConfig, terms: Terms) -> jax.Array:
  return losses.cispo(
    terms.log_ratio,
    terms.advantage,
    terms.logprob,
    terms.batch.mask,
    **_clip(config),
  )


def _dppo(config: LossConfig, terms: Terms) -> jax.Array:
  return losses.dppo(
    terms.log_ratio,
    terms.advantage,
    terms.logprob,
    terms.batch.mask,
    divergence=_DIVERGENCES[config.surrogate],
    **_clip(config),
  )


def _gspo(config: LossConfig, terms: Terms) -> jax.Array:
  log_ratio_BT = losses.sequence_log_ratio(
    terms.log_ratio, terms.batch.mask, **terms.sequences, average=True
  )
  return losses.clipped_surrogate(
    log_ratio_BT, terms.advantage, **_clip(config)
  )


def _gspo_token(config: LossConfig, terms: Terms) -> jax.Array:
  log_ratio_BT = losses.gspo_token_log_ratio(
    terms.log_ratio, terms.batch.mask, **terms.sequences
  )
  return losses.clipped_surrogate(
    log_ratio_BT, terms.advantage, **_clip(config)
  )


def _sapo(config: LossConfig, terms: Terms) -> jax.Array:
  return losses.sapo(
    terms.log_ratio, terms.advantage, **config.surrogate_settings
  )


def _gmpo(config: LossConfig, terms: Terms) -> jax.Array:
  return losses.gmpo(
    terms.log_ratio,
    terms.advantage,
    terms.batch.mask,
    **terms.sequences,
    **_clip(config),
  )


# Each maps (config, terms) to loss_BT.
SURROGATES: Mapping[str, Callable[[LossConfig, Terms], jax.Array]] = {
  "reinforce": lambda _, terms: losses.reinforce(
    terms.log_ratio, terms.advantage
  ),
  "clipped": _clipped,
  "cispo": _cispo,
  "dppo_tv": _dppo,
  "dppo_kl": _dppo,
  "gspo": _gspo,
  "gspo_token": _gspo_token,
  "sapo": _sapo,
  "gmpo": _gmpo,
}
