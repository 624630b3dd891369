"""REINFORCE with returns per turn on a guessing game; only `losses`.

The secret is a number from 0 to 6. After each of three guesses the player hears
if the secret is higher or lower. A right guess earns 1 and ends the game. The
policy is a table of logits, one row for each range that can hold the secret.
"""

import jax
import jax.numpy as jnp

from agentrl_jax import losses

NUMBERS, TURNS, GAMES = 7, 3, 256


def play(table, key):
  """Plays GAMES games at once: ranges, guesses, hits, turns played; [B, T]."""
  keys = jax.random.split(key, TURNS + 1)
  secret_B = jax.random.randint(keys[0], GAMES, 0, NUMBERS)
  low_B, high_B = jnp.zeros(GAMES, int), jnp.full(GAMES, NUMBERS - 1)
  running_B, turns = jnp.ones(GAMES, bool), []
  for turn_key in keys[1:]:
    guess_B = jax.random.categorical(turn_key, table[low_B, high_B])
    hit_B = guess_B == secret_B
    turns.append((low_B, high_B, guess_B, hit_B, running_B))
    running_B &= ~hit_B
    higher_B = guess_B < secret_B
    low_B = jnp.where(higher_B, jnp.maximum(low_B, guess_B + 1), low_B)
    high_B = jnp.where(higher_B, high_B, jnp.minimum(high_B, guess_B - 1))
  return [jnp.stack(x, axis=1) for x in zip(*turns, strict=True)]


def loss(table, low_BT, high_BT, guess_BT, advantage_BT, mask_BT):
  """Computes -A log pi; the ratio is 1, as the sampler is the policy."""
  logprob_BT = losses.token_logprob(table[low_BT, high_BT], guess_BT)
  log_ratio_BT = losses.log_ratio(logprob_BT, logprob_BT, mask_BT)
  loss_BT = losses.reinforce(log_ratio_BT, advantage_BT)
  return losses.token_mean(loss_BT, mask_BT).value()


@jax.jit
def step(table, key):
  """Plays, computes each turn's discounted return, and updates once."""
  low_BT, high_BT, guess_BT, hit_BT, mask_BT = play(table, key)
  turn_BT = jnp.broadcast_to(jnp.arange(TURNS), mask_BT.shape)  # 1 token each
  return_BT = losses.turn_returns(hit_BT, mask_BT, turn_BT, discount=0.8)
  advantage_BT = losses.whiten(return_BT, mask_BT)
  played = (low_BT, high_BT, guess_BT, advantage_BT, mask_BT)
  won = jnp.any(hit_BT & mask_BT, axis=1).mean()
  return table - 4.0 * jax.grad(loss)(table, *played), won


table = jnp.zeros((NUMBERS, NUMBERS, NUMBERS))
for number, key in enumerate(jax.random.split(jax.random.key(0), 401)):
  table, won = step(table, key)
  if number % 100 == 0:
    print(f"step {number}: {won:.2f} of the games won")  # noqa: T201
