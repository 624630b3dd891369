"""The policy-gradient loss of a token: names in the config to `losses`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.batch import Batch
from agentrl_jax.train.loss_config import LossConfig

Array = jax.Array | np.ndarray


@dataclasses.dataclass(frozen=True)
class Terms:
  """What a surrogate may read, [B, T] each."""

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
    """Which tokens belong to one trajectory."""
    return sequences_of(self.batch)


def sequences_of(batch: Batch) -> dict[str, jax.Array | int]:
  """The trajectory of each token of packed rows, as `losses` takes it."""
  # No row holds more segments than tokens; two tokens make the least one.
  num_segments = batch.segment.shape[1] // 2 + 1
  return {"segment_BT": batch.segment, "num_segments": num_segments}


def token_inputs(batch: Batch, task: Array, version: Array) -> dict[str, Any]:
  """What every custom function of tokens may take, by its name there."""
  return {
    "mask_BT": batch.mask,
    **sequences_of(batch),
    "turn_BT": batch.turn,
    "task_BT": task,
    "policy_slot_BT": batch.policy_slot,
    "version_BT": version,
    "behavior_logprob_BT": batch.behavior_logprob,
  }


def surrogate_loss(config: LossConfig, terms: Terms) -> jax.Array:
  """The loss of each token, by the surrogate that the config names."""
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
    terms.log_ratio,
    terms.advantage,
    tau_positive=config.sapo_tau_positive,
    tau_negative=config.sapo_tau_negative,
  )


def _gmpo(config: LossConfig, terms: Terms) -> jax.Array:
  return losses.gmpo(
    terms.log_ratio,
    terms.advantage,
    terms.batch.mask,
    **terms.sequences,
    **_clip(config),
  )


# Each maps what it may read to loss_BT.
SURROGATES: Mapping[str, Callable[[LossConfig, Terms], jax.Array]] = {
  "reinforce": lambda _, terms: losses.reinforce(
    terms.log_ratio, terms.advantage
  ),
  "clipped": _clipped,
  "cispo": _cispo,
  "gspo": _gspo,
  "gspo_token": _gspo_token,
  "sapo": _sapo,
  "gmpo": _gmpo,
}
