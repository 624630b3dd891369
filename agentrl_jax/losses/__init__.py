"""Losses for language-model agents: pure functions of [B, T] arrays.

Needs jax and chex, and nothing else of this framework. The way through:

  logprob_BT, _ = chunked_token_logprob(hidden_BTD, output_DV, token_BT, ...)
  log_ratio_BT = log_ratio(logprob_BT, behavior_logprob_BT, mask_BT)
  loss_BT = clipped_surrogate(log_ratio_BT, advantage_BT, ...)
  loss = token_mean(loss_BT, mask_BT)  # a Mean: .value(), or add more

`docs/losses.md` lists every function with its equation and its use.
"""

from agentrl_jax.losses.group_advantages import group_advantage
from agentrl_jax.losses.group_filters import group_has_signal
from agentrl_jax.losses.kl import k1, k2, k3
from agentrl_jax.losses.logprobs import (
  chunked_token_logprob,
  entropy,
  token_logprob,
)
from agentrl_jax.losses.policy_gradient import clipped_surrogate, reinforce
from agentrl_jax.losses.ratios import log_ratio
from agentrl_jax.losses.reductions import (
  Mean,
  fixed_length_mean,
  segment_mean,
  sequence_mean,
  token_mean,
)
from agentrl_jax.losses.supervised import negative_log_likelihood
from agentrl_jax.losses.task_normalisation import (
  task_normalise,
  task_normalise_weighted,
)
from agentrl_jax.losses.trained_logprobs import trained_token_logprob

__all__ = [
  "Mean",
  "chunked_token_logprob",
  "clipped_surrogate",
  "entropy",
  "fixed_length_mean",
  "group_advantage",
  "group_has_signal",
  "k1",
  "k2",
  "k3",
  "log_ratio",
  "negative_log_likelihood",
  "reinforce",
  "segment_mean",
  "sequence_mean",
  "task_normalise",
  "task_normalise_weighted",
  "token_logprob",
  "token_mean",
  "trained_token_logprob",
]
