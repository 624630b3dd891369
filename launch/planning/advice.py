"""Changes with which a config fits, by arithmetic; cheapest first.

A change counts as fitting if what it frees by formula is more than what the
compiled programs lack. Where the state alone is too large, nothing was
compiled, and the formulas are all there is. Settings that do not change what is
learned come first, then other meshes of the slice, then larger slices.
"""

import dataclasses
import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention.splash import SLOTS
from agentrl_jax.model.sharding import row_shares
from agentrl_jax.train.token_logprobs import TOKEN_CHUNK
from launch.config.settings import Settings, read_settings
from launch.planning.chips import GIB, rentable, slices_of
from launch.planning.formulas import (
  estimates,
  gradient_bytes,
  state_bytes,
  with_rows,
)
from launch.planning.programs import packed_row
from launch.planning.roofline import Attempts
from launch.planning.study import PROGRAMS, Judgement, Planner
from launch.storage.load_params import with_teacher


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
  """Config keys to set and slices to rent."""

  keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  slices: Mapping[str, str] = dataclasses.field(default_factory=dict)
  effect: str

  @property
  def flags(self) -> str:
    """The change as flags of launch.plan, quoted for a shell."""
    words = [f"--{name}={value}" for name, value in self.slices.items()]
    for key, value in self.keys.items():
      words.append(f"--config.{key}={str(value).replace(' ', '')}")
    return shlex.join(words)


def learner_keys(s: Settings) -> Iterator[tuple[str, Any]]:
  """Yields keys and values that free a learner's memory, cheapest first."""
  shares, batch = row_shares(s.mesh), s.batch
  if s.compute.remat != "full":
    yield "compute.remat", "full"
  if batch.micro_batch > shares:
    yield "train.micro_batch", shares
  if (s.loss.token_chunk or TOKEN_CHUNK) > 128:
    yield "loss.token_chunk", 128
  if s.loss.kl_coefficient and s.reference.place == "resident":
    yield "reference.place", "offloaded"
  if batch.row_length > s.episode.max_tokens:
    yield "train.row_length", s.episode.max_tokens
  if s.compute.dtype == "float32":
    yield "compute.dtype", "bfloat16"


