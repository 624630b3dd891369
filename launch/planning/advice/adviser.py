"""Finds changes that make a config fit, and checks each before it is advised.

Two checks, the cheap one first. Arithmetic: what lies on a chip between
programs, and the inputs of layers that a gradient keeps, must be below its
memory. Compilation: all programs of the planned roles are compiled with the
change, and must fit. Changes are tried in the order of their cost, settings
that do not change what is learned first; only changes that passed both checks
are returned. Where the state alone is too large no setting of a batch helps,
and the smallest slice that fits is looked for first.

Compiling has a budget of seconds. A change that is likely to take longer than
the rest of it is not begun, and a program that takes longer is given up; both
are among `Adviser.left_out`.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from agentrl_jax.errors import ConfigError
from launch.config.settings import Settings, read_settings
from launch.planning.advice.changes import (
  NO_CHANGE,
  Change,
  all_at_once,
  learner_changes,
  longer_rows,
  mesh_changes,
  rollout_changes,
  room_of,
  servers,
)
from launch.planning.chips import GIB, slices_of
from launch.planning.search import gradient_bytes, kept_bytes
from launch.planning.study import Deployment, Judgement, Planner
from launch.storage.load_params import with_teacher

PROGRAMS = {"learner": ("gradient", "apply"), "rollout": ("prefill", "decode")}
_DIED = (
  "no program was made, so that it is not known if one fits: take another mesh "
  "(--search=3 looks for one), other compute.compiler_options or another slice"
)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftOut:
  """A change for which no time was left, and those that come after it."""

  flags: str
  reason: str
  num_after: int

  @property
  def sentence(self) -> str:
    """The change and the reason, for people."""
    others = f"; {self.num_after} more come after it" * bool(self.num_after)
    return f"left out: {self.flags} ({self.reason}){others}"


class _OutOfTime(Exception):
  """The budget does not suffice for a change; says why."""


class Adviser:
  """Looks for changes to a plan, within `seconds` of compiling."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    deployment: Deployment,
    roles: Sequence[str],
    *,
    seconds: float,
    make_planner: Callable[[Deployment], Planner] = Planner,
    clock: Callable[[], float] = time.monotonic,
  ):
    self.num_compiled = 0  # changes
    self.num_excluded = 0  # by arithmetic
    self.left_out: list[LeftOut] = []
    self.seconds = seconds
    self._config = config
    self._deployment = deployment
    self._roles = tuple(roles)
    self._clock = clock
    self._ends_at = 0.0  # on the clock
    self._took: dict[str, float] = {}  # longest seconds of a program, by name
    self._tell: Callable[[str], None] = lambda _: None
    self._missing = 0  # bytes of a chip, for the config's gradient
    self._planner = functools.cache(make_planner)
    self._read = functools.cache(self._read_changed)

  def excluded(self) -> Iterator[str]:
    """Yields sentences about roles whose state alone exceeds their chips.

    The first at once, then the smallest slice that holds it. By arithmetic;
    nothing is compiled.
    """
    settings = self._settings(NO_CHANGE)
    assert settings is not None
    shares_chips = self._deployment.rollout is None
    for role in self._roles[:1] if shares_chips else self._roles:
      slice_ = self._deployment.slice_of(role)
      kept = self._planner(self._deployment).residents(settings, role)
      if sum(kept.values()) <= room_of(slice_):
        continue
      owner = "learner and rollouts" if shares_chips else role
      yield (
        f"{owner}: the state alone takes {sum(kept.values()) / GIB:.1f} GiB of "
        f"each chip of {slice_.name} ({_sizes_text(kept)}), and a chip has "
        f"{room_of(slice_) / GIB:.1f}"
      )
      yield self._smallest(role, settings)

  def _smallest(self, role: str, settings: Settings) -> str:
    """Names the smallest slices that hold the state, and a gradient's least."""
    base = NO_CHANGE
    here: Iterable[Change] = ()
    if self._deployment.rollout is None:
      moves = [
        Change(effect="", rollout=server)
        for server in servers(self._deployment.learner)
      ]
      base = next((c for c in moves if self._holds(c, "rollout")), base)
      here, role = [base], "learner"
    if role == "learner":
      here = itertools.chain(here, self._meshes_here(settings))
    for change in itertools.chain(here, self._larger(role, settings)):
      if self._holds(change.after(base), role):
        flags = change.after(base).flags
        return f"by arithmetic the smallest that holds it is {flags}"
    return "by arithmetic no slice that can be rented holds it"

  def advise(
    self,
    judged: Sequence[Judgement],
    tell: Callable[[str], None] = lambda _: None,
  ) -> list[Advice]:
    """Returns changes that were checked, the first to try first.

    Empty if everything fits, or if no change that was tried helps. With slices
    of their own, learner and rollouts are advised apart: advice for each.
    `tell` hears what is compiled next.
    """
    tight = [j.name for j in judged if not j.fits]
    if not tight or not self.seconds:
      return []
    self._begin(judged, tell)
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

  def share_prompts(
    self,
    judged: Sequence[Judgement],
    tell: Callable[[str], None] = lambda _: None,
  ) -> list[Advice]:
    """Advises rows that hold a whole group, if prompts are computed repeatedly.

    They count if rows that compute each prompt once have at least a tenth fewer
    tokens to compute for the same trajectories. Empty for a config that shares
    nothing, if something does not fit already, and if such rows do not fit.
    """
    if not self.seconds or not all(j.fits for j in judged):
      return []
    self._begin(judged, tell)
    settings = self._settings(NO_CHANGE)
    assert settings is not None
    change = longer_rows(settings, self._deployment)
    if change is None or "learner" not in self._roles:
      return []
    return list(self._first([change], ("learner",)))

  def _begin(
    self, judged: Sequence[Judgement], tell: Callable[[str], None]
  ) -> None:
    """Starts the clock; what compiling took so far is what it will take."""
    self._tell = tell
    self._ends_at = self._clock() + self.seconds
    self._took = {j.name: j.compiled.seconds for j in judged if not j.failure}

  def _for_one_process(self, tight: Sequence[str]) -> Iterator[Advice]:
    """Yields advice where the learner's process also answers."""
    settings = self._settings(NO_CHANGE)
    assert settings is not None
    changes: list[Change] = []
    if any(name in PROGRAMS["learner"] for name in tight):
      changes += learner_changes(settings)
    if any(name in PROGRAMS["rollout"] for name in tight):
      changes += rollout_changes(settings)
    changes += all_at_once(changes)
    if all(self._state_fits(NO_CHANGE, role) for role in self._roles):
      found = list(self._first(changes, self._roles))
      yield from found or self._elsewhere()
    else:
      yield from self._elsewhere()
      yield from self._first(changes, self._roles)

  def _elsewhere(self) -> Iterator[Advice]:
    """Yields advice with a rollout server of its own, the first that fits."""
    moves = [
      Change(
        rollout=server, effect=f"answers come from a server on {server.name}"
      )
      for server in servers(self._deployment.learner)
    ]
    if "rollout" in self._roles:
      answering = list(self._first(moves, ("rollout",)))
      if "learner" not in self._roles:
        yield from answering
        return
      moves = [m for m in moves if m.flags in [a.flags for a in answering]]
    change = next((m for m in moves if self._holds(m, "rollout")), None)
    if change is None:
      return
    found: list[Advice] = []
    if self._holds(change, "learner"):
      found = list(self._first([change], self._roles))
    yield from found or self._for_role("learner", change)

  def _for_role(self, role: str, base: Change) -> Iterator[Advice]:
    """Yields advice for one role on its own slice, after `base`."""
    settings = self._settings(base)
    assert settings is not None
    meshes_here: list[Change] = []
    if role == "learner":
      meshes_here = list(self._meshes_here(settings))
      changes = list(learner_changes(settings))
      changes += [*meshes_here, *all_at_once([*meshes_here[:1], *changes])]
    else:
      changes = list(rollout_changes(settings))
      changes += all_at_once(changes)
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
      others = [change.after(base) for change in meshes_here] + larger
      yield from self._first(others, roles)
      yield from self._first([c for c in changes if c not in others], roles)

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
    remaining = iter(changes)
    for change in remaining:
      if not all(self._holds(change, role) for role in roles):
        self.num_excluded += 1
        continue
      try:
        checked = self._check(change, roles)
      except _OutOfTime as reason:
        num_after = sum(1 for _ in remaining)
        self.left_out.append(
          LeftOut(flags=change.flags, reason=str(reason), num_after=num_after)
        )
        return
      if checked:
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
    return sum(kept.values()) + beside <= room_of(deployment.slice_of(role))

  def _check(self, change: Change, roles: Sequence[str]) -> Advice | None:
    """Compiles the roles' programs; None if one does not fit.

    Raises `_OutOfTime` if the budget does not suffice for them.
    """
    settings = self._settings(change)
    if settings is None:
      return None
    planner = self._planner(self._deployed(change))
    programs = planner.programs(settings, roles)
    least = None
    for number, program in enumerate(programs):
      names = [each.name for each in programs[number:]]
      left_s = self._require_time(names)
      self._tell(f"{program.name} with {change.flags}, {left_s:.0f} s left")
      started_at = self._clock()
      judged = planner.judge(settings, program, deadline_s=left_s)
      took = self._clock() - started_at
      if judged.failure and took >= left_s:
        raise _OutOfTime(f"{program.name} did not compile in {left_s:.0f} s")
      self.num_compiled += not number
      self._took[program.name] = max(self._took.get(program.name, 0), took)
      if not judged.fits:
        return None
      least = judged.left if least is None else min(least, judged.left)
    if least is None:
      return None
    return Advice(
      flags=change.flags, effect=change.effect, left=least, roles=tuple(roles)
    )

  def _require_time(self, names: Sequence[str]) -> float:
    """Returns the seconds left; raises `_OutOfTime` if these take longer."""
    left_s = self._ends_at - self._clock()
    if left_s <= 0:
      raise _OutOfTime("no time was left")
    expected_s = sum(self._took.get(name, 0.0) for name in names)
    if left_s <= expected_s:
      raise _OutOfTime(
        f"{left_s:.0f} s were left, and compiling {' and '.join(names)} takes "
        f"about {expected_s:.0f} s"
      )
    return left_s


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
  beside = _sizes_text(
    {n: s for n, s in worst.beside.items() if s > 0.01 * worst.wanted}
  )
  return (
    f"{failures}{'; ' * bool(failures)}"
    f"{' and '.join(j.name for j in tight)} will not fit {worst.slice_.name}: "
    f"{worst.name} wants {worst.compiled.wanted / GIB:.1f} GiB of each chip"
    + (f" beside what lies there ({beside})" if beside else "")
    + f", {-worst.left / GIB:.1f} GiB more than there is{first}"
  )


def _sizes_text(sizes: Mapping[str, int]) -> str:
  return ", ".join(f"{name} {size / GIB:.1f}" for name, size in sizes.items())
