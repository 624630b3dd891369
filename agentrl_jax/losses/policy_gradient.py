"""Per-token policy-gradient losses.

Each function maps [B, T] arrays to one [B, T] array and does nothing else: it
neither masks, nor averages, nor reads a config. `reductions` turns the result
into a number; `train.objective` picks which two to compose.

Axes: B rows, T tokens. Entry [b, t] is about token t given tokens < t.
Log-ratios are in nats and come from `ratios`, which zeroes them off the mask
and bounds them on it.
"""

import chex
import jax
import jax.numpy as jnp


def reinforce(log_ratio_BT: jax.Array, advantage_BT: jax.Array) -> jax.Array:
  """REINFORCE, corrected for who sampled: importance-weighted, unclipped.

    loss = -r A          d loss / d log pi = -r A

  with r = exp(log_ratio). On policy (r = 1) the gradient is that of
  -A log pi (Williams, 1992). A is treated as a constant.
  """
  _check(log_ratio_BT, advantage_BT)
  return -jnp.exp(log_ratio_BT) * jax.lax.stop_gradient(advantage_BT)


def clipped_surrogate(
  log_ratio_BT: jax.Array,
  advantage_BT: jax.Array,
  *,
  clip_low: float,
  clip_high: float,
  dual_clip: float | None = None,
) -> jax.Array:
  """The pessimistic surrogate of PPO, with a separate bound on each side.

    loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

  with r = exp(log_ratio) and A the advantage. Equal bounds are PPO
  (arXiv:1707.06347, eq. 7); a wider upper bound is the clip-higher of DAPO
  (arXiv:2503.14476, section 3.1). With dual_clip = c,

    loss = min(loss, -c A)  where A < 0

  bounds what a bad token that became much likelier may cost
  (arXiv:1912.09729, eq. 5); AgentRL takes 0.2, 0.2 and c = 3.

  The gradient is that of `reinforce` where neither bound binds, else 0:
  for A > 0 above 1 + clip_high, for A < 0 below 1 - clip_low and above c.

  Args:
    log_ratio_BT: log pi(token) - log mu(token), differentiable through pi.
    advantage_BT: treated as a constant.
    clip_low: in (0, 1).
    clip_high: positive.
    dual_clip: above 1 + clip_high; None leaves bad tokens unbounded.

  Returns:
    loss_BT, to be minimised.
  """
  _check(log_ratio_BT, advantage_BT)
  advantage_BT = jax.lax.stop_gradient(advantage_BT)
  ratio_BT = jnp.exp(log_ratio_BT)
  clipped_BT = jnp.clip(ratio_BT, 1 - clip_low, 1 + clip_high)
  loss_BT = -jnp.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
  if dual_clip is None:
    return loss_BT
  bounded_BT = jnp.minimum(loss_BT, -dual_clip * advantage_BT)
  return jnp.where(advantage_BT < 0, bounded_BT, loss_BT)


def _check(log_ratio_BT: jax.Array, advantage_BT: jax.Array) -> None:
  chex.assert_rank([log_ratio_BT, advantage_BT], 2)
  chex.assert_equal_shape([log_ratio_BT, advantage_BT])