def rollout_keys(s: Settings) -> Iterator[tuple[str, Any]]:
  """Yields keys and values that free an engine's memory."""
  page = s.engine.tokens_per_page
  for part in (2, 4, 8):
    if s.engine.cache_tokens:
      yield (
        "engine.cache_tokens",
        tuple(max(1, n // (part * page)) * page for n in s.engine.cache_tokens),
      )
    else:
      yield ("engine.slots", tuple(max(1, n // part) for n in s.engine.slots))


def set_keys(
  config: ml_collections.ConfigDict,
  keys: Iterable[tuple[str, Any]],
  left: Callable[[Settings], float],
) -> Advice | None:
  """Sets one key after the other until `left` bytes are 0 or more.

  Keys that free nothing are left out; None if all together do not suffice.
  """
  chosen: dict[str, Any] = {}
  most = left(_read(config, {}))
  for key, value in keys:
    try:
      found = left(_read(config, {**chosen, key: value}))
    except ConfigError:
      continue  # such as rows that are shorter than an episode
    if found > most:
      chosen[key], most = value, found
    if most >= 0:
      return Advice(keys=chosen, effect=f"{most / GIB:.1f} GiB would be left")
  return None


def _read(
  config: ml_collections.ConfigDict, keys: Mapping[str, Any]
) -> Settings:
  config = config.copy_and_resolve_references()
  config.update_from_flattened_dict(dict(keys))
  return with_teacher(read_settings(config))


def advise(
  config: ml_collections.ConfigDict,
  planner: Planner,
  judged: Sequence[Judgement],
) -> list[Advice]:
  """Returns a change for each role of which a program does not fit."""
  tight = [j for j in judged if j.lacks]
  if planner.deployment.rollout is None:
    keys = [learner_keys, rollout_keys]
    return _for_role(config, planner, "learner", tight, keys, _server)
  learner, rollout = (
    [j for j in tight if j.name in names] for names in PROGRAMS.values()
  )
  return [
    *_for_role(config, planner, "learner", learner, [learner_keys], _mesh),
    *_for_role(config, planner, "rollout", rollout, [rollout_keys], _server),
  ]


def _for_role(
  config: ml_collections.ConfigDict,
  planner: Planner,
  role: str,
  tight: Sequence[Judgement],
  keys: Sequence[Callable[[Settings], Iterator[tuple[str, Any]]]],
  elsewhere: Callable[[Planner, Settings], Advice | None],
) -> list[Advice]:
  """Advises keys, else other chips; what was compiled corrects formulas."""
  if not tight:
    return []
  settings = _read(config, {})
  worst = min(tight, key=lambda j: j.left)
  room = float(worst.slice_.room)
  if not worst.is_excluded:
    room = worst.left + needed(planner, settings, role)
  found = set_keys(
    config,
    itertools.chain(*(each(settings) for each in keys)),
    lambda changed: room - needed(planner, changed, role),
  ) or elsewhere(planner, settings)
  return [found] if found else []


def needed(planner: Planner, settings: Settings, role: str) -> float:
  """Bytes of a chip: what lies there, and what a gradient takes beside it."""
  kept = float(sum(planner.residents(settings, role).values()))
  if role == "learner":
    kept += gradient_bytes(settings) - state_bytes(settings)
  return kept


def _mesh(planner: Planner, settings: Settings) -> Advice | None:
  """Returns the fastest mesh, one row per share, of the smallest slice."""
  here = planner.deployment.learner
  larger = slices_of(here.chip, here.num_slices)
  for slice_ in (here, *(s for s in larger if s.num_chips > here.num_chips)):
    best = next(iter(estimates(with_rows(settings, 1), slice_)), None)
    if best and best.fits and (slice_, best.mesh) != (here, settings.mesh):
      keys = {
        f"mesh.{axis}": size
        for axis, size in best.mesh.items()
        if size != settings.mesh[axis]
      }
      is_here = slice_ == here
      return Advice(
        slices={} if is_here else {"topology": slice_.name},
        keys={**keys, "train.micro_batch": best.rows},
        effect="another mesh of the same chips"
        if is_here
        else f"{slice_.num_chips} chips ({slice_.rented_as})",
      )
  return None


def _server(planner: Planner, settings: Settings) -> Advice | None:
  """Returns the smallest slice of one host on which the engine fits."""
  deployment = planner.deployment
  chip = deployment.slice_of("rollout").chip
  for slice_ in sorted(
    rentable(), key=lambda s: (s.chip != chip, s.chip.memory, s.num_chips)
  ):
    if not slice_.is_one_host or slice_ == deployment.rollout:
      continue
    moved = dataclasses.replace(deployment, rollout=slice_)
    try:
      kept = Planner(moved).residents(settings, "rollout")
    except ConfigError:
      continue  # heads or channels that the chips do not divide
    if sum(kept.values()) <= slice_.room:
      return Advice(
        slices={"rollout_topology": slice_.name},
        effect=f"answers come from a server on {slice_.name}",
      )
  return None


def longer_rows(settings: Settings, attempts: Attempts | None) -> list[Advice]:
  """Rows that hold a whole group, if prompts are computed repeatedly."""
  batch = settings.batch
  if attempts is None or batch.sharing == 1:
    return []
  row = packed_row(settings, attempts)
  once = attempts.num_nodes / (attempts.num * attempts.length)
  saved = 1 - once * row.tokens / row.computed
  if saved < 0.1:
    return []
  unit = SLOTS * settings.mesh["sequence"]
  length = max(-(-attempts.num_nodes // unit) * unit, batch.row_length)
  sharing = -(-attempts.num * attempts.length // length)
  keys = {} if length == batch.row_length else {"train.row_length": length}
  if sharing > batch.sharing:
    keys["train.sharing"] = sharing
  effect = f"a row holds a group: {saved:.0%} fewer tokens to compute"
  return [Advice(keys=keys, effect=effect)]


def refusal(judged: Sequence[Judgement], found: Sequence[Advice]) -> str:
  """Says in a sentence what does not fit or compile; empty if all does."""
  first = f"; first try {found[0].flags} ({found[0].effect})" if found else ""
  failures = "; ".join(j.failure for j in judged if j.failure)
  tight = [j for j in judged if j.lacks]
  if not tight:
    return failures and (
      f"{failures}; try another mesh, another slice or other "
      "compute.compiler_options"
    )
  worst = min(tight, key=lambda j: j.left)
  beside = ", ".join(
    f"{name} {size / GIB:.1f}"
    for name, size in worst.beside.items()
    if size > 0.01 * worst.wanted
  )
  return (
    f"{failures}{'; ' * bool(failures)}"
    f"{' and '.join(j.name for j in tight)} will not fit {worst.slice_.name}: "
    f"{worst.name} wants {worst.compiled.wanted / GIB:.1f} GiB of each chip"
    + (f" beside what lies there ({beside})" if beside else "")
    + f", {-worst.left / GIB:.1f} GiB more than there is{first}"
  )
