"""Finds changes that make a config fit, and checks each before it is advised.

Two checks, the cheap one first. Arithmetic: what lies on a chip between
programs, and the inputs of layers that a gradient keeps, must be below its
memory. Compilation: all programs of the planned roles are compiled with the
change, and must fit. Changes are tried in the order of their cost, settings
that do not change what is learned first; only changes that passed both checks
are returned. Where the state alone is too large no setting of a batch helps,
and the smallest slice that fits is looked for first.
"""

import dataclasses
import functools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention.splash import SLOTS
from agentrl_jax.model.sharding import row_shares
from agentrl_jax.train.token_logprobs import TOKEN_CHUNK
from launch.config.settings import Settings, read_settings
from launch.planning.chips import CHIPS, GIB, Slice, slices_of
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
from launch.planning.study import (
  RESERVE,
  Deployment,
  Judgement,
  Planner,
)
from launch.storage.load_params import with_teacher

PROGRAMS = {"learner": ("gradient", "apply"), "rollout": ("prefill", "decode")}
# Meshes of a slice that are compiled, the fastest by formula first.
_MESHES = 2
_DIED = (
  "no program was made, so that it is not known if one fits: take another mesh "
  "(--search=3 looks for one), other compute.compiler_options or another slice"
)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
  """A change with which every program of `roles` was compiled, and fits."""

  flags: str
  effect: str
  left: int  # free bytes of the fullest chip
  roles: tuple[str, ...]

  @property
  def checked(self) -> str:
    """The result of the check."""
    return f"checked: {self.left / GIB:.1f} GiB of a chip left"


