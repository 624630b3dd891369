"""AdamW with a warm-up, from the `optimizer` section of the config."""

import dataclasses

import optax

from agentrl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
  """Settings of one stage's optimizer."""

  learning_rate: float
  warmup_steps: int
  final_lr_ratio: (
    float  # of the learning rate, reached by cosine; 1 is constant
  )
  b1: float
  b2: float
  weight_decay: float
  clip_norm: float

  def __post_init__(self) -> None:
    if not self.learning_rate > 0:
      raise ConfigError(
        f"optimizer.learning_rate={self.learning_rate} must be positive"
      )
    if not 0 <= self.final_lr_ratio <= 1:
      raise ConfigError(
        f"optimizer.final_lr_ratio={self.final_lr_ratio} must lie in [0, 1]: 1 "
        f"keeps "
        "the learning rate constant"
      )
    if not self.clip_norm > 0:
      raise ConfigError(
        f"optimizer.clip_norm={self.clip_norm} must be positive; a large "
        "value clips nothing"
      )


def make_optimizer(
  config: OptimizerConfig, num_steps: int
) -> optax.GradientTransformation:
  """Clip by global norm, then AdamW; the schedule spans `num_steps` updates."""
  warmup = min(config.warmup_steps, max(num_steps - 1, 0))
  schedule = optax.warmup_cosine_decay_schedule(
    init_value=config.learning_rate / (warmup + 1),
    peak_value=config.learning_rate,
    warmup_steps=warmup,
    decay_steps=max(num_steps, warmup + 1),
    end_value=config.learning_rate * config.final_lr_ratio,
  )
  return optax.chain(
    optax.clip_by_global_norm(config.clip_norm),
    optax.adamw(
      schedule,
      b1=config.b1,
      b2=config.b2,
      weight_decay=config.weight_decay,
    ),
  )
