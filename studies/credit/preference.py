"""Losses on pairs of which one is preferred (DPO, SWEET-RL), and their pairs.

`implicit_reward` sums a trajectory's log-ratios of policy to reference;
`preference_loss` compares the two of a pair.

  chosen_P, any_P = implicit_reward(chosen_log_ratio_BT, mask_BT, average=False)

Pairs are those of a group's attempts by their rewards (`pair_with_best`), or
those of answers at one turn by an estimate of their advantage (`pair_halves`).

The log-ratios are those of policy to reference, from `ratios.log_ratio`. One
row is one trajectory, or several packed ones.

Axes: B rows, T tokens, S trajectories (segments) of a row, U turns of a
trajectory, P pairs, N trajectories or turns, K answers that were sampled at one
turn.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import (
  check_masked,
  look_up,
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
  turn-wise advantages), which does not depend on its length; with the turns as
  `segment_BT` it returns the advantages of a trained policy. Without `turn_BT`
  a trajectory is one turn: `average` then divides by all its tokens, as
  SWEET-RL's released code does. That is another loss: it divides the sum over
  the turns by their number (if their lengths are equal), so that of two
  attempts with the same advantage per turn the longer one is not better.

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


def pair_with_best(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  lowest_chosen: float | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Pairs each trajectory with the best one of its group, which is preferred.

    chosen_n = the first n' of n's group with the highest reward
    pair_n   = r_n < r_chosen, and r_chosen >= lowest_chosen if it is given

  The pairs that SWEET-RL's released code makes from attempts at one task
  (facebookresearch/sweet_rl, evaluate_code.py), where an attempt has to pass
  all tests to be chosen: `lowest_chosen` is 1 there. A group of one, and a
  group whose rewards are all equal, have no pair.

  Args:
    reward_N: one per trajectory; not read where invalid. A group with a reward
      of NaN has no pair.
    group_N: integers in [0, num_groups).
    num_groups: fixed when compiled; groups may be empty.
    valid_N: bool.
    lowest_chosen: the reward from which on a trajectory may be chosen; None for
      no limit.

  Returns:
    (chosen_N, pair_N): the place of the preferred trajectory, 0 where there is
    no pair; and, as a bool, the trajectories that are the rejected one of a
    pair. Both are constants.
  """
  check_masked(valid_N, reward_N, group_N, rank=1)
  reward_N = jax.lax.stop_gradient(widen(reward_N))
  place_N = jnp.arange(len(valid_N))
  best_M = jax.ops.segment_max(
    jnp.where(valid_N, reward_N, -jnp.inf), group_N, num_groups
  )
  best_N = look_up(best_M, group_N)
  is_best_N = valid_N & (reward_N == best_N)
  first_M = jax.ops.segment_min(
    jnp.where(is_best_N, place_N, len(place_N)), group_N, num_groups
  )
  pair_N = valid_N & (reward_N < best_N)
  if lowest_chosen is not None:
    pair_N = pair_N & (best_N >= lowest_chosen)
  first_N = first_M.at[group_N].get(mode="fill", fill_value=0)
  return jnp.where(pair_N, first_N, 0), pair_N


def pair_halves(score_NK: jax.Array, valid_NK: jax.Array) -> jax.Array:
  """Pairs the better half of the answers at a turn with the worse half.

    pair_nij = answer i is in the upper half of turn n, j in the lower half,
               and score_ni > score_nj

  SWEET-RL (arXiv:2503.15478) ranks 16 answers by their advantage and trains on
  pairs that are drawn evenly from these, by DPO. Its released code
  (generate_random_pairs_from_ranks.py) makes a pair from two answers of equal
  scores as well, in the order of their places; here they have no pair. Of an
  odd number of answers the one in the middle is in neither half.

  Args:
    score_NK: the advantage of each answer; not read where invalid. A turn with
      a score of NaN has no pair.
    valid_NK: bool.

  Returns:
    pair_NKK, bool: the second axis is the preferred answer, the third the
    rejected one.
  """
  check_masked(valid_NK, score_NK)
  score_NK = jnp.where(valid_NK, jax.lax.stop_gradient(widen(score_NK)), 0)
  broken_N1 = jnp.any(jnp.isnan(score_NK), axis=1, keepdims=True)
  worst_first_NK = jnp.argsort(
    jnp.where(valid_NK, score_NK, jnp.inf), axis=1, stable=True
  )
  rank_NK = jnp.argsort(worst_first_NK, axis=1)
  count_N1 = jnp.sum(valid_NK, axis=1, keepdims=True)
  # Those that are not valid come last, behind the upper half.
  usable_NK = valid_NK & ~broken_N1
  upper_NK = usable_NK & (rank_NK >= (count_N1 + 1) // 2)
  lower_NK = usable_NK & (rank_NK < count_N1 // 2)
  higher_NKK = score_NK[:, :, None] > score_NK[:, None, :]
  return upper_NK[:, :, None] & lower_NK[:, None, :] & higher_NKK
