"""GRPO on a bandit with four questions and five answers; only `losses`."""

import jax
import jax.numpy as jnp

from agentrl_jax import losses

QUESTIONS, ANSWERS, GROUP_SIZE = 4, 5, 8
REWARDS = jax.random.uniform(jax.random.key(1), (QUESTIONS, ANSWERS))
question_N = jnp.repeat(jnp.arange(QUESTIONS), GROUP_SIZE)  # N = 32 samples
all_N = jnp.ones(question_N.shape, bool)


def loss(table, answer_N, behavior_N1, advantage_N):
  """Computes PPO's surrogate; every sample is a row of one token."""
  logprob_N1 = losses.token_logprob(table[question_N, None], answer_N[:, None])
  log_ratio_N1 = losses.log_ratio(logprob_N1, behavior_N1, all_N[:, None])
  loss_N1 = losses.clipped_surrogate(
    log_ratio_N1, advantage_N[:, None], clip_low=0.2, clip_high=0.2
  )
  return losses.token_mean(loss_N1, all_N[:, None]).value()


@jax.jit
def step(table, key):
  """Samples answers, computes advantages per question, updates twice."""
  answer_N = jax.random.categorical(key, table[question_N])
  reward_N = REWARDS[question_N, answer_N]
  advantage_N = losses.group_advantage(
    reward_N, question_N, num_groups=QUESTIONS, valid_N=all_N
  )
  behavior_N1 = losses.token_logprob(table[question_N, None], answer_N[:, None])
  for _ in range(2):
    table -= 2.0 * jax.grad(loss)(table, answer_N, behavior_N1, advantage_N)
  return table, reward_N.mean() / REWARDS.max(axis=1).mean()


table = jnp.zeros((QUESTIONS, ANSWERS))
for number, key in enumerate(jax.random.split(jax.random.key(0), 201)):
  table, share = step(table, key)
  if number % 50 == 0:
    print(f"step {number}: {share:.2f} of the best reward")  # noqa: T201
