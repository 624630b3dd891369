"""Log-probabilities, entropies and values of the tokens of a packed batch.

With a prefix tree, all three are computed once per node, from the state of the
node's parent, and then spread over the trajectories: so the gradients of
trajectories add up where their branches meet.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from agentrl_jax.data.batch import Batch
from agentrl_jax.data.packing import PrefixTree
from agentrl_jax.losses import AllowedTokens, fused_token_logprob, reverse_kl
from agentrl_jax.losses.logprobs.allowed_tokens import BITS
from agentrl_jax.model import sharding
from agentrl_jax.model.attention.packed import platform_of
from agentrl_jax.model.decoder import capped
from agentrl_jax.model.policy import Params, Policy

_Pair = tuple[jax.Array, jax.Array]

TOKEN_CHUNK = 128  # that `loss.token_chunk=0` stands for on accelerators
# Bytes of float32 logits that a CPU computes at once. It adds every chunk to
# the whole gradient of the output matrix, and computes logits twice for more
# than one chunk: at 512 tokens and 49,152 entries, four take 1.7 times as long.
_CPU_LOGITS = 256 << 20


def token_logprobs(
  policy: Policy,
  params: Params,
  batch: Batch,
  *,
  temperature: float,
  chunk_size: int,
  entropy_gradient: bool = False,
  hidden_BTD: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Returns log-probability and entropy in nats, [B, T], 0 off the mask.

  Entry t is about token t given those before it, under the distribution that
  the sampler draws from at `temperature`: over the tokens that a grammar
  allowed, if the answer had to follow one. The first token of a row has no
  token before it and is never trained on. A `chunk_size` of 0 is `TOKEN_CHUNK`,
  and on a CPU a whole row if its logits are few. `hidden_BTD` saves the pass
  through the layers if the caller has made it already.
  """
  if hidden_BTD is None:
    hidden_BTD = hidden_states(policy, params, batch)
  fused = functools.partial(
    fused_token_logprob,
    temperature=temperature,
    chunk_size=chunk_size or chunk_of(policy, *hidden_BTD.shape[:2]),
    entropy_gradient=entropy_gradient,
    logit_cap=policy.config.logit_cap,
  )
  if sharding.is_split(policy.mesh):
    fused = _on_devices(fused, policy.mesh)
  output_DV, tree = policy.output_matrix(params), batch.tree
  mask_MX = _words(batch.mask_MX, output_DV.shape[1])
  if tree is not None:
    values = fused(
      _of_parents(hidden_BTD, tree, policy.mesh),
      output_DV,
      tree.token,
      tree.mask,
      _allowed(tree.allowed, mask_MX),
    )
    return tuple(_of_trajectories(x_BT, batch, policy.mesh) for x_BT in values)
  logprob_BT, entropy_BT = fused(
    hidden_BTD,
    output_DV,
    _next(batch.token),
    _next(batch.mask),
    _allowed(_next(batch.allowed), mask_MX),
  )
  return _previous(logprob_BT), _previous(entropy_BT)


