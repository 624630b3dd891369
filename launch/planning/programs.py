"""The programs of a run, traced for chips that are not present.

They are the ones that the run itself compiles: the learner's update, and the
engine's prefill and decode. Only shapes are traced; nothing is allocated.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentrl_jax.data.batch import Batch
from agentrl_jax.data.grammar.grammars import BITS
from agentrl_jax.data.packing import PrefixTree
from agentrl_jax.model import cache as kv
from agentrl_jax.model import quantization, sharding
from agentrl_jax.model.attention import cached
from agentrl_jax.model.attention.packed import choose
from agentrl_jax.model.attention.paged import CORES
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import STATES_PER_SLOT, EngineConfig
from agentrl_jax.rollout.engine import drafts
from agentrl_jax.rollout.engine import programs as engine
from agentrl_jax.rollout.engine.cache import arrays
from agentrl_jax.train.token_logprobs import TOKEN_CHUNK
from agentrl_jax.train.train_batch import TrainBatch, batch_shardings
from launch.config.settings import Settings
from launch.planning import roofline
from launch.planning.roofline import Attempts, Flops, Load, PackedRow
from launch.run.reinforcement import make_learner

# Of an update, where calls follow grammars: how many there are is known from
# the answers alone, and the table is a small part of the memory.
MASKS = 4096
STEPS = 1000  # of the schedule, on which no shape depends


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """One program, ready to be compiled."""

  name: str
  trace: Callable[[], jax.stages.Traced]
  mesh: Mesh
  tokens: int  # that a run of it is about
  flops: Flops
  load: Load | None = None  # of a gradient
  holds: tuple[str, ...]  # residents that are among its arguments
  unknown_turns: int = 1  # of a loop whose end depends on data, at most
  answers: int = 0  # that decode at once; 0: it is not a decode program
  # Bytes of a chip's cache that attention leaves out, as no answer fills them.
  unread: float = 0


def learner_programs(
  settings: Settings, mesh: Mesh, *, attempts: Attempts | None = None
) -> list[Program]:
  """Programs of an update: gradient of a micro-batch, and its application.

  `attempts` are as in `learner_load`.
  """
  policy = learner_policy(settings, mesh)
  learner = make_learner(settings, policy, steps=STEPS)
  batch = settings.batch
  micro_batch = abstract_batch(settings, mesh)
  widest = max(settings.model.head_dim, settings.model.global_head_dim)
  kernel, _ = choose(settings.compute, "tpu", widest)
  load = learner_load(settings, attempts, kernel)
  chunk = min(settings.loss.token_chunk or TOKEN_CHUNK, batch.row_length)
  return [
    Program(
      name="gradient",
      trace=lambda: learner.traced(micro_batch)["gradient"],
      mesh=mesh,
      tokens=load.tokens,
      flops=roofline.gradient(
        settings.model,
        settings.compute,
        load,
        kernel=kernel,
        frozen=bool(settings.lora),
      ),
      load=load,
      holds=("params", "gradients", "frozen params"),
      unknown_turns=-(-batch.row_length // chunk),
    ),
    Program(
      name="apply",
      trace=lambda: learner.traced(micro_batch)["apply"],
      mesh=mesh,
      tokens=0,
      flops=Flops(0, 0),
      holds=("params", "gradients", "optimizer"),
    ),
  ]


def learner_load(
  settings: Settings, attempts: Attempts | None, kernel: str
) -> Load:
  """Counts tokens and keys of a micro-batch.

  Without `attempts`, rows are full and nothing is shared, as if each were part
  of an attempt of `episode.max_tokens`. `kernel` is attention's.
  """
  batch, row_length = settings.batch, settings.batch.row_length
  tokens = batch.micro_batch * row_length
  of_layers = functools.partial(roofline.mean_over_layers, settings.model)
  if attempts is None:
    longest = settings.episode.max_tokens
    length, computed, stands_for = row_length, 1.0 * tokens, 1.0 * tokens
    needed, seen = (
      of_layers(functools.partial(roofline.keys_needed, each))
      for each in (longest, row_length)
    )
  else:
    row = packed_row(settings, attempts)
    length, needed = attempts.length, of_layers(row.keys_needed)
    computed, stands_for = (
      batch.micro_batch * each for each in (row.computed, row.tokens)
    )
    seen = needed
  return Load(
    attempts=attempts,
    tokens=tokens,
    computed=computed,
    of_trajectories=stands_for,
    is_tree=batch.sharing > 1,
    keys_needed=needed,
    keys_visited=roofline.keys_visited(
      settings.compute, row_length, kernel, seen=seen, length=length
    ),
    imbalance=roofline.imbalance(row_length, length, settings.mesh["sequence"]),
  )


def packed_row(settings: Settings, attempts: Attempts) -> PackedRow:
  """Returns the mean row of the config's updates, of equal attempts."""
  batch = settings.batch
  return roofline.pack_attempts(
    attempts, row_length=batch.row_length, sharing=batch.sharing
  )


def learner_policy(settings: Settings, mesh: Mesh) -> Policy:
  """Makes the trained policy, including adapters."""
  return Policy(settings.model, settings.compute, mesh, settings.lora)


