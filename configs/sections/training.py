"""Supervised warm start, updates, and the optimizers of both."""

import ml_collections
from ml_collections.config_dict import create


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `warm_start`, `train`, `optimizer` and `reference`."""
  return create(
    warm_start=create(
      # Folder of a run whose stages before RL are taken in place of making
      # them: it must agree in the keys on which they depend; "": none.
      from_run="",
      # Gain of heads that copy tokens from the first update on, in all layers
      # of fresh params but the first; 0 begins with random heads. See
      # agentrl_jax/model/decoder.py.
      copy_gain=0.0,
      optimizer=create(
        learning_rate=2e-3,  # highest value of the learning rate
        warmup_steps=50,  # updates until learning_rate is reached
        final_lr_ratio=0.1,  # last share of learning_rate, by cosine decay
        b1=0.9,  # decay of AdamW's mean gradient
        b2=0.95,  # decay of AdamW's mean square
        weight_decay=0.01,  # of AdamW, times the learning rate
        clip_norm=1.0,  # largest norm of a gradient
        expert_bias_rate=0.0,  # as optimizer.expert_bias_rate
      ),
    ),
    train=create(
      # Largest number of its tokens that a row stands for, as a multiple of its
      # length: tokens that trajectories share are computed once. 1 computes
      # each trajectory by itself.
      sharing=8,
      # Roles of the agents of an episode whose answers are trained on, () for
      # all. The others answer with the same policy.
      roles=(),
      batch_timeout_s=3600.0,  # the learner's wait for a batch of groups
      # The controller's wait for one step of the learner: updates, compilation
      # and checkpoint.
      step_timeout_s=86400.0,
    ),
    optimizer=create(
      final_lr_ratio=1.0,  # last share of learning_rate, by cosine decay
      b1=0.9,  # decay of AdamW's mean gradient
      b2=0.999,  # decay of AdamW's mean square
      weight_decay=0.0,  # of AdamW, times the learning rate
      clip_norm=1.0,  # largest norm of a gradient
      # Step of the bias by which a sigmoid router chooses an expert: up if it
      # had fewer tokens than the mean, down if more; 0: biases stay.
      expert_bias_rate=0.0,
    ),
    reference=create(
      # Place of the KL reference: resident on the devices, offloaded to the
      # hosts, or dropped.
      place="resident",
      # A teacher: a Hugging Face folder, or the folder of a run, with the same
      # vocabulary; "": the policy that reinforcement learning begins with.
      path="",
      version=-1,  # of that run's RL; -1: its best or last
    ),
  )
