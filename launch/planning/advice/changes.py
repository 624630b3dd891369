"""Changes of a config and of its slices that free memory, cheapest first."""

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_jax.model.attention.splash import SLOTS
from agentrl_jax.model.sharding import row_shares
from agentrl_jax.train.token_logprobs import TOKEN_CHUNK
from launch.config.settings import Settings
from launch.planning.chips import CHIPS, Slice, slices_of
from launch.planning.programs import packed_groups
from launch.planning.search import (
  estimate,
  gradient_bytes,
  kept_bytes,
  meshes_of,
  state_bytes,
  with_mesh,
  with_rows,
)
from launch.planning.study import RESERVE, Deployment

# Meshes of a slice that are compiled, the fastest by formula first.
_MESHES = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
  """Config keys to set, slices to rent, and the purpose of both."""

  effect: str
  keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  learner: Slice | None = None
  rollout: Slice | None = None

  @property
  def flags(self) -> str:
    """The change as flags of launch.plan, quoted for a shell."""
    words = [
      f"--{name}={slice_.name}"
      for name, slice_ in (
        ("topology", self.learner),
        ("rollout_topology", self.rollout),
      )
      if slice_ is not None
    ]
    words += [
      f"--config.{key}={str(value).replace(' ', '')}"
      for key, value in self.keys.items()
    ]
    return shlex.join(words)

  def after(self, first: "Change") -> "Change":
    """Joins two changes; where both set a key, this one counts."""
    return Change(
      effect="; ".join(e for e in (first.effect, self.effect) if e),
      keys={**first.keys, **self.keys},
      learner=self.learner or first.learner,
      rollout=self.rollout or first.rollout,
    )


NO_CHANGE = Change(effect="")


def room_of(slice_: Slice) -> float:
  """Bytes of a chip that a program and its residents may take."""
  return slice_.chip.memory * (1 - RESERVE)


def learner_changes(s: Settings) -> Iterator[Change]:
  """Yields changes of settings that free the learner's memory, cheapest first.

  None changes what is learned, but for rounding by bfloat16.
  """
  rows, shares = s.batch.micro_batch, row_shares(s.mesh)
  length, chunk = s.batch.row_length, s.loss.token_chunk or TOKEN_CHUNK
  for applies, key, value, effect in (
    (
      s.compute.dtype == "float32",
      "compute.dtype",
      "bfloat16",
      "half the activations",
    ),
    (
      s.compute.remat != "full",
      "compute.remat",
      "full",
      "keeps one input per layer",
    ),
    (
      not s.compute.scan_layers,
      "compute.scan_layers",
      True,
      "temporaries of one layer",
    ),
    (rows > shares, "train.micro_batch", shares, "one row per share"),
    (chunk > 512, "loss.token_chunk", 512, "fewer logits at once"),
    (chunk > 128, "loss.token_chunk", 128, "fewer logits at once"),
    (
      bool(s.loss.kl_coefficient) and s.reference.place == "resident",
      "reference.place",
      "offloaded",
      "the reference in the hosts' memory",
    ),
    (
      length // 2 >= s.episode.max_tokens,
      "train.row_length",
      length // 2,
      "half the activations",
    ),
  ):
    if applies:
      yield Change(keys={key: value}, effect=effect)


def rollout_changes(s: Settings) -> Iterator[Change]:
  """Yields changes of settings that free an engine's memory, cheapest first."""
  page = s.engine.page_size
  for part in (2, 4, 8):
    if s.engine.has_pages:
      tokens = tuple(
        max(1, n // (part * page)) * page for n in s.engine.cache_tokens
      )
      yield Change(
        keys={"engine.cache_tokens": tokens}, effect=f"1/{part} of the pages"
      )
    elif max(s.engine.slots) >= part:
      slots = tuple(max(1, n // part) for n in s.engine.slots)
      yield Change(
        keys={"engine.slots": slots}, effect=f"caches of 1/{part} of the slots"
      )
    if part == 2 and s.engine.prefill_slots > 1:
      yield Change(
        keys={"engine.prefill_slots": max(1, s.engine.prefill_slots // 4)},
        effect="prefills fewer slots at a time",
      )
  if not s.engine.has_pages:
    yield Change(
      keys={"engine.context": s.engine.context // 2},
      effect="half the caches; prompts must be as short",
    )
  if s.engine.num_policy_slots > 1 and not s.engine.slices:
    yield Change(
      keys={
        "engine.slots": s.engine.slots[:1],
        "engine.cache_tokens": s.engine.cache_tokens[:1],
        "cross_policy.policy_slots": ("fresh",),
        "cross_policy.weights": (1.0,),
      },
      effect="serves one version: no cross-policy sampling",
    )


def all_at_once(changes: Sequence[Change]) -> list[Change]:
  """Returns all changes at once, of those to one key the first."""
  if len(changes) < 2:
    return []
  keys: dict[str, Any] = {}
  for change in reversed(changes):
    keys |= change.keys
  effect = "; ".join(dict.fromkeys(change.effect for change in changes))
  return [Change(keys=keys, effect=effect)]


def mesh_changes(settings: Settings, slice_: Slice) -> list[Change]:
  """Returns meshes of a slice, one row per share, to be compiled.

  Those whose state fits by formula: first the fastest of those whose gradient
  is likely to fit, else the smallest.
  """
  room = room_of(slice_)
  found = []
  for mesh in meshes_of(settings, slice_):
    shares = row_shares(mesh)
    changed = with_mesh(with_rows(settings, shares), mesh)
    if state_bytes(changed) + kept_bytes(changed) <= room:
      likely = max(gradient_bytes(changed), room)
      seconds = estimate(changed, mesh, slice_).estimate_s
      found.append((likely, seconds, mesh, shares))
  found.sort(key=lambda one: one[:2])
  return [
    Change(
      learner=slice_,
      keys={
        **{f"mesh.{axis}": size for axis, size in mesh.items()},
        "train.micro_batch": shares,
      },
      effect=f"{slice_.num_chips} chips ({slice_.rented_as})",
    )
    for _, _, mesh, shares in found[:_MESHES]
  ]


def servers(here: Slice) -> Iterator[Slice]:
  """Yields slices of one host: of this chip from this size on, then others."""
  if here.is_one_host:
    yield here
  for slice_ in slices_of(here.chip):
    if slice_.is_one_host and (
      not here.is_one_host or slice_.num_chips > here.num_chips
    ):
      yield slice_
  for chip in sorted(CHIPS.values(), key=lambda c: c.memory):
    if chip.name != here.chip.name:
      yield from (s for s in slices_of(chip) if s.is_one_host)


def longer_rows(settings: Settings, deployment: Deployment) -> Change | None:
  """Rows that hold a whole group; None if prompts are computed once."""
  batch, attempts = settings.batch, deployment.attempts
  if attempts is None or batch.sharing == 1:
    return None
  rows = packed_groups(settings, attempts)
  once = attempts.num_nodes / (attempts.num * attempts.length)
  saved = 1 - once * rows.tokens / rows.computed
  if saved < 0.1:
    return None
  unit = SLOTS * settings.mesh["sequence"]
  length = max(-(-attempts.num_nodes // unit) * unit, batch.row_length)
  sharing = -(-attempts.num * attempts.length // length)
  return Change(
    keys={
      f"train.{name}": size
      for name, size, found in (
        ("row_length", length, batch.row_length),
        ("sharing", sharing, batch.sharing),
      )
      if size > found
    },
    effect=f"a row holds a group: {saved:.0%} fewer tokens to compute",
  )
