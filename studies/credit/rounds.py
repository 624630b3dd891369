"""One round of preferences from recorded attempts: SWEET-RL and its rivals.

All arms start from one policy and its attempts, and end with the same number
of steps of DPO (arXiv:2305.18290) on the policy's table:

- trajectory DPO: pairs of attempts at one secret, the best with each worse one;
- turn DPO: at every recorded turn the present policy gives 16 answers, which
  are ranked by some advantage; four pairs of the better and the worse half are
  drawn (SWEET-RL, arXiv:2503.15478). The 16 answers are generated, and count.

A round of trajectory DPO with as many attempts as have the same number of
answers stands beside it. The learning rate of DPO is chosen for every arm from
the same ones, on seeds that the result does not use.

Axes: P pairs, N recorded turns, K = 16 answers at a turn, U turns.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentrl_jax import losses
from studies.credit import learned as credit_learned
from studies.credit import preference
from studies.credit.exact import Episodes, TablePolicy, draw_calls, join, play

ANSWERS = 16  # at a turn
PAIRS = 4  # of a turn
BATCH = 256  # pairs of a step
LIKELIHOOD = 0.01  # weight of the preferred side's log-likelihood
RATES = (0.01, 0.03, 0.1, 0.3)
TUNING_SEEDS = (100, 101)
# Scores of answers at recorded turns, [N, K].
Ranking = Callable[["Recorded", np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Recorded:
  """All turns of some episodes; `secret_N` is for training alone."""

  policy: TablePolicy
  turn_N: np.ndarray
  set_N: np.ndarray
  secret_N: np.ndarray
  seed: int


@dataclasses.dataclass(frozen=True)
class Pairs:
  """Calls of the preferred and of the rejected side, [2, P, U], in states."""

  turn: np.ndarray
  set: np.ndarray
  call: np.ndarray
  mask: np.ndarray  # bool


@dataclasses.dataclass(frozen=True)
class Round:
  """Result of a round."""

  expected_return: float
  attempts: int
  answers: int  # of the attempts, and those drawn at recorded turns
  pairs: int


def attempt_pairs(episodes: Episodes) -> Pairs:
  """Pairs whole attempts by their returns."""
  side_2P = np.stack(credit_learned.attempt_pairs(episodes))
  turn_U = np.arange(episodes.set_NU.shape[1])
  set_2PU = episodes.set_NU[side_2P]
  return Pairs(
    turn=np.broadcast_to(turn_U, set_2PU.shape),
    set=set_2PU,
    call=episodes.call_NU[side_2P],
    mask=episodes.played_NU[side_2P],
  )


def answer_pairs(
  recorded: Recorded, rank: Ranking, rng: np.random.Generator
) -> Pairs:
  """Draws answers at every recorded turn, and pairs of the two halves.

  Only state and answers go into the pairs: the secret ends here.
  """
  policy_UXA = recorded.policy.probability_UXA
  policy_NA = policy_UXA[recorded.turn_N, recorded.set_N]
  call_KN = [draw_calls(policy_NA, rng) for _ in range(ANSWERS)]
  call_NK = np.stack(call_KN, axis=1)
  pair_NKK = preference.pair_halves(
    rank(recorded, call_NK), np.ones(call_NK.shape, bool)
  )
  chance = np.where(pair_NKK, rng.random(pair_NKK.shape), -1.0)
  chance = chance.reshape(len(call_NK), -1)
  drawn = np.argpartition(-chance, PAIRS, axis=1)[:, :PAIRS]
  n_P, place_P = np.nonzero(np.take_along_axis(chance, drawn, axis=1) >= 0)
  sides_P = np.unravel_index(drawn[n_P, place_P], (ANSWERS, ANSWERS))
  state = [
    np.broadcast_to(x_N[n_P][:, None], (2, len(n_P), 1))
    for x_N in (recorded.turn_N, recorded.set_N)
  ]
  call_2P = np.stack([call_NK[n_P, side] for side in sides_P])
  return Pairs(
    *state, call=call_2P[..., None], mask=np.ones((2, len(n_P), 1), bool)
  )


def recorded_turns(policy: TablePolicy, episodes: Episodes, seed: int):
  """Returns the turns that were played, with the secrets of their episodes."""
  n_N, turn_N = np.nonzero(episodes.played_NU)
  return Recorded(
    policy, turn_N, episodes.set_NU[n_N, turn_N], episodes.secret_N[n_N], seed
  )


def _dpo_loss(logit_UXA, batch):
  reference_2BU, turn, place, call, mask = batch
  logprob_UXA = jax.nn.log_softmax(logit_UXA)
  logprob_2BU = logprob_UXA[turn, place, call]
  (chosen_B, any_B), (rejected_B, _) = (
    (reward_BS[:, 0], any_BS[:, 0])
    for reward_BS, any_BS in (
      preference.implicit_reward(ratio_BU, mask_BU, average=False)
      for ratio_BU, mask_BU in zip(
        logprob_2BU - reference_2BU, mask, strict=True
      )
    )
  )
  loss_B = preference.preference_loss(
    chosen_B, rejected_B, any_B, beta=credit_learned.BETA
  )
  likelihood = losses.token_mean(
    losses.negative_log_likelihood(logprob_2BU[0]), mask[0]
  )
  return losses.pair_mean(loss_B, any_B).value() + (
    LIKELIHOOD * likelihood.value()
  )


@functools.partial(jax.jit, static_argnames="learning_rate")
def _descend(logit_UXA, batches, *, learning_rate: float):
  optimizer = optax.adam(learning_rate)

  def step(carry, batch):
    logit_UXA, state = carry
    gradient_UXA = jax.grad(_dpo_loss)(logit_UXA, batch)
    change_UXA, state = optimizer.update(gradient_UXA, state)
    return (logit_UXA + change_UXA, state), None

  carry = (logit_UXA, optimizer.init(logit_UXA))
  return jax.lax.scan(step, carry, batches)[0][0]


def train_on_pairs(
  policy: TablePolicy,
  pairs: Pairs,
  *,
  learning_rate: float,
  steps: int,
  rng: np.random.Generator,
) -> TablePolicy:
  """Returns the policy after DPO against itself; itself if there is no pair."""
  number = pairs.call.shape[1]
  if not number:
    return policy
  place_WB = rng.integers(number, size=(steps, BATCH))
  columns = [
    np.moveaxis(x[:, place_WB], 0, 1)
    for x in (pairs.turn, pairs.set, pairs.call, pairs.mask)
  ]
  logprob_UXA = np.log(policy.probability_UXA).astype(np.float32)
  reference_W2BU = logprob_UXA[tuple(columns[:3])]
  logit_UXA = _descend(
    jnp.asarray(policy.logit_UXA, jnp.float32),
    (reference_W2BU, *map(jnp.asarray, columns)),
    learning_rate=learning_rate,
  )
  return TablePolicy(policy.rules, np.asarray(logit_UXA))


def rank_by_exact(recorded: Recorded, call_NK: np.ndarray) -> np.ndarray:
  """A(h, a) by enumeration: the ceiling."""
  advantage_UXA = recorded.policy.exact.advantage_UXA
  advantage_NA = advantage_UXA[recorded.turn_N, recorded.set_N]
  return np.take_along_axis(advantage_NA, call_NK, axis=1)


def rank_by_exact_given_secret(
  recorded: Recorded, call_NK: np.ndarray
) -> np.ndarray:
  """A(h, a | c) by enumeration."""
  advantage_NA = recorded.policy.exact.secret_advantage_UXCA[
    recorded.turn_N, recorded.set_N, recorded.secret_N
  ]
  return np.take_along_axis(advantage_NA, call_NK, axis=1)


def rank_at_random(recorded: Recorded, call_NK: np.ndarray) -> np.ndarray:
  """Nothing but noise, the same for equal answers."""
  rng = np.random.default_rng(recorded.seed)
  score_NA = rng.random((len(call_NK), recorded.policy.rules.shape[-1]))
  return np.take_along_axis(score_NA, call_NK, axis=1)


def rank_by_critic(episodes: Episodes, *, sees: str, by_turn: bool = True):
  """Returns a ranking by SWEET-RL's critic, fitted to the episodes."""

  def rank(recorded: Recorded, call_NK: np.ndarray, *, steps: int):
    policy, seed = recorded.policy, recorded.seed
    params = credit_learned.preference_critic(
      policy, episodes, sees=sees, steps=steps, seed=seed, by_turn=by_turn
    )
    secret_N = credit_learned.seen_secret(
      episodes, sees, np.random.default_rng((seed, 1))
    )
    played_NU = episodes.played_NU
    input_NF = credit_learned.inputs_of(policy.rules, episodes, secret_N)
    shape = call_NK.shape
    input_NKF = np.broadcast_to(
      input_NF[played_NU][:, None], (*shape, input_NF.shape[-1])
    )
    return credit_learned.preference_advantages(
      params,
      policy,
      input_NKF,
      np.broadcast_to(recorded.set_N[:, None], shape),
      np.broadcast_to(recorded.turn_N[:, None], shape),
      call_NK,
    )

  return rank


