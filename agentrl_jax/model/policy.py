"""The policy as pure functions of plain params.

Params are a nested dict of arrays that jit, grad, optax and orbax take as they
are. flax's modules are rebuilt around them when a function is traced.

Params of all layers are stacked, [L, ...] in each leaf of `params["layers"]`:
a scan needs this form, and there is one leaf to shard and to save instead of L.
Dense layers before those with experts are a stack of their own: `STACKS`.
Decoding uses separate layers, since slicing would copy every weight for every
token: `to_decode` gives that form, with a tuple of L dicts. Every function here
takes either form.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from agentrl_jax.model import cache as kv
from agentrl_jax.model import compiler_options, experts, lora, sharding
from agentrl_jax.model.attention import packed
from agentrl_jax.model.attention.cached import Chunk, ChunkRows
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import DELTA, STACKS, ModelConfig
from agentrl_jax.model.decoder import turned
from agentrl_jax.model.layers import delta
from agentrl_jax.model.layers.loop import LayerLoop, each_layer
from agentrl_jax.model.layers.modules import Modules
from agentrl_jax.model.lora import NO_ADAPTERS, LoraConfig
from agentrl_jax.model.recurrent.ancestry import ancestry

Params = dict[str, Any]


class Policy:
  """Computations with a policy's params; holds none of them.

  Axes: B rows or slots, T tokens of a row, C tokens of a chunk, D width,
  V vocabulary, L layers.
  """

  def __init__(
    self,
    config: ModelConfig,
    compute: ComputeConfig,
    mesh: Mesh | None = None,
    adaptation: LoraConfig = NO_ADAPTERS,
  ):
    """`mesh` is the one that params and batches lie on; None for one device.

    With an `adaptation` of rank above 0, adapters are trained, and the params
    that they belong to stay fixed.
    """
    adaptation.check(config)
    self.config = config
    self.adaptation = adaptation
    self.compute = compute
    self.mesh = mesh
    # Of programs that gather or scatter params, for `jax.jit`.
    self.compiler_options = compiler_options.compiler_options(
      compute.compiler_options, mesh
    )
    self._modules = Modules(config, self.adaptation)
    self._loop = LayerLoop(config, compute, mesh)

  def init(self, key: jax.Array) -> Params:
    """Makes fresh float32 params."""
    return self._modules.init(key)

  def abstract_params(self) -> Params:
    """Returns the shapes and dtypes of params; allocates nothing."""
    return self._modules.abstract_params()

  def split(
    self, params: Params, key: jax.Array
  ) -> tuple[Params, Params | None]:
    """Splits params into trained and frozen ones; see `whole`.

    Without LoRA these are all params and None, else adapters and the rest.
    Params without adapters get fresh ones, which change nothing yet.
    """
    if not self.adaptation:
      return params, None
    if lora.is_adapted(params["layers"]):
      return lora.split(params)
    fresh = functools.partial(
      lora.init, self.adaptation, self.config, params, key
    )
    places = self.mesh and sharding.param_shardings(
      jax.eval_shape(fresh), self.mesh
    )
    made = jax.jit(fresh, out_shardings=places)()
    return lora.split(lora.joined(params, made))

  def abstract_split(self) -> tuple[Params, Params | None]:
    """Returns shapes and dtypes of trained and of frozen params.

    Frozen params are in the dtype of the computation.
    """
    params = self.abstract_params()
    if not self.adaptation:
      return params, None

    def split() -> tuple[Params, Params]:
      made = lora.init(self.adaptation, self.config, params, jax.random.key(0))
      zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
      trained, frozen = lora.split(lora.joined(zeros, made))
      return trained, sharding.in_dtype(frozen, self.compute.dtype)

    return jax.eval_shape(split)

  def whole(self, trained: Params, frozen: Params | None) -> Params:
    """Joins trained and frozen params; arrays are shared."""
    return trained if frozen is None else lora.joined(frozen, trained)

  def plain(self, params: Params) -> Params:
    """Returns params whose adapters are merged into their kernels."""
    if not lora.is_adapted(params["layers"]):
      return params
    return lora.merged(params, self.adaptation.scale)

  def unstacked(self, params: Params) -> Params:
    """Returns params with separate layers, in their order."""
    layers = tuple(each_layer(self.config, params))
    return {name: x for name, x in params.items() if name not in STACKS} | {
      "layers": layers
    }

  def to_decode(self, params: Params) -> Params:
    """Returns params with separate layers and, on one CPU, turned kernels.

    Every other form decodes too, only slower.
    """
    apart, mesh = self.unstacked(params), self.mesh
    if sharding.is_split(mesh) or packed.platform_of(mesh) != "cpu":
      return apart
    return apart | {"layers": tuple(map(turned, apart["layers"]))}

  def hidden(
    self,
    params: Params,
    token_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array | None,
    end_BT: jax.Array | None = None,
  ) -> jax.Array:
    """Hidden states [B, T, D] of packed rows; segment 0 is padding.

    Tokens see earlier tokens of their own segment only; positions count from
    0 within each. Rows of prefix trees have `end_BT` in place of segments, and
    tokens see their ancestors: see `data.packing`.
    """
    return self.routed_hidden(
      params, token_BT, position_BT, segment_BT, end_BT
    )[0]

  def routed_hidden(
    self,
    params: Params,
    token_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array | None,
    end_BT: jax.Array | None = None,
    expert_BTLK: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Computes `hidden` with tokens routed to the experts of `expert_BTLK`.

    See `experts.apply`. Returns also whether the router of each layer would
    have chosen the same experts, bool [L, B, T]; None without `expert_BTLK`.
    """
    attend = functools.partial(
      packed.attend,
      segment_BT=segment_BT,
      end_BT=end_BT,
      compute=self.compute,
      mesh=self.mesh,
    )
    remember = None
    if self.config.delta_heads:
      remember = functools.partial(
        delta.remember,
        config=self.config,
        rows=ancestry(segment_BT, end_BT),
        mesh=self.mesh,
      )
    see = self._window_of_rows(position_BT, is_tree=end_BT is not None)
    place = functools.partial(sharding.constrain, self.mesh)

    def follow(
      x_BTD: jax.Array,
      layer: Params,
      given: tuple[jax.Array | None, jax.Array | None],
      shared: tuple[jax.Array, ...] | None,
      is_local: bool | jax.Array,
      stack: str,
    ) -> tuple[jax.Array, tuple[jax.Array, ...], jax.Array | None]:
      replayed_BTK, input_BTP = given
      layer = self._folded(layer)
      layer = sharding.gathered(layer, self.mesh, self.compute.dtype)
      choices: list[jax.Array] = []
      apply_experts = self._apply_experts(
        None if replayed_BTK is None else choices, replayed_BTK
      )
      x_BTD, kv = self._modules.layer(layer, stack).train(
        x_BTD,
        position_BT,
        remember
        if stack == DELTA
        else functools.partial(attend, **see(is_local)),
        apply_experts,
        place,
        is_local,
        input_BTP,
        shared,
      )
      same = [experts.is_same(choice, replayed_BTK) for choice in choices]
      kept = kv if self.config.shared_kv_layers else ()
      return x_BTD, kept, same[0] if same else None

    replayed_LBTK = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), expert_BTLK)
    stem = self._modules.stem(params)
    x_BTD, input_LBTP = self._embed(params, token_BT, self.mesh)
    x_BTD, same_LBT = self._loop.run(
      follow, x_BTD, params, (replayed_LBTK, input_LBTP)
    )
    return stem.final_norm(x_BTD), same_LBT

  def _window_of_rows(
    self, position_BT: jax.Array, *, is_tree: bool
  ) -> Callable[[bool | jax.Array], dict[str, Any]]:
    """Returns what tells `packed.attend` of the window, by `is_local`."""
    window, length = self.config.window, position_BT.shape[1]
    if not 0 < window < length:
      return lambda _: {}
    key, of_local, of_others = "window", jnp.asarray(window), length
    if is_tree:
      key, of_others = "begin_BT", 0
      of_local = packed.first_visible(position_BT, window)

    def see(is_local: bool | jax.Array) -> dict[str, Any]:
      if isinstance(is_local, bool):
        return {key: of_local} if is_local else {}
      return {key: jnp.where(is_local, of_local, of_others)}

    return see

  def logits(
    self,
    params: Params,
    token_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
  ) -> jax.Array:
    """Logits [B, T, V]; entry t is about token t + 1."""
    return self.unembed(
      params, self.hidden(params, token_BT, position_BT, segment_BT)
    )

  def unembed(self, params: Params, hidden: jax.Array) -> jax.Array:
    """Maps hidden states [..., D] to logits [..., V] in float32."""
    return self._modules.stem(params).unembed(hidden)

  def value(self, params: Params, hidden: jax.Array) -> jax.Array:
    """Maps hidden states [..., D] to the critic's estimates [...]."""
    critic = {"critic": params["critic"]}
    critic = sharding.gathered(critic, self.mesh, "float32")
    return self._modules.stem(params | critic).value(hidden)

  def output_matrix(self, params: Params) -> jax.Array:
    """Returns the matrix of `unembed`, [D, V]."""
    if self.config.tied_embedding:
      return params["embedding"].T
    return params["head"]["kernel"]

  def empty_cache(
    self,
    num_pages: int,
    page_size: int,
    *,
    keeps_experts: bool = False,
    num_states: int | None = None,
  ) -> kv.KVCache:
    """Makes a cache of `num_pages` pages of `page_size` tokens."""
    return kv.empty_cache(
      self.config,
      num_pages,
      page_size,
      self.compute.dtype,
      keeps_experts=keeps_experts,
      num_states=num_states,
    )

  def extend(
    self,
    params: Params,
    cache: kv.KVCache,
    token_BC: jax.Array,
    start_B: jax.Array,
    length_B: jax.Array,
    page_BW: jax.Array | None = None,
    state_B: jax.Array | None = None,
  ) -> tuple[jax.Array, kv.KVCache]:
    """Feeds sequences their next tokens; returns hidden [B, C, D], the cache.

    The first `length_B[b]` tokens of row b go to positions from `start_B[b]`
    on; the rest of the row is padding: not written, and its hidden states mean
    nothing. A sequence of length 0 stays as it was. Without a page table, see
    `model.cache`, and without `state_B`, sequence b has page b alone and state
    b.
    """
    row_B = jnp.arange(len(token_BC))
    page_BW = row_B[:, None] if page_BW is None else page_BW
    state_B = row_B if state_B is None else state_B
    (hidden_BCD,), cache = self.extend_together(
      params, cache, [Chunk(token_BC, start_B, length_B, page_BW, state_B)]
    )
    return hidden_BCD, cache

  def extend_together(
    self, params: Params, cache: kv.KVCache, chunks: Sequence[Chunk]
  ) -> tuple[list[jax.Array], kv.KVCache]:
    """Feeds several chunks in one pass; returns hidden [B, C, D] of each.

    Products see the tokens of all chunks at once. A page may occur in several
    chunks: its keys and values of all of them are written before any is read.
    A state may, too: chunks continue it one after the other.
    """
    page_size = kv.pages_of(cache).shape[2]
    at = [chunk.positions(page_size) for chunk in chunks]
    rows = ChunkRows([chunk.token_BC.shape for chunk in chunks])
    position_BC = rows.join([position for position, _ in at])
    stem, written = self._modules.stem(params), []
    x_BCD, input_LBCP = self._embed(
      params, rows.join([chunk.token_BC for chunk in chunks]), None
    )

    def write(array_NKTH: jax.Array, entry_BCKH: jax.Array) -> jax.Array:
      for chunk, (_, write_BC), entry in zip(
        chunks, at, rows.split(entry_BCKH), strict=True
      ):
        array_NKTH = kv.write(array_NKTH, entry, write_BC, chunk.page_BW)
      return array_NKTH

    def attend(q: jax.Array, *cached: jax.Array, **how: Any):
      how |= {"compute": self.compute, "mesh": self.mesh}
      mixed = [
        chunk.attend(part, cached, position, **how)
        for chunk, (position, _), part in zip(
          chunks, at, rows.split(q), strict=True
        )
      ]
      return rows.join(mixed)

    def remember(inputs: delta.Inputs, pair: tuple[jax.Array, jax.Array]):
      mixed = []
      tokens = zip(*map(rows.split, inputs[:-1]), strict=True)
      for chunk, parts in zip(chunks, tokens, strict=True):
        of_chunk = delta.Inputs(*parts, inputs.taps_KCW)
        out, pair = delta.continue_chunk(pair, of_chunk, chunk, self.config)
        mixed.append(out)
      return rows.join(mixed), pair

    num_arrays = len(self.config.cached_shapes)
    for n, (layer, stack, source, is_local) in enumerate(
      zip(
        each_layer(self.config, params),
        self.config.layer_stacks,
        self.config.kv_sources,
        self.config.local_layers,
        strict=True,
      )
    ):
      window = self.config.window if is_local else 0
      arrays = cache[n] if source == n else written[source]
      kept = arrays[num_arrays:]
      choices: list[jax.Array] = []
      apply_experts = self._apply_experts(
        choices if kept else None, splits_rows=False
      )
      x_BCD, arrays = self._modules.layer(self._folded(layer), stack).extend(
        x_BCD,
        arrays[:num_arrays],
        position_BC,
        write,
        remember
        if stack == DELTA
        else functools.partial(attend, window=window),
        apply_experts,
        is_local,
        None if input_LBCP is None else input_LBCP[n],
      )
      if choices:
        kept = (write(kept[0], choices[0][:, :, None]),)
      written.append((*arrays, *kept) if source == n else ())
    return rows.split(stem.final_norm(x_BCD)), tuple(written)

  def _embed(
    self, params: Params, token_BT: jax.Array, mesh: Mesh | None
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns the first hidden states, and what each layer reads [L, B, T, P].

    The latter is None where layers read hidden states alone.
    """
    look_up = functools.partial(
      _look_up, token_BT=token_BT, mesh=mesh, dtype=self.compute.dtype
    )
    x_BTD = look_up(params["embedding"]) * self.config.embedding_scale
    if not self.config.layer_input_dim:
      return x_BTD, None
    entry_BTM = look_up(params["layer_embedding"])
    inputs = {"layer_inputs": params["layer_inputs"]}
    gathered = sharding.gathered(inputs, mesh, self.compute.dtype)
    stem = self._modules.stem(params | gathered)
    return x_BTD, stem.layer_inputs(x_BTD, entry_BTM)

  def _apply_experts(
    self,
    choices: list[jax.Array] | None,
    replayed_BTK: jax.Array | None = None,
    *,
    splits_rows: bool = True,
  ) -> Callable[[experts.Experts, jax.Array], jax.Array]:
    """Returns `experts.apply`; the router's choice is added to `choices`."""

    def apply(module: experts.Experts, x_BTD: jax.Array) -> jax.Array:
      y_BTD, choice_BTK = experts.apply(
        module,
        x_BTD,
        config=self.config,
        mesh=self.mesh,
        splits_rows=splits_rows,
        replayed_BTK=replayed_BTK,
        gives_choice=choices is not None,
      )
      if choices is not None:
        choices.append(choice_BTK)
      return y_BTD

    return apply

  def _folded(self, layer: Params) -> Params:
    """Merges a layer's adapters into its kernels, if it has any."""
    if not lora.is_adapted(layer):
      return layer
    return lora.folded(layer, self.adaptation.scale)


def num_params(params: Params) -> int:
  """Counts the numbers to train."""
  return sum(int(jnp.size(leaf)) for leaf in jax.tree.leaves(params))


def _look_up(
  embedding_VD: jax.Array, token_BT: jax.Array, mesh: Mesh | None, dtype: str
) -> jax.Array:
  """Looks up the embedding of each token, [B, T, D] in `dtype`.

  A table that is split over devices never moves. Each device looks up the
  tokens of its `fsdp` group in its own vocabulary entries and channels, and
  sends every token's channels to the device of that token. Traffic has the size
  of the result.
  """
  if not sharding.is_split(mesh):
    return jnp.take(embedding_VD, token_BT, axis=0).astype(dtype)
  table = sharding.spec_on(mesh, "vocab", "width")
  return jax.shard_map(
    functools.partial(_look_up_shard, dtype=dtype, over=table[0]),
    mesh=mesh,
    in_specs=(table, sharding.BATCH_SPEC),
    out_specs=sharding.spec("rows", "tokens", None),
  )(embedding_VD, token_BT)


def _look_up_shard(
  shard_VD: jax.Array, token_BT: jax.Array, *, dtype: str, over: Any
) -> jax.Array:
  # `over` are the mesh axes that split the vocabulary.
  # Rows of the whole group, few bytes, by the channels of this device.
  token_BT = jax.lax.all_gather(token_BT, "fsdp", axis=0, tiled=True)
  num_entries = shard_VD.shape[0]
  entry_BT = token_BT - jax.lax.axis_index(over) * num_entries
  is_held_BT = (entry_BT >= 0) & (entry_BT < num_entries)
  x_BTD = jnp.take(shard_VD, jnp.where(is_held_BT, entry_BT, 0), axis=0)
  x_BTD = jnp.where(is_held_BT[..., None], x_BTD, 0).astype(dtype)
  x_BTD = jax.lax.psum(x_BTD, over)
  return jax.lax.all_to_all(x_BTD, "fsdp", 0, 2, tiled=True)
