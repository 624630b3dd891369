"""The policy-gradient loss of a token: names in the config to `losses`."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
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

  @property
  def sequences(self) -> dict[str, jax.Array | int]:
    """Which tokens belong to one trajectory."""
    # No row holds more segments than tokens; two tokens make the least one.
    num_segments = self.batch.segment.shape[1] // 2 + 1
    return {"segment_BT": self.batch.segment, "num_segments": num_segments}


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
