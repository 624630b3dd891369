"""Objectives of other papers: their losses, corrections and advantages.

Names and meanings are in agentrl_jax/train/config and in docs/losses.md.
"""

import ml_collections
from ml_collections.config_dict import create


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `loss` and `advantage`."""
  return create(
    loss=create(
      # Keyword arguments of the surrogate: tau_positive=1.0 and
      # tau_negative=1.05 of sapo's gate, or those of your function.
      surrogate_settings=create(),
      # module:function of the whole batch, whose value multiplies each token's
      # surrogate; "" is 1.
      token_weight="",
      token_weight_settings=create(),  # keyword arguments of your function
      # Bound on the ratio where the advantage is negative; 0: none.
      dual_clip=3.0,
      # Policy that the ratio is to: behavior, which sampled; or recomputed, as
      # in decoupled PPO. The latter is for admission.versions_per_step of 2 or
      # more: in a batch's first update its ratio is 1, and nothing is clipped.
      proximal="behavior",
      # Correction by the ratio of the proximal to the behavior policy: none,
      # truncated or masked.
      importance="none",
      importance_level="token",  # unit of a ratio; or sequence, sequence_mean
      importance_low=0.0,  # least ratio that importance="masked" keeps
      importance_high=2.0,  # largest ratio that the correction lets through
      # Nats per token beyond which failures are masked as stale; 0 is off.
      stale_failures=0.0,
      # Mean of the tokens' losses: token_mean, sequence_mean,
      # sequence_sum_mean, fixed_length_mean, module:function.
      reduction="token_mean",
      # Keyword arguments of the reduction: length, the tokens that
      # fixed_length_mean divides by, or those of your function.
      reduction_settings=create(),
      task_share="tokens",  # weight of a task; or equal, the same for all
      # Estimator of the KL term: k1, k2, k3, k3_k2, unbiased, module:function;
      # or full, no estimate but all of the vocabulary.
      kl_estimator="k3",
      kl_estimator_settings=create(),  # keyword arguments of your function
      # Where the KL term is charged: the loss; the episode's reward; or the
      # advantage of each token, which is on-policy distillation.
      kl_place="loss",
      kl_limit=10.0,  # bound on one token's k3 in the loss
      entropy_coefficient=0.0,  # weight of the policy's entropy in the loss
      value_coefficient=0.0,  # weight of the critic's loss; 0: no critic
      value_clip=0.0,  # bound on a value's change in an update; 0 is off
      # Tokens per row whose logits are in memory at once; 0: 128, and on a CPU
      # whole rows of up to 256 MiB of logits.
      token_chunk=0,
      vocab_chunk=0,  # vocabulary entries of these logits; 0 takes all
    ),
    advantage=create(
      # Keyword arguments of the estimator: k of pass_at_k and max_at_k, the
      # attempts that count as one; step_weight=1.0 of gigpo, the weight of a
      # turn's advantage; turn_discount=1.0 of bi_level_gae; or those of your
      # function.
      estimator_settings=create(),
      # Unit that is compared within a group, where an episode has several lines
      # of tokens: episodes, roles (each by its own reward), or lines.
      compare="episodes",
      scale_by_std=True,  # divide by the group's standard deviation
      ddof=1,  # of that standard deviation: 1 is unbiased; or 0
      # Discount per turn for turn_return, gigpo and turn_gae; else per token.
      discount=1.0,
      gae_lambda=0.95,  # lambda of the gae family
      # Keyword arguments of the filter: threshold=0.0 of std; share of
      # top_share, top_signal and top_softmax; or those of your function.
      keep_settings=create(),
      # Factor of the advantage that comes from rewards; 0 leaves the KL alone.
      weight=1.0,
      whiten=False,  # normalise over the batch, in place of each task
      task_center=True,  # subtract the mean advantage of a task
      task_scale=True,  # divide by the standard deviation of a task
      task_statistics="tokens",  # unit that counts once; or trajectories
      task_decay=0.0,  # share of past statistics kept per update; 0 keeps none
      epsilon=1e-6,  # added to deviations before a division
    ),
  )
