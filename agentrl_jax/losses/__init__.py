"""Losses for language-model agents: pure functions of [B, T] arrays.

Needs jax and chex, and nothing else of this framework. The way through:

  logprob_BT, _ = fused_token_logprob(hidden_BTD, output_DV, token_BT, ...)
  log_ratio_BT = log_ratio(logprob_BT, behavior_logprob_BT, mask_BT)
  loss_BT = clipped_surrogate(log_ratio_BT, advantage_BT, ...)
  loss = token_mean(loss_BT, mask_BT)  # a Mean: .value(), or add more

`docs/losses.md` lists every function with its equation and its use.
"""

from agentrl_jax.losses.advantages.group_advantages import (
  best_of_group_advantage,
  group_advantage,
  leave_one_out_advantage,
)
from agentrl_jax.losses.advantages.group_filters import (
  group_has_signal,
  group_std,
  keep_groups_above,
  keep_top_groups,
  keep_top_signal,
  keep_top_softmax,
)
from agentrl_jax.losses.advantages.normalisation import (
  TaskMoments,
  blend_moments,
  measure_tasks,
  normalise_by_moments,
  reinforce_plus_plus_advantage,
  reinforce_plus_plus_baseline_advantage,
  task_normalise,
  task_normalise_weighted,
  unseen_tasks,
  whiten,
  whiten_weighted,
)
from agentrl_jax.losses.advantages.pass_at_k import (
  max_at_k_advantage,
  pass_at_k_advantage,
)
from agentrl_jax.losses.advantages.returns import discounted_returns, gae
from agentrl_jax.losses.advantages.step_groups import (
  gigpo_advantage,
  step_advantage,
)
from agentrl_jax.losses.advantages.turns import (
  bi_level_gae,
  first_of_turn,
  turn_gae,
  turn_returns,
)
from agentrl_jax.losses.agentrl import agentrl_loss
from agentrl_jax.losses.diagnostics import (
  Extremes,
  clip_fractions,
  extremes,
  ratio_moments,
)
from agentrl_jax.losses.kl import (
  k1,
  k2,
  k3,
  kl_penalised_reward,
  reverse_kl,
  unbiased_kl,
)
from agentrl_jax.losses.logprobs.allowed_tokens import AllowedTokens
from agentrl_jax.losses.logprobs.fused import fused_token_logprob
from agentrl_jax.losses.logprobs.logits import entropy, token_logprob
from agentrl_jax.losses.policy_gradient import (
  binary_divergence,
  cispo,
  clipped_surrogate,
  decoupled_surrogate,
  dppo,
  gmpo,
  negative_log_likelihood,
  reinforce,
  sapo,
)
from agentrl_jax.losses.ratios import (
  gspo_token_log_ratio,
  log_ratio,
  masked_weight,
  normalised_weight,
  sequence_log_ratio,
  stale_failure_weight,
  truncated_weight,
  with_gradient_of,
)
from agentrl_jax.losses.reductions import (
  Mean,
  RatioMoments,
  fixed_length_mean,
  pair_mean,
  segment_mean,
  sequence_mean,
  sequence_sum_mean,
  task_weights,
  token_mean,
  weighted_mean,
)
from agentrl_jax.losses.value import (
  ExplainedVariance,
  clipped_value_loss,
  explained_variance,
)

__all__ = [
  "AllowedTokens",
  "ExplainedVariance",
  "Extremes",
  "Mean",
  "RatioMoments",
  "TaskMoments",
  "agentrl_loss",
  "best_of_group_advantage",
  "binary_divergence",
  "bi_level_gae",
  "blend_moments",
  "cispo",
  "clip_fractions",
  "clipped_surrogate",
  "clipped_value_loss",
  "decoupled_surrogate",
  "discounted_returns",
  "dppo",
  "entropy",
  "explained_variance",
  "extremes",
  "first_of_turn",
  "fixed_length_mean",
  "fused_token_logprob",
  "gae",
  "gigpo_advantage",
  "gmpo",
  "group_advantage",
  "group_has_signal",
  "group_std",
  "gspo_token_log_ratio",
  "k1",
  "k2",
  "k3",
  "keep_groups_above",
  "keep_top_groups",
  "keep_top_signal",
  "keep_top_softmax",
  "kl_penalised_reward",
  "leave_one_out_advantage",
  "log_ratio",
  "masked_weight",
  "max_at_k_advantage",
  "measure_tasks",
  "negative_log_likelihood",
  "normalise_by_moments",
  "normalised_weight",
  "pair_mean",
  "pass_at_k_advantage",
  "ratio_moments",
  "reinforce",
  "reinforce_plus_plus_advantage",
  "reinforce_plus_plus_baseline_advantage",
  "reverse_kl",
  "sapo",
  "segment_mean",
  "sequence_log_ratio",
  "sequence_mean",
  "sequence_sum_mean",
  "stale_failure_weight",
  "step_advantage",
  "task_normalise",
  "task_normalise_weighted",
  "task_weights",
  "token_logprob",
  "token_mean",
  "truncated_weight",
  "turn_gae",
  "turn_returns",
  "unbiased_kl",
  "unseen_tasks",
  "weighted_mean",
  "whiten",
  "whiten_weighted",
  "with_gradient_of",
]