TRAJECTORY, TRAJECTORY_EQUAL = (
  "trajectory DPO",
  "trajectory DPO, as many answers",
)
SWEET: Mapping[str, Mapping[str, object]] = {
  "SWEET with secret": {"sees": "secret"},
  "SWEET without": {"sees": "nothing"},
  "SWEET with random secret": {"sees": "random secret"},
  "SWEET with secret, mean of all tokens": {"sees": "secret", "by_turn": False},
}
RANKINGS: Mapping[str, Ranking] = {
  "ranked by exact advantage": rank_by_exact,
  "ranked by exact advantage given secret": rank_by_exact_given_secret,
  "ranked at random": rank_at_random,
}
ROUNDS = (TRAJECTORY, TRAJECTORY_EQUAL, *SWEET, *RANKINGS)


def run_round(
  start: TablePolicy,
  arm: str,
  *,
  seed: int,
  batches: int,
  attempts: int,
  critic_steps: int,
  steps: int,
  rates: Sequence[float] = RATES,
) -> list[Round]:
  """Plays, pairs and trains; returns a result for every learning rate.

  Args:
    start: the policy that plays, and that DPO starts from.
    arm: one of `ROUNDS`.
    seed: of the attempts, which all arms but `TRAJECTORY_EQUAL` share.
    batches: of a group of attempts for every secret.
    attempts: of a group.
    critic_steps: of the critic's fit.
    steps: of DPO.
    rates: learning rates of DPO.
  """
  rng = np.random.default_rng(seed)
  if arm == TRAJECTORY_EQUAL:
    batches *= 1 + ANSWERS
  episodes = join(
    [play(start, attempts=attempts, rng=rng) for _ in range(batches)]
  )
  answers = int(episodes.played_NU.sum())
  if arm in (TRAJECTORY, TRAJECTORY_EQUAL):
    pairs = attempt_pairs(episodes)
  else:
    rank = RANKINGS.get(arm) or functools.partial(
      rank_by_critic(episodes, **SWEET[arm]), steps=critic_steps
    )
    pairs = answer_pairs(recorded_turns(start, episodes, seed), rank, rng)
    answers *= 1 + ANSWERS
  found = []
  for rate in rates:
    policy = train_on_pairs(
      start,
      pairs,
      learning_rate=rate,
      steps=steps,
      rng=np.random.default_rng((seed, 2)),
    )
    found.append(
      Round(
        policy.exact.expected_return,
        len(episodes.secret_N),
        answers,
        pairs.call.shape[1],
      )
    )
  return found


def run_rounds(
  start: TablePolicy, arm: str, *, seeds: int, **settings
) -> tuple[float, list[Round]]:
  """Returns the learning rate of an arm, and its rounds with seeds 0, 1, ..."""
  tuning = [
    [r.expected_return for r in run_round(start, arm, seed=s, **settings)]
    for s in TUNING_SEEDS
  ]
  best = int(np.mean(tuning, axis=0).argmax())
  return RATES[best], [
    run_round(start, arm, seed=s, rates=RATES[best : best + 1], **settings)[0]
    for s in range(seeds)
  ]
