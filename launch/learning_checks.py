"""Which losses, advantages and models go together, and why others do not."""

from agentrl_jax.controller.group import GroupLimits
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.train.advantage_config import (
  KEEPS,
  OF_CRITICS,
  AdvantageConfig,
)
from agentrl_jax.train.config_checks import require_read
from agentrl_jax.train.loss_config import LossConfig
from agentrl_jax.train.reference import ReferenceConfig

# Filters that keep no group of one attempt.
COMPARING = tuple(name for name in KEEPS if name != "all")


def check_learning(
  loss: LossConfig,
  advantage: AdvantageConfig,
  model: ModelConfig,
  group: GroupLimits,
  reference: ReferenceConfig,
) -> None:
  """Raises `ConfigError` for what no section can see alone."""
  _check_critic(loss, advantage, model)
  _check_reference(loss, reference)
  estimator = advantage.estimator
  if loss.surrogate in ("gspo", "gmpo") and advantage.varies_within_attempt:
    raise ConfigError(
      f"loss.surrogate={loss.surrogate!r} has one ratio per attempt, and "
      f"advantage.estimator={estimator!r} gives its turns or tokens advantages "
      "of their own: use --config.loss.surrogate=gspo_token"
    )
  if advantage.k > group.size:
    raise ConfigError(
      f"advantage.k={advantage.k} attempts cannot be drawn from group.size="
      f"{group.size}: lower the one or raise the other"
    )
  if estimator == "pass_at_k" and loss.kl_place == "reward":
    raise ConfigError(
      "loss.kl_place='reward' takes something off every reward, and advantage."
      "estimator='pass_at_k' only asks whether an attempt succeeded: use "
      "--config.loss.kl_place=loss, or --config.advantage.estimator=max_at_k"
    )
  if group.size == 1 and advantage.keep in COMPARING:
    raise ConfigError(
      f"advantage.keep={advantage.keep!r} compares attempts, and group.size=1 "
      "leaves nothing to compare: every group would be dropped. Set "
      "--config.advantage.keep=all"
    )


def _check_reference(loss: LossConfig, reference: ReferenceConfig) -> None:
  """What is pulled towards must be somewhere."""
  if loss.kl_coefficient and reference.place == "dropped":
    raise ConfigError(
      f"loss.kl_coefficient={loss.kl_coefficient} pulls towards a reference, "
      "and reference.place='dropped' keeps none: set "
      "--config.loss.kl_coefficient=0, or --config.reference.place=offloaded"
    )
  require_read(
    "reference.place",
    reference.place,
    idle="resident",
    is_read=reference.place == "dropped" or loss.kl_coefficient > 0,
    why="with loss.kl_coefficient=0, which keeps no reference",
  )


def _check_critic(
  loss: LossConfig, advantage: AdvantageConfig, model: ModelConfig
) -> None:
  """A critic is asked for in three places, or in none."""
  found = (
    f"advantage.estimator={advantage.estimator!r}, loss.value_coefficient="
    f"{loss.value_coefficient} and model.value_head={model.value_head}"
  )
  if len({advantage.uses_critic, loss.has_critic, model.value_head}) == 1:
    return
  raise ConfigError(
    f"{found} do not go together: a critic needs an estimator that reads it "
    f"({', '.join(OF_CRITICS)}), a loss that trains it (a positive "
    "--config.loss.value_coefficient) and a head (--config.model.value_head="
    "True). Set all three, or none: another estimator, 0 and False"
  )
