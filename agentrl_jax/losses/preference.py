"""Losses on pairs of trajectories of which one is preferred (DPO, SWEET-RL).

`implicit_reward` sums a trajectory's log-ratios of policy to reference;
`preference_loss` compares the two of a pair.

  chosen_P, any_P = implicit_reward(chosen_log_ratio_BT, mask_BT, average=False)

The log-ratios are those of policy to reference, from `ratios.log_ratio`. One
row is one trajectory, or several packed ones.

Axes: B rows, T tokens, S trajectories (segments) of a row, U turns of a
trajectory, P pairs.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import (
  check_masked,
  require,
  require_positive,
  widen,
)
from agentrl_jax.losses.reductions import (
  in_a_segment,
  require_ids,
  segment_totals,
)


def implicit_reward(
  log_ratio_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None = None,
  num_segments: int = 1,
  *,
  turn_BT: jax.Array | None = None,
  num_turns: int = 1,
  average: bool,
) -> tuple[jax.Array, jax.Array]:
  """Returns the log-ratio of policy to reference of each trajectory.

    sum over its turns u of sum_t x_t                    DPO
    sum over its turns u of (sum_t x_t) / length_u       SWEET-RL, if `average`

  The first is DPO's (arXiv:2305.18290, section 4) over all of a trajectory's
  own tokens, beta left out. In the second a turn's term is the advantage of
  that turn, by the parametrisation of SWEET-RL (arXiv:2503.15478, on learning
  turn-wise advantages), which does not depend on its length; with one turn per
  row it returns the advantages of a trained policy. Without `turn_BT` a
  trajectory is one turn: `average` then divides by all its tokens, as
  SWEET-RL's released code does.

    d reward / d log pi(token) = 1, or 1 / length_u

  Args:
    log_ratio_BT: x, of policy to reference, differentiable.
    mask_BT: bool, the policy's own tokens.
    segment_BT: integers where rows are packed; a token with an id outside
      [0, num_segments) belongs to none.
    num_segments: S, fixed when compiled.
    turn_BT: integers, counted within a trajectory; likewise.
    num_turns: U, at most so many per trajectory, fixed when compiled.
    average: whether a turn counts by the mean of its tokens or their sum.

  Returns:
    (reward_BS, any_BS): the second is True for trajectories with a token.
    Unless rows are packed, S is 1, and [:, 0] has one number per pair.

  Raises:
    ValueError: num_turns without turn_BT, or num_segments without segment_BT.
  """
  require_ids("turn", turn_BT, num_turns)
  require_ids("segment", segment_BT, num_segments)
  check_masked(mask_BT, log_ratio_BT)
  ids = [x for x in (segment_BT, turn_BT) if x is not None]
  chex.assert_equal_shape([mask_BT, *ids])
  if turn_BT is not None:
    mask_BT = in_a_segment(mask_BT, turn_BT, num_turns)
    segment_BT = jnp.zeros_like(turn_BT) if segment_BT is None else segment_BT
    segment_BT = segment_BT * num_turns + turn_BT
  total, length = segment_totals(
    log_ratio_BT, mask_BT, segment_BT, num_segments * num_turns
  )
  if average:
    total = total / jnp.maximum(length, 1)
  per_turn = (total.shape[0], num_segments, num_turns)
  return (
    jnp.sum(total.reshape(per_turn), axis=-1),
    jnp.any(length.reshape(per_turn) > 0, axis=-1),
  )


def preference_loss(
  chosen_reward_P: jax.Array,
  rejected_reward_P: jax.Array,
  valid_P: jax.Array,
  *,
  beta: float,
  label_smoothing: float = 0.0,
) -> jax.Array:
  """Negative log-likelihood of the preferences, by the policy's rewards.

    loss = -(1 - s) log sigmoid(beta m) - s log sigmoid(-beta m)
    m = reward(chosen) - reward(rejected)

  with s = label_smoothing: the Bradley-Terry model of DPO (arXiv:2305.18290,
  eq. 7), and of SWEET-RL (arXiv:2503.15478). With s, the share of labels that
  are taken to be wrong, the margin has a finite optimum (conservative DPO,
  https://ericmitchell.ai/cdpo.pdf).

    d loss / d m = -beta (sigmoid(-beta m) - s)

  beta m is the margin to report, reduced by `reductions.pair_mean`.

  Args:
    chosen_reward_P: as from `implicit_reward`, differentiable; not read where
      invalid.
    rejected_reward_P: likewise, of the other trajectory of the pair.
    valid_P: bool; leave out pairs of which either has no tokens.
    beta: positive; a larger beta stays nearer to the reference.
    label_smoothing: at least 0 and below 1/2.

  Returns:
    loss_P, in nats, 0 where invalid.

  Raises:
    ValueError: a beta or smoothing out of its range.
  """
  require_positive("beta", beta)
  require(
    "label_smoothing",
    label_smoothing,
    "at least 0 and below 0.5: from half on, the rejected one would be "
    "preferred",
    lambda x: 0 <= x < 0.5,
  )
  check_masked(valid_P, chosen_reward_P, rejected_reward_P, rank=1)
  margin_P = widen(chosen_reward_P) - widen(rejected_reward_P)
  margin_P = beta * jnp.where(valid_P, margin_P, 0)
  loss_P = -(1 - label_smoothing) * jax.nn.log_sigmoid(margin_P)
  if label_smoothing:
    loss_P = loss_P - label_smoothing * jax.nn.log_sigmoid(-margin_P)
  return jnp.where(valid_P, loss_P, 0)
