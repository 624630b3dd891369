"""Compiles every program of a config on a slice, and checks that it fits."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.rollout.engine.placement import check_devices
from launch.config.settings import Settings
from launch.planning import chips, residents
from launch.planning.chips import Slice
from launch.planning.compiler.collectives import between_slices, bytes_by_kind
from launch.planning.compiler.compiled import Compiled, compile_program
from launch.planning.programs import Program, learner_programs, rollout_programs
from launch.planning.residents import Residents
from launch.planning.roofline import Attempts, Flops, Load, Roofline, roofline
from launch.processes.child import Child, ChildDied

PROGRAMS = {"learner": ("gradient", "apply"), "rollout": ("prefill", "decode")}
ROLES = tuple(PROGRAMS)
_COMPILE_S = 1800.0  # after which a compiler is assumed to hang


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
  """The result of compiling one program: does it fit, and how fast is it."""

  name: str
  slice_: Slice
  compiled: Compiled
  beside: Mapping[str, int]  # bytes of a chip that others keep on it
  tokens: int
  flops: Flops
  roofline: Roofline | None  # None where there is no program to look at
  load: Load | None = None  # of a gradient
  answers: int = 0  # that a decode program computes at once

  @property
  def wanted(self) -> int:
    """Bytes of a chip, including the residents beside the program."""
    return self.compiled.wanted + sum(self.beside.values())

  @property
  def left(self) -> int:
    """Free bytes of a chip; below 0 if the program does not fit."""
    return self.slice_.room - self.wanted

  @property
  def failure(self) -> str:
    """The sentence about the compiler's death; empty if it lived."""
    return self.compiled.failure

  @property
  def is_excluded(self) -> bool:
    """Says if the residents alone are too large, and nothing was compiled."""
    compiled = self.compiled
    return not (compiled.memory or compiled.seconds or compiled.failure)

  @property
  def fits(self) -> bool:
    """Says if the program compiled and the residents have room."""
    return self.compiled.memory is not None and self.left >= 0

  @property
  def lacks(self) -> bool:
    """Says if memory is all that the program lacks."""
    return not self.fits and not self.failure

  @property
  def tokens_per_s(self) -> float:
    """Tokens per second of all its chips at the bound; 0 if not applicable."""
    return self.tokens / self.roofline.step_s if self.roofline else 0.0

  @property
  def trajectory_tokens_per_s(self) -> float:
    """As `tokens_per_s`, of the tokens of trajectories that rows stand for."""
    if self.load is None or self.roofline is None:
      return 0.0
    return self.load.of_trajectories / self.roofline.step_s

  @property
  def received(self) -> dict[str, float]:
    """Bytes that a chip receives in one run, by kind of collective."""
    return bytes_by_kind(self.compiled.exchanges)

  @property
  def received_between_slices(self) -> float:
    """Those of these bytes that come over the data center network."""
    return between_slices(self.compiled.exchanges)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
  """Slices of the learner and of the rollout servers."""

  learner: Slice
  # Of one rollout server; None: the learner's process answers itself.
  rollout: Slice | None = None
  attempts: Attempts | None = None  # None: as `programs.learner_load` says
  is_quick: bool = False  # programs are compiled with the least effort

  def __post_init__(self) -> None:
    if self.rollout is not None and self.rollout.num_slices > 1:
      raise ConfigError(
        f"--rollout_topology={self.rollout.rented_as}: a rollout server is in "
        "one slice; name that of one server, however many there are"
      )

  def slice_of(self, role: str) -> Slice:
    """Returns the slice on which the programs of a role run."""
    if role == "rollout" and self.rollout is not None:
      return self.rollout
    return self.learner


# Of all planners of this process: it compiles for any slice, and importing jax
# takes seconds.
_COMPILER = Child()


def without_devices() -> None:
  """Lets this process compile for chips, and ask none that are here."""
  jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
  # Entries of a cache are loaded by a client of devices, which are not here.
  jax.config.update("jax_enable_compilation_cache", False)  # type: ignore[no-untyped-call]


def compile_by_name(
  deployment: Deployment, settings: Settings, role: str, name: str
) -> Compiled:
  """Compiles one program of a deployment in this process."""
  without_devices()
  programs = _planner(deployment).programs(settings, (role,))
  program = next(each for each in programs if each.name == name)
  return compile_program(
    program.trace(),
    unknown_turns=program.unknown_turns,
    num_devices=program.mesh.size,
    is_quick=deployment.is_quick,
  )