def _abstract_reference(settings: Settings, mesh: Mesh) -> dict[str, Any]:
  """Fields that a divergence over the whole vocabulary reads."""
  batch, loss = settings.batch, settings.loss
  if not loss.kl_coefficient or loss.kl_estimator != "full":
    return {}
  width, dtype = settings.reference_model.width, settings.compute.dtype
  output = (width, settings.reference_model.vocab_size)
  where: Any = batch_shardings(mesh).reference_output
  return {
    "reference_hidden": shape(
      (batch.micro_batch, batch.row_length, width),
      dtype,
      sharding.batch_sharding(mesh),
    ),
    "reference_output": shape(output, dtype, where),
  }


def abstract_batch(settings: Settings, mesh: Mesh) -> TrainBatch:
  """A micro-batch of the config's shape, with the fields its loss reads."""
  batch, loss = settings.batch, settings.loss
  where = sharding.batch_sharding(mesh)

  def array(dtype: Any, length: int = batch.row_length * batch.sharing) -> Any:
    return shape((batch.micro_batch, length), dtype, where)

  whole, real, flag = array(jnp.int32), array(jnp.float32), array(jnp.bool_)
  critic = loss.has_critic
  constrained = settings.sampling.calls != "free"
  words = -(-settings.model.vocab_size // BITS)
  everywhere = sharding.replicated(mesh)
  table: Any = shape((MASKS, words), jnp.uint32, everywhere)
  number: Any = shape((), jnp.float32, everywhere)
  experts: Any = None
  is_tree = batch.sharing > 1
  if settings.engine.router_replay:
    *sizes, kind = settings.model.experts_kind
    experts = shape((batch.micro_batch, batch.row_length, *sizes), kind, where)
  return TrainBatch(
    Batch(
      token=whole,
      position=whole,
      segment=whole,
      mask=flag,
      behavior_logprob=real,
      trajectory=whole,
      turn=whole,
      policy_slot=whole,
      allowed=whole if constrained else None,
      mask_MX=table if constrained else None,
      experts=None if is_tree else experts,
      tree=_abstract_tree(array, batch.row_length, constrained, experts)
      if is_tree
      else None,
    ),
    real,
    reference_logprob=real
    if loss.kl_coefficient and loss.kl_place == "loss"
    else None,
    **_abstract_reference(settings, mesh),
    proximal_logprob=real if loss.proximal == "recomputed" else None,
    weight=real if loss.task_share == "equal" else None,
    token_weight=real if loss.token_weight else None,
    left_out=number if loss.needs_advantage else None,
    old_value=real if critic else None,
    value_target=real if critic else None,
    value_mask=flag if critic else None,
    task=whole,
    version=whole,
  )


def _abstract_tree(
  array: Callable[..., Any], row_length: int, constrained: bool, experts: Any
) -> PrefixTree:
  whole = array(jnp.int32, row_length)
  return PrefixTree(
    token=whole,
    position=whole,
    end=whole,
    parent=whole,
    mask=array(jnp.bool_, row_length),
    place=array(jnp.int32),
    allowed=whole if constrained else None,
    experts=experts,
  )


def rollout_programs(
  settings: Settings,
  mesh: Mesh,
  *,
  dtype: str,
  policy_slot: int = 0,
  attempts: Attempts | None = None,
) -> list[Program]:
  """Prefill and decode of a policy slot, at their largest shapes.

  `attempts` say how long answers are and what those of a group share; without
  them every slot is full.
  """
  policy = Policy(settings.model, settings.compute, mesh)
  config, c = settings.engine, settings.model
  slots = config.slots[policy_slot]
  params = abstract_weights(policy, mesh, dtype, config.weights)
  cache = slot_cache(config, policy, mesh, policy_slot)
  fed = max(config.slot_sizes(min(slots, config.prefill_slots)))
  chunk = config.prefill_chunks[-1]
  row = shape((fed,), np.int32)
  answers, unread = slots, 0.0
  if attempts is not None:
    answers = answers_at_once(config, policy_slot, attempts)
    shared, own = _shared_tokens(config, attempts)
    # A page that answers share is fetched by each core of a chip.
    each = own + shared * min(CORES, attempts.num) / attempts.num
    unread = config.steps_per_sync * _unread(settings, cache, answers, each)
  holds = (
    f"weights of policy slot {policy_slot}",
    f"cache of policy slot {policy_slot}",
  )
  return [
    Program(
      name="prefill",
      trace=lambda: engine.prefill.trace(
        policy,
        params,
        cache,
        shape((fed, chunk), np.int32),
        row,
        row,
        _abstract_table(config, fed),
        row if c.has_states else None,
      ),
      mesh=mesh,
      tokens=fed * chunk,
      flops=roofline.extend(
        c, tokens=fed * chunk, context=config.context, with_head=False
      ),
      holds=holds,
    ),
    Program(
      name="decode",
      trace=_decode_trace(config, policy, params, cache, slots),
      mesh=mesh,
      tokens=answers * config.steps_per_sync,
      flops=roofline.extend(
        c,
        tokens=slots * config.steps_per_sync,
        context=attempts.running if attempts else config.context,
        with_head=True,
      ),
      holds=(*holds, f"drafts of policy slot {policy_slot}"),
      answers=answers,
      unread=unread,
    ),
  ]


def _decode_trace(
  config: EngineConfig, policy: Policy, params: Any, cache: Any, slots: int
) -> Callable[[], jax.stages.Traced]:
  """Returns how the decode program of all slots is traced."""
  state = shape((slots, len(engine.STATE)), np.int32)
  before = (policy, params, cache, state)
  after = (
    state,
    shape((slots,), np.bool_),
    shape((slots,), np.int32),
    _abstract_table(config, slots),
    shape((), np.int32),
  )
  if not config.draft_tokens:
    return lambda: engine.decode.trace(
      *before, *after, num_steps=config.steps_per_sync
    )
  return lambda: engine.decode_drafted.trace(
    *before,
    abstract_drafts(config, slots),
    *after,
    plan=config.draft_plan(slots),
    num_steps=config.steps_per_sync,
  )


def _abstract_table(config: EngineConfig, slots: int) -> Any:
  """Shape of the page table of these slots."""
  return shape((slots, config.pages_of(config.context)), np.int32)


def answers_at_once(
  config: EngineConfig, policy_slot: int, attempts: Attempts
) -> int:
  """Counts the answers that fit a policy slot's cache at the same time.

  Attempts of a group share the full pages of their prompt. The last page of an
  answer is half full on average.
  """
  slots = config.slots[policy_slot]
  shared, own = _shared_tokens(config, attempts)
  size = config.tokens_per_page
  own_pages = min(own + size / 2, config.context - shared)
  tokens = config.num_pages(policy_slot) * size
  return min(slots, int(tokens / (shared / attempts.num + own_pages)))


def _shared_tokens(config: EngineConfig, attempts: Attempts) -> tuple[int, int]:
  """Tokens of a running answer in pages that others share, and the rest."""
  size = config.tokens_per_page
  shared = attempts.prompt // size * size
  return shared, attempts.running - shared


def _unread(
  settings: Settings, cache: Any, answers: float, filled: float
) -> float:
  """Bytes of one chip's cache that attention of a decode step leaves out.

  `filled` are the tokens of each of so many answers.
  """
  config, compute = settings.engine, settings.compute
  kernel, _ = cached.choose(compute, "tpu", config.tokens_per_page)
  if kernel != "ragged":
    return 0.0
  num_slots, _, length, _ = kv.pages_of(cache).shape
  of_tokens = functools.partial(roofline.cached, settings.model)
  read = of_tokens(lambda window: min(filled, window or filled))
  share: float = answers * read / of_tokens(lambda _: num_slots * length)
  of_states = bytes_per_chip(
    [layer[:2] for layer in cache if kv.has_state(layer)]
  )
  copies = of_states * (1 - 1 / STATES_PER_SLOT)
  return (bytes_per_chip(cache) - of_states) * (1 - share) + copies


def abstract_drafts(config: EngineConfig, slots: int) -> Any:
  """Shapes of what drafts of these slots are looked up in."""
  return jax.eval_shape(lambda: drafts.empty_drafts(slots, config.context))


def abstract_weights(
  policy: Policy, mesh: Mesh, dtype: str, weights: str
) -> Any:
  """Shapes of params to decode with, split as on a rollout server."""
  apart = jax.eval_shape(
    lambda params: sharding.copied(
      policy.unstacked(quantization.quantize(params, weights)), dtype
    ),
    policy.abstract_params(),
  )
  return jax.tree.map(
    lambda leaf, where: shape(leaf.shape, leaf.dtype, where),
    apart,
    sharding.param_shardings(apart, mesh),
  )


def slot_cache(
  config: EngineConfig, policy: Policy, mesh: Mesh, policy_slot: int
) -> Any:
  """Shapes of a policy slot's cache: heads split, slots not."""
  cache = jax.eval_shape(
    lambda: policy.empty_cache(
      config.num_pages(policy_slot),
      config.tokens_per_page,
      keeps_experts=config.router_replay,
      num_states=config.num_states(policy_slot),
    )
  )
  heads = sharding.RULES["kv_heads"]
  split = NamedSharding(mesh, PartitionSpec(None, heads))  # type: ignore[no-untyped-call]
  return jax.tree.map(
    lambda leaf, where: shape(leaf.shape, leaf.dtype, where),
    cache,
    arrays.places(cache, split),
  )


def shape(
  sizes: tuple[int, ...], dtype: Any, where: NamedSharding | None = None
) -> jax.ShapeDtypeStruct:
  """Abstract array; without a sharding, the program chooses one."""
  return jax.ShapeDtypeStruct(sizes, dtype, sharding=where)  # type: ignore[no-untyped-call]


def bytes_per_chip(tree: Any) -> int:
  """Bytes of sharded arrays on one chip."""
  leaves: Sequence[Any] = jax.tree.leaves(tree)
  return sum(
    int(np.prod(leaf.sharding.shard_shape(leaf.shape)))
    * np.dtype(leaf.dtype).itemsize
    for leaf in leaves
  )
