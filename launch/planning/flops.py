"""Floating-point operations, counted from the model's shape.

A compiler's own count misses the bodies of loops and all kernels. Two counts
are kept apart: what the model needs (the usual 6 N per token and its attention
over the tokens of a segment, which utilisation is measured by) and what the
program executes (what a backward pass computes again, and attention over keys
that turn out to be masked). Products only: two operations per multiplication.
Norms, softmax and rotation are left out, below one percent.
"""

import dataclasses

from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig

_SPLASH_BLOCK = 512  # tokens, of queries and of keys


@dataclasses.dataclass(frozen=True)
class Flops:
  """Operations of all chips together, in one run of a program."""

  needed: float
  executed: float


def layer_weights(c: ModelConfig) -> int:
  """Numbers of one layer that a token is multiplied by."""
  queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
  attention = 2 * c.width * queries + 2 * c.width * keys
  return attention + 3 * c.width * c.mlp_width


def head_weights(c: ModelConfig) -> int:
  """Numbers of the output matrix."""
  return c.width * c.vocab_size


def num_params(c: ModelConfig) -> int:
  """Numbers to train in the products and the embedding; norms are left out."""
  embeddings = 1 if c.tied_embedding else 2
  return c.num_layers * layer_weights(c) + embeddings * head_weights(c)


def attention(c: ModelConfig, keys: float) -> float:
  """Scores of a token with so many keys, and the mix of their values."""
  return 4 * c.num_heads * c.head_dim * keys


def gradient(
  c: ModelConfig,
  compute: ComputeConfig,
  *,
  tokens: int,
  row_length: int,
  segment: float,
  kernel: bool,
  frozen: bool = False,
) -> Flops:
  """Forward and backward over packed rows, and the log-probabilities.

  `segment` is the mean length that a token's segment has; `kernel` says that
  attention is a kernel which never keeps its scores. Where the weights are
  `frozen` under adapters, none has a gradient, and adapters cost nothing.
  """
  layers, head = c.num_layers * layer_weights(c), head_weights(c)
  passes = 2 if frozen else 3  # forward, to the inputs, to the weights
  needed = 2 * passes * (layers + head) + 3 * c.num_layers * attention(
    c, segment / 2
  )
  keys = keys_visited(compute, row_length, kernel=kernel)
  attended = c.num_layers * attention(c, keys)
  again = 0.0
  if compute.remat in ("full", "attention"):
    # The layer's last product is no input of any gradient.
    again = 2 * (layers - c.num_layers * c.width * c.mlp_width)
  attended_again = attended * _attention_again(compute.remat, kernel)
  executed = 2 * passes * layers + again + 3 * attended + attended_again
  executed += 2 * (passes + 1) * head  # its logits are computed again
  return Flops(needed * tokens, executed * tokens)


def _attention_again(remat: str, kernel: bool) -> float:
  """What attention computes beyond one pass forward and two backward.

  In passes forward. The kernel's two backward parts each compute the scores and
  their slopes: 7 products for the 4 of two passes. A policy that drops what
  attention made runs it forward again; one that keeps it and not the scores
  computes these.
  """
  dropped = remat in ("full", "dots")
  if kernel:
    return 1.5 + dropped
  return {"attention": 0.5}.get(remat, float(dropped))


def keys_visited(
  compute: ComputeConfig, row_length: int, *, kernel: bool
) -> float:
  """Keys per query that are multiplied, whether or not the mask hides them."""
  block = compute.attention_block
  if kernel:
    block = min(block or _SPLASH_BLOCK, row_length)
  if not block:
    return row_length
  return (row_length + block) / 2


def extend(
  c: ModelConfig, *, tokens: int, context: int, with_head: bool
) -> Flops:
  """Tokens fed to slots whose caches have `context` positions, all
  attended to.
  """
  weights = c.num_layers * layer_weights(c)
  if with_head:
    weights += head_weights(c)
  each = 2 * weights + c.num_layers * attention(c, context)
  return Flops(each * tokens, each * tokens)