class Planner:
  """Compiles the programs of a deployment; caches its slices' devices.

  Programs are compiled in a child process, since the compiler aborts its own
  over some programs. Its death is in the judgement, and a plan goes on.
  """

  def __init__(self, deployment: Deployment):
    self.deployment = deployment
    self._learner = chips.describe(deployment.learner)
    self._rollout = (
      None if deployment.rollout is None else chips.describe(deployment.rollout)
    )

  def programs(self, settings: Settings, roles: Sequence[str]) -> list[Program]:
    """Lists the programs of the slices, not yet compiled."""
    programs = []
    if "learner" in roles:
      programs += learner_programs(
        settings, self._mesh(settings), attempts=self.deployment.attempts
      )
    if "rollout" in roles:
      programs += rollout_programs(
        settings,
        self._rollout_mesh(settings),
        dtype=self._dtype(settings),
        attempts=self.deployment.attempts,
      )
    return programs

  def study(
    self,
    settings: Settings,
    roles: Sequence[str] = ROLES,
    *,
    tell: Callable[[str], None] = lambda _: None,
  ) -> list[Judgement]:
    """Each program judged; `tell` hears the name of what is compiled next."""
    judgements = []
    for program in self.programs(settings, roles):
      tell(program.name)
      judgements.append(self.judge(settings, program))
    return judgements

  def judge(self, settings: Settings, program: Program) -> Judgement:
    """Compiles one program and adds the residents of its chips."""
    role = "rollout" if program.name in PROGRAMS["rollout"] else "learner"
    slice_ = self.deployment.slice_of(role)
    kept = self.residents(settings, role)
    compiled = self._compiled(settings, role, program, kept)
    bound = None
    if compiled.memory is not None:
      bound = roofline(
        slice_.chip,
        executed_flops=program.flops.of_busiest(program.mesh.size),
        moved=compiled.moved,
        exchanges=compiled.exchanges,
        slice_=slice_,
        coordinates=chips.coordinates(list(program.mesh.devices.flat)),
      )
    return Judgement(
      name=program.name,
      slice_=slice_,
      compiled=compiled,
      beside={
        name: size for name, size in kept.items() if name not in program.holds
      },
      tokens=program.tokens,
      flops=program.flops,
      load=program.load,
      answers=program.answers,
      roofline=bound,
    )

  def _compiled(
    self, settings: Settings, role: str, program: Program, kept: Residents
  ) -> Compiled:
    """Compiles, unless the residents alone exceed the memory."""
    slice_ = self.deployment.slice_of(role)
    if sum(kept.values()) > slice_.room:
      return Compiled(
        memory=None,
        wanted=sum(kept[name] for name in program.holds if name in kept),
      )
    try:
      compiled = _COMPILER.call(
        compile_by_name,
        self.deployment,
        settings,
        role,
        program.name,
        deadline_s=_COMPILE_S,
      )
    except ChildDied as death:
      if self.deployment.is_quick:  # at full effort it may live
        thorough = dataclasses.replace(self.deployment, is_quick=False)
        return _planner(thorough)._compiled(settings, role, program, kept)
      failure = (
        f"the compiler's process died of {program.name} for {slice_.name}: it "
        f"{death}" + (slice_.chip.caveat and f"; {slice_.chip.caveat}")
      )
      return Compiled(memory=None, wanted=0, failure=failure)
    return dataclasses.replace(
      compiled, moved=max(compiled.moved - program.unread, 0)
    )

  def residents(self, settings: Settings, role: str) -> Residents:
    """Lists residents of the learner's chips, or of a rollout server's.

    Raises `ConfigError` if the chips do not divide what is split over them.
    """
    is_rollout = role == "rollout"
    together = self.deployment.rollout is None
    by_name: Residents = {}
    if together or not is_rollout:
      by_name |= residents.learner_residents(settings, self._mesh(settings))
    if together or is_rollout:
      by_name |= residents.rollout_residents(
        settings,
        self._rollout_mesh(settings),
        dtype=self._dtype(settings),
        is_server=not together,
      )
    return by_name

  def _mesh(self, settings: Settings) -> Mesh:
    return sharding.make_mesh(
      settings.mesh, self._learner, slices=settings.slices
    )

  def _rollout_mesh(self, settings: Settings) -> Mesh:
    """Mesh of a server, over all its chips. In the learner's process it is one
    chip, unless the process has all of them.

    Raises `ConfigError` if the chips do not divide what is split.
    """
    if self._rollout is not None:
      check_devices(settings.model, len(self._rollout))
      return sharding.decoding_mesh(
        settings.model.shared_kv_heads, self._rollout
      )
    if self.deployment.learner.is_one_host:
      return self._mesh(settings)
    return sharding.make_mesh({}, self._learner[:1])

  def _dtype(self, settings: Settings) -> str:
    """Dtype of published weights: in one process that of training."""
    return "float32" if self._rollout is None else settings.compute.dtype


_planner = functools.lru_cache(maxsize=4)(Planner)
