"""Plans the whole run: from compiled programs, or from a run's own rates."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.errors import ConfigError
from launch.config.settings import Settings
from launch.planning.chips import slices_of
from launch.planning.study import Deployment, Judgement
from launch.planning.system.measured import Measured
from launch.planning.system.prediction import System, explain, predict
from launch.planning.system.prices import Prices
from launch.planning.system.rates import by_name, learner_rate, rollout_rate
from launch.planning.system.split import Split, best_splits
from launch.planning.system.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """Flags of a plan of the whole run, beside the slices."""

  workload: Workload
  utilisation: float  # share of the bounds that programs reach
  num_servers: int
  num_chips: int  # to split; 0: none
  prices: Prices

  def __post_init__(self) -> None:
    if not 0 < self.utilisation <= 1:
      raise ConfigError(
        f"--utilisation={self.utilisation:g} must be above 0 and at most 1: "
        "the share of their bounds that programs reach, such as 0.5"
      )
    if self.num_servers < 1:
      raise ConfigError(
        f"--rollout_slices={self.num_servers} must be 1 or more servers"
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """The predicted runs by name, splits of chips, and notes for the reader."""

  systems: Mapping[str, System]
  slices: str
  notes: Sequence[str]
  splits: Sequence[Split] = ()


def require_slices(deployment: Deployment, request: Request) -> None:
  """Raises `ConfigError`, before anything is compiled, for unusable slices."""
  if deployment.rollout is None:
    raise ConfigError(
      "--system needs --rollout_topology, the slice of one rollout server: "
      "an engine in the learner's process shares its chips, and neither side "
      "has a rate of its own"
    )
  learner = deployment.learner
  request.prices.require([learner, deployment.rollout])
  smallest, *_ = slices_of(learner.chip, learner.num_slices)
  least = smallest.num_chips + deployment.rollout.num_chips
  if 0 < request.num_chips < least or request.num_chips < 0:
    raise ConfigError(
      f"--chips={request.num_chips} are too few: the smallest learner's slice "
      f"and one {deployment.rollout.name} take {least}"
    )


def plan_whole_run(
  settings: Settings,
  deployment: Deployment,
  judged: Sequence[Judgement],
  request: Request,
  *,
  tell: Callable[[str], None] = lambda _: None,
) -> Plan:
  """Predicts the run at the bounds and at the stated utilisation.

  All programs of `judged` must have been compiled and fit.
  """
  server = deployment.rollout
  assert server is not None  # by `require_slices`
  slices = [deployment.learner, *[server] * request.num_servers]
  programs, workload = by_name(judged), request.workload
  systems: dict[str, System] = {}
  for utilisation in dict.fromkeys((1.0, request.utilisation)):
    rollouts = rollout_rate(
      settings,
      workload,
      programs,
      utilisation=utilisation,
      num_servers=request.num_servers,
    )
    system = predict(
      settings,
      workload,
      learner_rate(
        settings, workload, programs, utilisation=utilisation, server=server
      ),
      rollouts,
      slices=slices,
      prices=request.prices,
    )
    name = "at the bound" if utilisation == 1 else f"at {utilisation:.0%} of it"
    systems[name] = system
  splits: Sequence[Split] = ()
  if request.num_chips:
    splits = best_splits(
      settings,
      workload,
      deployment,
      programs,
      num_chips=request.num_chips,
      utilisation=request.utilisation,
      prices=request.prices,
      tell=tell,
    )
  return Plan(
    systems=systems,
    slices=(
      f"{deployment.learner.name} and {request.num_servers} x {server.name}"
    ),
    notes=[explain(system, settings, rollouts), request.prices.source(slices)],
    splits=splits,
  )


def plan_measured(settings: Settings, found: Measured) -> Plan:
  """Predicts a run of these settings at the rates that another one measured."""
  rollouts = found.rollouts
  system = predict(settings, found.workload, found.learner, rollouts)
  return Plan(
    systems={"at the run's rates": system},
    slices="the machine of the measured run",
    notes=[explain(system, settings, rollouts)],
  )
