"""Batch of packed rows, the input of the learner's jitted functions.

Axes: B rows, T tokens of a row. Entry t is about token t given those before it
in its segment. A row holds several trajectories one after the other; segment 0
is padding. M masks of X = ceil(V / 32) words of bits.
"""

import dataclasses

import jax

from agentrl_jax.data.packing import PrefixTree

jax.tree_util.register_dataclass(
  PrefixTree,
  data_fields=[field.name for field in dataclasses.fields(PrefixTree)],
  meta_fields=[],
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
  """Packed trajectories; fields are [..., B, T] unless they say otherwise.

  The fields of masks are None unless an answer had to follow a grammar. With a
  tree, its tokens are computed, T is a multiple of their number, and masks and
  experts are the tree's.
  """

  token: jax.Array  # int32
  position: jax.Array  # int32, from 0 within each segment
  segment: jax.Array  # int32, 1.. within each row, 0 is padding
  mask: jax.Array  # bool, sampled by the policy and trained on
  behavior_logprob: jax.Array  # float32, 0 off the mask
  trajectory: jax.Array  # int32, which trajectory of the batch; 0 on padding
  turn: jax.Array  # int32, which turn of the trajectory, observation included
  policy_slot: jax.Array  # int32, that sampled the token; 0 off the mask
  # int32, the token's row of `mask_MX`; row 0 allows all tokens.
  allowed: jax.Array | None = None
  mask_MX: jax.Array | None = None  # uint32, as in `data.grammar.grammars`
  # uint8 or uint16 [..., B, T, L, K], the experts of each token by layer, where
  # a rollout engine gave them; numbers beyond leave it to the router.
  experts: jax.Array | None = None
  tree: PrefixTree | None = None
