"""Losses for tokens that an expert chose: imitation, before any reward.

Like `policy_gradient`: [B, T] in, [B, T] out; neither masks nor averages.

Axes: B rows, T tokens. Entry [b, t] is about token t given tokens < t.
"""

import chex
import jax

from agentrl_jax.losses.precision import widen


def negative_log_likelihood(logprob_BT: jax.Array) -> jax.Array:
  """-log pi(token): what behaviour cloning minimises, in nats.

    d loss / d log pi = -1

  the gradient of `policy_gradient.reinforce` on policy with every advantage 1:
  imitation treats each of the expert's tokens as a token that paid off.
  """
  chex.assert_rank(logprob_BT, 2)
  return -widen(logprob_BT)
