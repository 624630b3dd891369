"""What the policy and its critic say about the tokens of a packed batch."""

import jax
import jax.numpy as jnp

from agentrl_jax.data.batch import Batch
from agentrl_jax.losses import fused_token_logprob
from agentrl_jax.model.policy import Params, Policy


def token_logprobs(
  policy: Policy,
  params: Params,
  batch: Batch,
  *,
  temperature: float,
  chunk_size: int,
  vocab_chunk_size: int | None = None,
  entropy_gradient: bool = False,
  hidden_BTD: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Log-probability and entropy in nats, each [B, T] float32, 0 off the mask.

  Entry t is about token t given those before it, under the distribution that
  the sampler draws from at `temperature`. A row's first token has no token
  before it and is never trained on. `hidden_BTD` saves the pass through the
  layers where it was made already.
  """
  if hidden_BTD is None:
    hidden_BTD = hidden_states(policy, params, batch)
  logprob, entropy = fused_token_logprob(
    hidden_BTD[:, :-1],
    policy.output_matrix(params),
    batch.token[:, 1:],
    batch.mask[:, 1:],
    temperature=temperature,
    chunk_size=chunk_size,
    vocab_chunk_size=vocab_chunk_size,
    entropy_gradient=entropy_gradient,
  )
  first = ((0, 0), (1, 0))
  return jnp.pad(logprob, first), jnp.pad(entropy, first)


def token_values(
  policy: Policy, params: Params, batch: Batch, hidden_BTD: jax.Array
) -> jax.Array:
  """What the critic expects before each trained token, [B, T], 0 off the mask.

  Entry t is read off the hidden state that token t was drawn from.
  """
  value_BT = jnp.pad(policy.value(params, hidden_BTD[:, :-1]), ((0, 0), (1, 0)))
  return jnp.where(batch.mask, value_BT, 0)


def hidden_states(policy: Policy, params: Params, batch: Batch) -> jax.Array:
  """The last hidden states [B, T, D]; entry t is what follows token t."""
  return policy.hidden(params, batch.token, batch.position, batch.segment)
