"""Which losses, advantages and models go together, and why others do not."""

from collections.abc import Mapping

from agentrl_jax.controller.group import GroupLimits
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.train.advantage_config import OF_CRITICS, AdvantageConfig
from agentrl_jax.train.loss_config import LossConfig


def check_learning(
  loss: LossConfig,
  advantage: AdvantageConfig,
  model: ModelConfig,
  group: GroupLimits,
  mesh: Mapping[str, int],
) -> None:
  """Raises `ConfigError` for what no section can see alone."""
  _check_critic(loss, advantage, model)
  if loss.vocab_chunk and mesh["tensor"] > 1:
    raise ConfigError(
      f"loss.vocab_chunk={loss.vocab_chunk} cuts the words that mesh.tensor="
      f"{mesh['tensor']} has split over devices; set "
      "--config.loss.vocab_chunk=0 and lower loss.token_chunk to save memory"
    )
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
  if group.size == 1 and advantage.keep != "all":
    raise ConfigError(
      f"advantage.keep={advantage.keep!r} compares attempts, and group.size=1 "
      "leaves nothing to compare: every group would be dropped. Set "
      "--config.advantage.keep=all"
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
