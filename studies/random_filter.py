"""A negative control for `advantage.keep`: groups that are kept by chance."""

import jax
import jax.numpy as jnp

from agentrl_jax import losses
from agentrl_jax.errors import ConfigError

_RULES = {
  "top_signal": losses.keep_top_signal,
  "top_share": losses.keep_top_groups,
}


def keep_random_groups(
  reward_N: jax.Array,
  group_N: jax.Array,
  num_tokens_N: jax.Array,
  num_groups: int,
  valid_N: jax.Array,
  *,
  share: float = 1.0,
  rule: str = "top_signal",
) -> jax.Array:
  """Keeps as many groups as a filter by spread, whichever they are.

  Rewards decide how many groups are kept, and not which. The batch's number of
  tokens seeds the draw, so the same batch is cut in the same way. A config
  names this function as `advantage.keep`.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `losses.group_advantage`.
    num_tokens_N: trained tokens of each trajectory, int.
    share: that of `rule`, from 0 to 1; with 1 of "top_signal", as many groups
      are kept as have a signal.
    rule: value of `advantage.keep` that says how many: top_signal, top_share.

  Returns:
    keep_M, bool.

  Raises:
    ConfigError: if there is no such rule.
  """
  if rule not in _RULES:
    raise ConfigError(
      f"keep_settings.rule={rule!r} must be one of {', '.join(_RULES)}"
    )
  signal_M = _RULES[rule](
    reward_N, group_N, num_groups=num_groups, valid_N=valid_N, share=share
  )
  size_M = jax.ops.segment_sum(valid_N.astype(jnp.int32), group_N, num_groups)
  key = jax.random.key(jnp.sum(jnp.where(valid_N, num_tokens_N, 0)))
  # Groups without valid trajectories come last.
  draw_M = jax.random.uniform(key, (num_groups,)) + (size_M == 0)
  return jnp.argsort(jnp.argsort(draw_M)) < jnp.sum(signal_M)