def chunk_of(policy: Policy, num_rows: int, length: int) -> int:
  """Returns the tokens of a chunk that `loss.token_chunk=0` stands for.

  On a CPU rows are cut into as few equal chunks as `_CPU_LOGITS` allows.
  """
  if platform_of(policy.mesh) != "cpu":
    return TOKEN_CHUNK
  fitting = _CPU_LOGITS // (4 * num_rows * policy.config.vocab_size)
  return -(-length // -(-length // max(fitting, TOKEN_CHUNK)))


def _on_devices(
  fused: Callable[..., _Pair], mesh: Mesh
) -> Callable[..., _Pair]:
  """Wraps `fused` in shard_map over rows, tokens and vocabulary.

  The output matrix is gathered along its width only, and cast before it moves;
  its gradient is summed over devices once.
  """

  def on_one_device(hidden_BTD, output_DV, token_BT, mask_BT, allowed) -> _Pair:
    output_DV = output_DV.astype(hidden_BTD.dtype)
    # Typed as varying over rows before the gather, so that the sum over rows
    # is taken of the part of the gradient that stays on this device.
    output_DV = jax.lax.pcast(
      output_DV, ("data", "expert", "sequence"), to="varying"
    )
    return fused(
      hidden_BTD,
      _gather_width(output_DV),
      token_BT,
      mask_BT,
      allowed,
      vocab_axis="tensor",
    )

  rows, replicated = sharding.BATCH_SPEC, PartitionSpec()

  def on_all_devices(
    hidden_BTD, output_DV, token_BT, mask_BT, allowed: AllowedTokens | None
  ) -> _Pair:
    return jax.shard_map(
      on_one_device,
      mesh=mesh,
      in_specs=(
        sharding.spec("rows", "tokens", None),
        sharding.spec("width", "vocab"),
        rows,
        rows,
        allowed and AllowedTokens(rows, replicated),
      ),
      out_specs=(rows, rows),
    )(hidden_BTD, output_DV, token_BT, mask_BT, allowed)

  return on_all_devices


# XLA for TPUs cuts a reduce-scatter into rounds of whole tiles. If it finds no
# even cut, as for the 1187 tiles of 151,936 entries, it sums all of the matrix
# on all chips, which moves twice as much. For 64 chips a multiple of 32 tiles
# has one, for 256 chips a multiple of 256.
_SCATTERED_ENTRIES = 256 * 128


@jax.custom_vjp
def _gather_width(output_DV: jax.Array) -> jax.Array:
  """Gathers the shards of an output matrix; its gradient is scattered."""
  return jax.lax.all_gather(output_DV, "fsdp", axis=0, tiled=True)


def _scatter_width(_: None, slope_DV: jax.Array) -> tuple[jax.Array]:
  num_entries = slope_DV.shape[1]
  padding = -num_entries % _SCATTERED_ENTRIES
  shard_DV = jax.lax.psum_scatter(
    jnp.pad(slope_DV, ((0, 0), (0, padding))),
    "fsdp",
    scatter_dimension=0,
    tiled=True,
  )
  return (shard_DV[:, :num_entries],)


_gather_width.defvjp(
  lambda shard_DV: (_gather_width(shard_DV), None), _scatter_width
)


def _words(mask_MX: jax.Array | None, vocab_size: int) -> jax.Array | None:
  """Cuts or pads masks to a vocabulary: a teacher's may be padded more."""
  if mask_MX is None:
    return None
  missing = -(-vocab_size // BITS) - mask_MX.shape[1]
  if missing <= 0:
    return mask_MX[:, : mask_MX.shape[1] + missing]
  return jnp.pad(mask_MX, ((0, 0), (0, missing)))


def _allowed(
  allowed_BT: jax.Array | None, mask_MX: jax.Array | None
) -> AllowedTokens | None:
  if allowed_BT is None or mask_MX is None:
    return None
  return AllowedTokens(allowed_BT, mask_MX)


def _of_parents(
  hidden_BTD: jax.Array, tree: PrefixTree, mesh: Mesh | None
) -> jax.Array:
  """Returns the state that each node was sampled from, [B, T, D]."""
  return _take_within_rows(
    hidden_BTD, tree.parent, mesh, sharding.spec("rows", "tokens", None)
  )


def _of_trajectories(
  x_BT: jax.Array, batch: Batch, mesh: Mesh | None
) -> jax.Array:
  """Spreads values of nodes over the trajectories' tokens; 0 off the mask."""
  x_BL = _take_within_rows(x_BT, batch.tree.place, mesh, sharding.BATCH_SPEC)
  return jnp.where(batch.mask, x_BL, 0)


def _take_within_rows(
  x: jax.Array, index_BL: jax.Array, mesh: Mesh | None, split: PartitionSpec
) -> jax.Array:
  """Takes entries [B, T] of x along the tokens of each row, [B, L]."""

  def take(x: jax.Array, index_BL: jax.Array) -> jax.Array:
    if mesh is not None and mesh.shape["sequence"] > 1:
      x = jax.lax.all_gather(x, "sequence", axis=1, tiled=True)
    index = index_BL.reshape(*index_BL.shape, *[1] * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1)

  if not sharding.is_split(mesh):
    return take(x, index_BL)
  return jax.shard_map(
    take, mesh=mesh, in_specs=(split, sharding.BATCH_SPEC), out_specs=split
  )(x, index_BL)


def reference_divergence(
  policy: Policy,
  params: Params,
  batch: Batch,
  hidden_BTD: jax.Array,
  reference: tuple[jax.Array, jax.Array],
  *,
  temperature: float,
  chunk_size: int,
) -> jax.Array:
  """Returns `losses.reverse_kl` of each token in nats, [B, T], 0 off the mask.

  `reference` has the hidden states of the reference, [B, T, E], and its output
  matrix, [E, V]; its logits have the policy's cap. Where the vocabularies are
  padded to different sizes, entries that both have are compared. The logits of
  `chunk_size` tokens of each row are in memory at once, and are computed again
  for the gradient.
  """
  tree, mesh = batch.tree, policy.mesh
  output_DV = policy.output_matrix(params).astype(hidden_BTD.dtype)
  other_BTE, other_EV = reference
  if tree is None:
    mask_BT, row_BT = _next(batch.mask), _next(batch.allowed)
  else:
    hidden_BTD = _of_parents(hidden_BTD, tree, mesh)
    other_BTE = _of_parents(other_BTE, tree, mesh)
    mask_BT, row_BT = tree.mask, tree.allowed
  num_entries = min(output_DV.shape[1], other_EV.shape[1])
  mask_MX, vocab_size = batch.mask_MX, output_DV.shape[1]
  cap = policy.config.logit_cap

  def divergence(hidden_BCD, other_BCE, mask_BC, row_BC) -> jax.Array:
    logits_BCV = capped(hidden_BCD @ output_DV, cap)
    if row_BC is not None and mask_MX is not None:
      allowed_BCV = AllowedTokens(row_BC, mask_MX).entries(vocab_size)
      logits_BCV = jnp.where(allowed_BCV, logits_BCV, -jnp.inf)
    others_BCV = capped(other_BCE @ other_EV.astype(other_BCE.dtype), cap)
    others_BCV = others_BCV[..., :num_entries]
    logits_BCV = logits_BCV[..., :num_entries]
    # The reference, too, is of the distribution that was sampled from.
    others_BCV = jnp.where(jnp.isneginf(logits_BCV), -jnp.inf, others_BCV)
    value_BC = reverse_kl(logits_BCV, others_BCV, temperature)
    return jnp.where(mask_BC, value_BC, 0)

  @jax.checkpoint
  def chunk(parts: tuple[jax.Array | None, ...]) -> jax.Array:
    mask_BC = parts[2]
    return jax.lax.cond(
      jnp.any(mask_BC),
      lambda: divergence(*parts),
      lambda: jnp.zeros(mask_BC.shape, jnp.float32),
    )

  parts = (hidden_BTD, other_BTE, mask_BT, row_BT)
  value_BT = _in_chunks(chunk, parts, chunk_size or TOKEN_CHUNK)
  if tree is not None:
    return _of_trajectories(value_BT, batch, mesh)
  return _previous(value_BT)


def _in_chunks(
  function: Callable[[tuple[jax.Array | None, ...]], jax.Array],
  parts: tuple[jax.Array | None, ...],
  size: int,
) -> jax.Array:
  """Maps chunks of tokens, [B, C, ...] each, to [B, C]; returns [B, T]."""
  num_rows, num_tokens = parts[0].shape[:2]
  size = max(min(size, num_tokens), 1)
  num_chunks = -(-num_tokens // size)

  def cut(x: jax.Array) -> jax.Array:
    padding = [(0, 0), (0, -num_tokens % size)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, padding)
    x = x.reshape(num_rows, num_chunks, size, *x.shape[2:])
    return jnp.moveaxis(x, 1, 0)

  value_KBC = jax.lax.map(function, jax.tree.map(cut, parts))
  value_BT = jnp.moveaxis(value_KBC, 0, 1).reshape(num_rows, num_chunks * size)
  return value_BT[:, :num_tokens]


def _next(x_BT: jax.Array | None) -> jax.Array | None:
  """Shifts left, so that entry t is about token t + 1; the last is 0.

  Token ids are shifted instead of hidden states, which are larger and split
  over devices.
  """
  return None if x_BT is None else jnp.pad(x_BT[:, 1:], ((0, 0), (0, 1)))


def _previous(x_BT: jax.Array) -> jax.Array:
  """Shifts right: the inverse of `_next`, entry t is about token t again."""
  return jnp.pad(x_BT[:, :-1], ((0, 0), (1, 0)))


def token_values(
  policy: Policy, params: Params, batch: Batch, hidden_BTD: jax.Array
) -> jax.Array:
  """Returns the critic's value before each trained token, 0 off the mask.

  Entry t is read from the hidden state that token t was sampled from.
  """
  value_BT = policy.value(params, hidden_BTD)
  if batch.tree is None:
    return jnp.where(batch.mask, _previous(value_BT), 0)
  value_BT = _take_within_rows(
    value_BT, batch.tree.parent, policy.mesh, sharding.BATCH_SPEC
  )
  return _of_trajectories(value_BT, batch, policy.mesh)


def hidden_states(policy: Policy, params: Params, batch: Batch) -> jax.Array:
  """Returns the last hidden states [B, T, D]; entry t predicts token t + 1.

  With a tree, entry t predicts the children of node t.
  """
  return routed_states(policy, params, batch)[0]


def routed_states(
  policy: Policy, params: Params, batch: Batch
) -> tuple[jax.Array, _Pair | None]:
  """Returns `hidden_states`, and how a batch's experts fit the policy's router.

  The latter are, of each trained token, [B, T]: whether it has experts; and the
  share of layers whose router would have chosen the same, 0 if it has none.
  """
  tree = batch.tree
  if tree is None:
    segments, experts = (batch.segment, None), batch.experts
    at = batch.token, batch.position
  else:
    segments, experts = (None, tree.end), tree.experts
    at = tree.token, tree.position
  hidden_BTD, same_LBT = policy.routed_hidden(params, *at, *segments, experts)
  if same_LBT is None:
    return hidden_BTD, None
  has_BT = (experts < policy.config.num_experts).all((2, 3))
  fit = has_BT.astype(jnp.float32), jnp.where(has_BT, same_LBT.mean(0), 0)
  if tree is not None:
    return hidden_BTD, tuple(
      _of_trajectories(x_BT, batch, policy.mesh) for x_BT in fit
    )
  return hidden_BTD, tuple(jnp.where(batch.mask, x_BT, 0) for x_BT in fit)
