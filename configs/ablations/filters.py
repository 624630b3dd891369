"""Groups that teach nothing: left out, trained on, or others in their place.

  python -m launch.sweep --ablation=configs/ablations/filters.py --seeds=5

`signal`, the quickstart's own, leaves out the groups whose attempts all scored
the same, as DAPO does (arXiv:2503.14476). `all` keeps them, so that their zeros
count in the mean over tokens. `random` is the negative control: it leaves out
as many groups as `signal`, whichever they are.
"""

import jax
import jax.numpy as jnp

from agentrl_jax import losses
from configs import arms, quickstart


def keep_random(
  reward_N: jax.Array,
  group_N: jax.Array,
  num_tokens_N: jax.Array,
  num_groups: int,
  valid_N: jax.Array,
) -> jax.Array:
  """Keeps as many groups as have a signal, drawn without looking at rewards.

  The number of the batch's tokens seeds the draw, so the same batch is cut in
  the same way. Axes: N trajectories, M groups. Returns keep_M, bool.
  """
  signal_M = losses.group_has_signal(reward_N, group_N, num_groups, valid_N)
  size_M = jax.ops.segment_sum(valid_N.astype(int), group_N, num_groups)
  key = jax.random.key(jnp.sum(num_tokens_N).astype(int))
  # A group without valid trajectories comes last.
  draw_M = jnp.where(size_M > 0, jax.random.uniform(key, (num_groups,)), 2.0)
  return jnp.argsort(jnp.argsort(draw_M)) < jnp.sum(signal_M)


ARMS = {
  "signal": {},
  "all": {"advantage.keep": "all"},
  "random": {"advantage.keep": f"{__name__}:{keep_random.__name__}"},
}


def get_config(arm: str = "signal"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "filters"
  return arms.apply_arm(c, ARMS, arm)
