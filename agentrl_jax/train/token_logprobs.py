"""The policy's log-probability of the trained tokens of a packed batch."""

import jax
import jax.numpy as jnp

from agentrl_jax.data.batch import Batch
from agentrl_jax.losses import trained_token_logprob
from agentrl_jax.model.policy import Params, Policy


def token_logprobs(
  policy: Policy,
  params: Params,
  batch: Batch,
  *,
  temperature: float,
  chunk_size: int,
  entropy_gradient: bool = False,
) -> tuple[jax.Array, jax.Array]:
  """Log-probability and entropy in nats, each [B, T] float32, 0 off the mask.

  Entry t is about token t given those before it, under the distribution that
  the sampler draws from at `temperature`. A row's first token has no token
  before it and is never trained on.
  """
  hidden_BTD = policy.hidden(params, batch.token, batch.position, batch.segment)
  logprob, entropy = trained_token_logprob(
    hidden_BTD[:, :-1],
    policy.output_matrix(params),
    batch.token[:, 1:],
    batch.mask[:, 1:],
    temperature=temperature,
    chunk_size=chunk_size,
    entropy_gradient=entropy_gradient,
  )
  first = ((0, 0), (1, 0))
  return jnp.pad(logprob, first), jnp.pad(entropy, first)
