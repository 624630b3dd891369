"""The policy's log-probability of every token of a packed batch."""

import jax
import jax.numpy as jnp

from agentrl_jax.data.batch import Batch
from agentrl_jax.losses import chunked_token_logprob
from agentrl_jax.model.policy import Params, Policy


def token_logprobs(
  policy: Policy,
  params: Params,
  batch: Batch,
  *,
  temperature: float,
  chunk_size: int,
) -> tuple[jax.Array, jax.Array]:
  """Log-probability and entropy in nats, each [B, T] float32.

  Entry t is about token t given those before it, under the distribution that
  the sampler draws from at `temperature`. The first token of a row has no
  token before it: its entries are 0.
  """
  hidden_BTD = policy.hidden(params, batch.token, batch.position, batch.segment)
  logprob, entropy = chunked_token_logprob(
    hidden_BTD[:, :-1],
    policy.output_matrix(params),
    batch.token[:, 1:],
    temperature=temperature,
    chunk_size=chunk_size,
  )
  first = ((0, 0), (1, 0))
  return jnp.pad(logprob, first), jnp.pad(entropy, first)
