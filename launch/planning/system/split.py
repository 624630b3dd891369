"""Splits a number of chips between the learner and rollout servers.

Every slice of the learner's kind of chip that leaves room for a server is
tried, with as many servers as fit beside it. The servers' programs are compiled
once, the learner's once for each slice, on the mesh that `search.estimate`
finds fastest; the config's own slice keeps its own mesh.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from launch.config.settings import Settings
from launch.planning.chips import Slice, slices_of
from launch.planning.search import estimate, meshes_of, shape_name, with_mesh
from launch.planning.study import Deployment, Judgement, Planner
from launch.planning.system.prediction import System, predict
from launch.planning.system.prices import Prices
from launch.planning.system.rates import by_name, learner_rate, rollout_rate
from launch.planning.system.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
  """Slices for some chips, and the run that is predicted on them."""

  learner: Slice
  server: Slice
  num_servers: int
  mesh: str
  system: System | None  # None: the learner does not fit

  @property
  def num_chips(self) -> int:
    """Chips of all slices; some may be left over."""
    return self.learner.num_chips + self.num_servers * self.server.num_chips


def best_splits(
  settings: Settings,
  workload: Workload,
  deployment: Deployment,
  judged: Mapping[str, Judgement],
  *,
  num_chips: int,
  utilisation: float,
  prices: Prices,
  tell: Callable[[str], None] = lambda _: None,
) -> list[Split]:
  """Returns the splits of `num_chips`, most steps per hour first.

  `judged` has the programs of the deployment's own slices, which are not
  compiled again. Splits that do not fit come last.
  """
  server = deployment.rollout
  assert server is not None  # a plan of the whole system needs one
  splits = []
  for slice_, changed in _learners(settings, deployment, num_chips):
    programs = dict(judged)
    if slice_ != deployment.learner:
      tell(f"the learner on {slice_.name}")
      planner = Planner(dataclasses.replace(deployment, learner=slice_))
      programs |= by_name(planner.study(changed, ("learner",)))
    num_servers = (num_chips - slice_.num_chips) // server.num_chips
    system = None
    if all(each.fits for each in programs.values()):
      system = predict(
        changed,
        workload,
        learner_rate(
          changed, workload, programs, utilisation=utilisation, server=server
        ),
        rollout_rate(
          settings,
          workload,
          programs,
          utilisation=utilisation,
          num_servers=num_servers,
        ),
        slices=[slice_, *[server] * num_servers],
        prices=prices,
      )
    splits.append(
      Split(
        learner=slice_,
        server=server,
        num_servers=num_servers,
        mesh=shape_name(changed.mesh),
        system=system,
      )
    )
  return sorted(splits, key=lambda split: -_steps_per_hour(split))


def _steps_per_hour(split: Split) -> float:
  return split.system.steps_per_hour if split.system else 0.0


def _learners(
  settings: Settings, deployment: Deployment, num_chips: int
) -> Iterator[tuple[Slice, Settings]]:
  """Yields slices of the learner, with settings whose mesh is as large."""
  own, server = deployment.learner, deployment.rollout
  assert server is not None
  sizes = set[int]()
  for slice_ in slices_of(own.chip, own.num_slices):
    if slice_.num_chips + server.num_chips > num_chips:
      continue
    if slice_.num_chips in sizes or slice_.num_chips.bit_count() > 1:
      continue  # there are sizes in between: a learner is compiled for each
    sizes.add(slice_.num_chips)
    if slice_.num_chips == own.num_chips:
      yield own, settings
      continue
    candidates = [
      estimate(settings, mesh, slice_, deployment.attempts)
      for mesh in meshes_of(settings, slice_)
    ]
    possible = [c for c in candidates if c.estimate_s < float("inf")]
    if possible:
      best = min(possible, key=lambda c: c.estimate_s)
      yield slice_, with_mesh(settings, best.mesh)
