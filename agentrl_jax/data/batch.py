"""A batch of packed rows: what the learner's jitted functions take.

Axes: B rows, T tokens of a row. Entry t is about token t given those before it
in its segment. A row holds several trajectories one after the other; segment 0
is padding.
"""

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
  """Packed trajectories; every field is [..., B, T]."""

  token: jax.Array  # int32
  position: jax.Array  # int32, from 0 within each segment
  segment: jax.Array  # int32, 1.. within each row, 0 is padding
  mask: jax.Array  # bool, sampled by the policy and trained on
  behavior_logprob: jax.Array  # float32, 0 off the mask
  trajectory: jax.Array  # int32, which trajectory of the batch; 0 on padding
  turn: jax.Array  # int32, which turn of the trajectory, observation included
  slot: jax.Array  # int32, version slot that sampled the token; 0 off the mask