class Adviser:
  """Looks for changes to a plan, within a budget of compiled changes."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    deployment: Deployment,
    roles: Sequence[str],
    *,
    budget: int,
    tell: Callable[[str], None] = lambda _: None,
    make_planner: Callable[[Deployment], Planner] = Planner,
  ):
    self.num_compiled = 0  # changes
    self.num_excluded = 0  # by arithmetic
    self._config = config
    self._deployment = deployment
    self._roles = tuple(roles)
    self._budget = budget
    self._tell = tell
    self._missing = 0  # bytes of a chip, for the config's gradient
    self._planner = functools.cache(make_planner)
    self._read = functools.cache(self._read_changed)

  def advise(self, judged: Sequence[Judgement]) -> list[Advice]:
    """Returns changes that were checked, the first to try first.

    Empty if everything fits, or if no change that was tried helps. With slices
    of their own, learner and rollouts are advised apart: advice for each.
    """
    tight = [j.name for j in judged if not j.fits]
    if not tight or not self._budget:
      return []
    self._missing = -min(
      (
        j.left
        for j in judged
        if j.name == "gradient" and not j.fits and not j.failure
      ),
      default=0,
    )
    if self._deployment.rollout is None:
      return list(self._for_one_process(tight))
    found: list[Advice] = []
    for role in self._roles:
      if any(name in PROGRAMS[role] for name in tight):
        found += self._for_role(role, NO_CHANGE)
    return found

  @property
  def is_spent(self) -> bool:
    """Says if as many changes were compiled as are allowed."""
    return self.num_compiled >= self._budget

  def share_prompts(self, judged: Sequence[Judgement]) -> list[Advice]:
    """Advises rows that hold a whole group, if prompts are computed repeatedly.

    They count if rows that compute each prompt once have at least a tenth fewer
    tokens to compute for the same trajectories. Empty for a config that shares
    nothing, if something does not fit already, and if such rows do not fit.
    """
    if not self._budget or not all(j.fits for j in judged):
      return []
    settings = self._settings(NO_CHANGE)
    assert settings is not None
    change = longer_rows(settings, self._deployment)
    if change is None or "learner" not in self._roles:
      return []
    return list(self._first([change], ("learner",)))

  def _for_one_process(self, tight: Sequence[str]) -> Iterator[Advice]:
    """Yields advice where the learner's process also answers."""
    settings = self._settings(NO_CHANGE)
    assert settings is not None
    changes: list[Change] = []
    if any(name in PROGRAMS["learner"] for name in tight):
      changes += learner_changes(settings)
    if any(name in PROGRAMS["rollout"] for name in tight):
      changes += rollout_changes(settings)
    changes += _all(changes)
    if all(self._state_fits(NO_CHANGE, role) for role in self._roles):
      found = list(self._first(changes, self._roles))
      yield from found or self._elsewhere()
    else:
      yield from self._elsewhere()
      yield from self._first(changes, self._roles)

  def _elsewhere(self) -> Iterator[Advice]:
    """Yields advice with a rollout server of its own, the first that fits."""
    for server in servers(self._deployment.learner):
      change = Change(
        rollout=server, effect=f"answers come from a server on {server.name}"
      )
      if not self._holds(change, "rollout"):
        self.num_excluded += 1
        continue
      if "rollout" in self._roles and not self._check(change, ("rollout",)):
        continue
      if "learner" not in self._roles:
        yield from self._first([change], ("rollout",))
        return
      if self._holds(change, "learner"):
        found = list(self._first([change], self._roles))
        if found:
          yield from found
          return
      yield from self._for_role("learner", change)
      return

  def _for_role(self, role: str, base: Change) -> Iterator[Advice]:
    """Yields advice for one role on its own slice, after `base`."""
    settings = self._settings(base)
    assert settings is not None
    if role == "learner":
      meshes_here = list(self._meshes_here(settings))
      changes = list(learner_changes(settings))
      changes += [*meshes_here, *_all([*meshes_here[:1], *changes])]
    else:
      changes = list(rollout_changes(settings))
      changes += _all(changes)
    if role == "learner" and base is NO_CHANGE:
      changes = list(self._promising(settings, changes))
    changes = [change.after(base) for change in changes]
    larger = [change.after(base) for change in self._larger(role, settings)]
    # A server moved elsewhere was checked before.
    roles = self._roles if base.rollout is not None else (role,)
    if self._state_fits(base, role):
      found = list(self._first(changes, roles))
      yield from found or self._first(larger, roles)
    else:
      yield from self._first(larger, roles)
      yield from self._first(changes, roles)

  def _promising(
    self, settings: Settings, changes: Iterable[Change]
  ) -> Iterator[Change]:
    """Yields changes that free half of what is missing, by formula.

    The formulas are of programs that compute layers again; what other programs
    would save is not known before they are compiled.
    """
    before = gradient_bytes(settings)
    for change in changes:
      changed = self._settings(change)
      if changed is None:
        continue
      known = settings.compute == changed.compute
      freed = before - gradient_bytes(changed)
      if known and freed < self._missing / 2:
        self.num_excluded += 1
      else:
        yield change

  def _first(
    self, changes: Iterable[Change], roles: Sequence[str]
  ) -> Iterator[Advice]:
    """Yields the first change with which all programs of `roles` fit."""
    for change in changes:
      if self.is_spent:
        return
      if not all(self._holds(change, role) for role in roles):
        self.num_excluded += 1
      elif checked := self._check(change, roles):
        yield checked
        return

  def _meshes_here(self, settings: Settings) -> Iterator[Change]:
    """Yields other meshes of the learner's slice, one row per share."""
    for change in mesh_changes(settings, self._deployment.learner):
      if any(change.keys[f"mesh.{a}"] != n for a, n in settings.mesh.items()):
        yield dataclasses.replace(
          change, learner=None, effect="another mesh of the same chips"
        )

  def _larger(self, role: str, settings: Settings) -> Iterator[Change]:
    """Yields larger slices of the same chip, the smallest first."""
    if role == "rollout":
      here = self._deployment.rollout
      assert here is not None
      for server in servers(here):
        if server != here:
          yield Change(rollout=server, effect=f"a server on {server.name}")
      return
    here = self._deployment.learner
    for slice_ in slices_of(here.chip, here.num_slices):
      if slice_.num_chips > here.num_chips:
        yield from mesh_changes(settings, slice_)

  def _settings(self, change: Change) -> Settings | None:
    """Returns the changed config as it is read; None if it is refused."""
    return self._read(tuple(change.keys.items()))

  def _read_changed(self, keys: tuple[tuple[str, Any], ...]) -> Settings | None:
    config = self._config.copy_and_resolve_references()
    config.update_from_flattened_dict(dict(keys))
    try:
      return with_teacher(read_settings(config))
    except ConfigError:
      return None  # such as a context shorter than an episode: not advised

  def _deployed(self, change: Change) -> Deployment:
    return dataclasses.replace(
      self._deployment,
      learner=change.learner or self._deployment.learner,
      rollout=change.rollout or self._deployment.rollout,
    )

  def _holds(self, change: Change, role: str) -> bool:
    """Says if the role's chips hold its state, and what a gradient keeps."""
    settings = self._settings(change)
    if settings is None:
      return False
    beside = kept_bytes(settings) if role == "learner" else 0
    return self._state_fits(change, role, beside)

  def _state_fits(self, change: Change, role: str, beside: float = 0) -> bool:
    """Says if what lies on the role's chips fits, with `beside` bytes more."""
    settings = self._settings(change)
    if settings is None:
      return False
    deployment = self._deployed(change)
    try:
      kept = self._planner(deployment).residents(settings, role)
    except ConfigError:
      return False  # heads or channels that the chips do not divide
    room = deployment.slice_of(role).chip.memory * (1 - RESERVE)
    return sum(kept.values()) + beside <= room

  def _check(self, change: Change, roles: Sequence[str]) -> Advice | None:
    """Compiles the roles' programs; None if one does not fit, or no budget."""
    settings = self._settings(change)
    if settings is None or self.is_spent:
      return None
    self.num_compiled += 1
    planner = self._planner(self._deployed(change))
    least = None
    for program in planner.programs(settings, roles):
      self._tell(f"{program.name} with {change.flags}")
      judged = planner.judge(settings, program)
      if not judged.fits:
        return None
      least = judged.left if least is None else min(least, judged.left)
    if least is None:
      return None
    return Advice(
      flags=change.flags, effect=change.effect, left=least, roles=tuple(roles)
    )


def refusal(judged: Sequence[Judgement], found: Sequence[Advice]) -> str:
  """Says in a sentence what does not fit or compile; empty if all does."""
  first = (
    f"; first try {found[0].flags} ({found[0].effect}; {found[0].checked})"
    if found
    else ""
  )
  failures = "; ".join(j.failure for j in judged if j.failure)
  tight = [j for j in judged if not j.fits and not j.failure]
  if not tight:
    return failures and failures + (first or f"; {_DIED}")
  worst = min(tight, key=lambda j: j.left)
  kept = {n: s for n, s in worst.beside.items() if s > 0.01 * worst.wanted}
  beside = ", ".join(f"{n} {s / GIB:.1f}" for n, s in kept.items())
  return (
    f"{failures}{'; ' * bool(failures)}"
    f"{' and '.join(j.name for j in tight)} will not fit {worst.slice_.name}: "
    f"{worst.name} wants {worst.compiled.wanted / GIB:.1f} GiB of each chip"
    + (f" beside what lies there ({beside})" if beside else "")
    + f", {-worst.left / GIB:.1f} GiB more than there is{first}"
  )


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


def _all(changes: Sequence[Change]) -> list[Change]:
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
  room = slice_.chip.memory * (1 - RESERVE)
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
