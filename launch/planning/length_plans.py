"""Finds the fastest mesh of a slice for each length of a row.

EARL (arXiv:2510.05943, section 3) picks the parallelism of a stage from a table
that was measured in advance, by context length. Here the table is compiled: for
each length, the most promising meshes of `search`, with rows that hold one
attempt each and as many tokens in a micro-batch as the config's, if there is
memory for them. A mesh needs at least a row for each share of `data` and
`fsdp`, so long rows may make a micro-batch larger.

Bounds of meshes that are limited by compute differ by little. So a mesh counts
as better only from `LEAST_GAIN` on: otherwise the mesh of the length before
stays, and for the first length that of the config.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention.splash import SLOTS
from agentrl_jax.model.sharding import row_shares
from launch.config.settings import Settings
from launch.planning.chips import GIB, Slice
from launch.planning.search import (
  Candidate,
  compiled,
  estimates,
  gradient_bytes,
  kept_bytes,
  shape_name,
  state_bytes,
  with_mesh,
  with_rows,
)
from launch.planning.study import RESERVE, Planner

LEAST_GAIN = 0.02  # of tokens per second, for which a mesh is changed


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthPlan:
  """Meshes for rows of one length; the compiled ones, fastest first."""

  length: int  # tokens of a row
  compiled: tuple[Candidate, ...]
  best: Candidate | None  # None: none of the compiled ones fits
  num_excluded: int  # too large by arithmetic, or without rows for their shares
  num_left: int  # neither excluded nor compiled

  def of_mesh(self, mesh: Mapping[str, int]) -> Candidate | None:
    """The compiled candidate of a mesh; None if it was not compiled."""
    return next((c for c in self.compiled if c.mesh == mesh), None)


@dataclasses.dataclass(frozen=True)
class Crossover:
  """Two neighbouring lengths with different best meshes."""

  before: LengthPlan
  after: LengthPlan

  @property
  def gain(self) -> float | None:
    """Gain in tokens/s over the mesh before, at the length after.

    None if that mesh does not fit there, or was excluded by arithmetic.
    """
    assert self.before.best is not None
    assert self.after.best is not None
    old = self.after.of_mesh(self.before.best.mesh)
    if old is None or not _fits(old):
      return None
    return old.seconds_per_token / self.after.best.seconds_per_token - 1


def read_lengths(values: Sequence[str]) -> tuple[int, ...]:
  """Returns the lengths of --lengths in ascending order.

  Raises `ConfigError` for a value that no row can have, or that is repeated.
  """
  if not values:
    raise ConfigError(
      "--lengths names no length: write the tokens of a row, with a comma "
      "between two, as --lengths=2048,8192"
    )
  lengths = []
  for value in values:
    if not value.isdecimal() or not int(value):
      raise ConfigError(
        f"--lengths={','.join(values)}: {value!r} is no number of tokens; "
        "write whole numbers above 0, with a comma between two"
      )
    length = int(value)
    if length % SLOTS:
      below, above = length // SLOTS * SLOTS, -(-length // SLOTS) * SLOTS
      raise ConfigError(
        f"--lengths has {length}, and rows are multiples of {SLOTS} tokens on "
        f"a TPU: write {f'{below} or ' if below else ''}{above}"
      )
    lengths.append(length)
  if repeated := sorted({n for n in lengths if lengths.count(n) > 1}):
    raise ConfigError(
      f"--lengths={','.join(values)} repeats "
      f"{', '.join(map(str, repeated))}: name each length once"
    )
  return tuple(sorted(lengths))


def plan_lengths(
  planner: Planner,
  settings: Settings,
  lengths: Sequence[int],
  *,
  num_compiled: int,
  tell: Callable[[str], None] = lambda _: None,
) -> list[LengthPlan]:
  """Plans each length, shortest first.

  For each, the mesh of the config (if it is one of the slice) and that of the
  length before are compiled; then, unless one of these is limited by the peak
  rate of all chips, the `num_compiled` most promising of the others. If none of
  all these fits, up to as many more are compiled.
  """
  plans: list[LengthPlan] = []
  kept: list[Mapping[str, int]] = [settings.mesh]
  for length in lengths:
    search = _Search(planner, at_length(settings, length), tell)
    plan = search.plan(kept, num_compiled)
    plans.append(plan)
    if plan.best is not None:
      kept = [plan.best.mesh, settings.mesh]
  return plans


def crossovers(plans: Sequence[LengthPlan]) -> list[Crossover]:
  """Finds the lengths at which the best mesh changes."""
  fitting = [plan for plan in plans if plan.best is not None]
  return [
    Crossover(before, after)
    for before, after in zip(fitting, fitting[1:], strict=False)
    if before.best and after.best and before.best.mesh != after.best.mesh
  ]


def refusal(plans: Sequence[LengthPlan], slice_: Slice) -> str:
  """A sentence about lengths that fit no compiled mesh, or ""."""
  return "; ".join(_refusal(p, slice_) for p in plans if p.best is None)


def _refusal(plan: LengthPlan, slice_: Slice) -> str:
  sentence = f"rows of {plan.length} tokens fit no mesh of {slice_.name}: "
  parts = []
  if plan.num_excluded:
    parts.append(f"{plan.num_excluded} are too large by arithmetic")
  if plan.compiled:
    parts.append(_nearest(plan.compiled))
  if plan.num_left:
    parts.append(f"{plan.num_left} were not tried, and a higher --search would")
  parts = parts or ["none divides the model and the row"]
  return (
    f"{sentence}{', '.join(parts)}; leave the length out, or take a larger "
    "--topology"
  )


def _nearest(tried: Sequence[Candidate]) -> str:
  """Says which of the meshes that were compiled is nearest to fitting."""
  judged = {shape_name(c.mesh): c.judged for c in tried if c.judged}
  lacks = {n: -j.left / GIB for n, j in judged.items() if not j.failure}
  if not lacks:
    return next(j.failure for j in judged.values())
  nearest = min(lacks, key=lambda name: lacks[name])
  return (
    f"{len(lacks)} were compiled, of which {nearest} is nearest and lacks "
    f"{lacks[nearest]:.1f} GiB"
  )


def at_length(settings: Settings, length: int) -> Settings:
  """Settings with rows of one attempt of `length` tokens.

  A micro-batch has as many tokens as before, and at least one row.
  """
  batch = settings.batch
  rows = max(batch.micro_batch * batch.row_length // length, 1)
  return dataclasses.replace(
    settings,
    batch=dataclasses.replace(batch, row_length=length, micro_batch=rows),
    episode=dataclasses.replace(settings.episode, max_tokens=length),
  )


class _Search:
  """Compiles meshes for one length, the most promising first.

  Memory by formula is off by half for long rows, so each compiled program
  corrects it: the next mesh is the fastest that the corrected formula lets fit,
  or the smallest if there is none.
  """

  def __init__(
    self, planner: Planner, settings: Settings, tell: Callable[[str], None]
  ):
    self._planner, self._settings, self._tell = planner, settings, tell
    self._memory = planner.deployment.learner.chip.memory * (1 - RESERVE)
    every = estimates(settings, planner.deployment.learner)
    rows = [self._rows(each) for each in every]
    self._left = [
      dataclasses.replace(each, rows=n)
      for each, n in zip(every, rows, strict=True)
      if n
    ]
    self._num_excluded = rows.count(0)
    self._compiled: list[Candidate] = []
    self._correction = 1.0  # the compiler's bytes over those of the formula

  def plan(
    self, kept: Sequence[Mapping[str, int]], num_compiled: int
  ) -> LengthPlan:
    """Compiles `kept` meshes first; one of them is best if none gains more."""
    for candidate in [c for c in self._left if c.mesh in kept]:
      self._compile(candidate)
    if not any(map(_is_at_peak, self._compiled)):
      for _ in range(min(num_compiled, len(self._left))):
        self._compile(self._next())
    for _ in range(min(num_compiled, len(self._left))):
      if any(map(_fits, self._compiled)):
        break
      self._compile(self._next())
    self._compiled.sort(key=lambda c: (c.seconds_per_token, c.estimate_s))
    return LengthPlan(
      length=self._settings.batch.row_length,
      compiled=tuple(self._compiled),
      best=best(self._compiled, kept),
      num_excluded=self._num_excluded,
      num_left=len(self._left),
    )

  def _next(self) -> Candidate:
    room = self._memory / self._correction
    fitting = (c for c in self._left if self._rough(c) <= room)
    return next(fitting, None) or min(self._left, key=self._rough)

  def _compile(self, candidate: Candidate) -> None:
    self._left.remove(candidate)
    place = f"{self._settings.batch.row_length} tokens, "
    place += shape_name(candidate.mesh)
    self._tell(place)
    candidate = self._most_rows(candidate)
    assert candidate.judged is not None
    if not candidate.judged.failure:
      self._correction = candidate.judged.wanted / self._rough(candidate)
    is_own = candidate.mesh == self._settings.mesh
    self._compiled.append(dataclasses.replace(candidate, is_own=is_own))

  def _most_rows(self, candidate: Candidate) -> Candidate:
    """Compiles with half of the rows again, until they fit or are the least."""
    candidate = compiled(self._planner, self._settings, candidate)
    shares = row_shares(candidate.mesh)
    while (
      not _fits(candidate) and not _died(candidate) and candidate.rows > shares
    ):
      rows = _half(candidate.rows, shares)
      candidate = compiled(
        self._planner, self._settings, dataclasses.replace(candidate, rows=rows)
      )
    return candidate

  def _rows(self, candidate: Candidate) -> int:
    """Rows that fit by arithmetic; 0 if there are none.

    Not by `gradient_bytes`, but by what every program has at least.
    """
    shares, update = row_shares(candidate.mesh), self._settings
    if shares > update.admission.groups_per_step * update.group.size:
      return 0
    rows = candidate.rows
    while self._least(candidate.mesh, rows) > self._memory:
      if rows == shares:
        return 0
      rows = _half(rows, shares)
    return rows

  def _least(self, mesh: Mapping[str, int], rows: int) -> float:
    changed = with_rows(with_mesh(self._settings, mesh), rows)
    return state_bytes(changed) + kept_bytes(changed)

  def _rough(self, candidate: Candidate) -> float:
    changed = with_mesh(self._settings, candidate.mesh)
    return gradient_bytes(with_rows(changed, candidate.rows))


def best(
  candidates: Sequence[Candidate], kept: Sequence[Mapping[str, int]]
) -> Candidate | None:
  """The fastest that fits, or the first of `kept` that is nearly as fast."""
  fitting = [c for c in candidates if _fits(c)]
  if not fitting:
    return None
  fastest = min(fitting, key=lambda c: c.seconds_per_token)
  most = fastest.seconds_per_token * (1 + LEAST_GAIN)
  near = [c for c in fitting if c.seconds_per_token <= most]
  for mesh in kept:
    for candidate in near:
      if candidate.mesh == mesh:
        return candidate
  return fastest


def _fits(candidate: Candidate) -> bool:
  return candidate.judged is not None and candidate.judged.fits


def _died(candidate: Candidate) -> bool:
  return candidate.judged is not None and bool(candidate.judged.failure)


def _is_at_peak(candidate: Candidate) -> bool:
  """Says if no mesh can gain `LEAST_GAIN`: all chips compute all the time.

  Each mesh executes as many operations, and at best all chips equally many.
  """
  judged = candidate.judged
  if judged is None or not judged.fits:
    return False
  slice_ = judged.slice_
  peak = slice_.num_devices * slice_.chip.flops
  least_s = judged.flops.executed / peak / judged.tokens
  return candidate.seconds_per_token <= least_s * (1 + LEAST_GAIN)


def _half(rows: int, shares: int) -> int:
  return max(rows // 2 // shares, 1) * shares
