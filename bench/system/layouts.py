"""Best asynchronous against best synchronous layout of as many devices.

  python -m bench.system.layouts
  python -m bench.system.layouts --ratio=2 --fixed=0.25,1 --staleness=4
  python -m bench.system.layouts --output=layouts.csv

A virtual clock and the controller's own collector, admission and queue, as in
`bench.system.pipeline`; devices decode as `bench.system.devices` says. `ratio`
is the time that one device needs to play a batch, with all of its places taken,
over the time that it needs for the update. Layouts of N devices:

- colocated, synchronous: all play, then all train; `--switch` is what changing
  over costs, as a share of the least time of a batch;
- split, synchronous: k devices play while N - k wait, then these train;
- oversampled, synchronous: the colocated one with a quarter more groups, of
  which the last to finish are thrown away. It favours short episodes: `length`,
  the mean of trained ones over that of started ones, is below 1;
- asynchronous: k devices play while N - k train, within `max_staleness` and
  `queue.max_age` and `queue.patience` as in `configs`.

The best k is searched for, for either. `speed-up` is over the faster of the
colocated and the split layout. No layout is faster than work allows:

  rate <= episodes of a batch x N / (play + update at one device)

which the colocated one reaches if its batch fills all places and all episodes
are alike.

Assumed, and the same for all layouts: an update on n devices takes 1/n of one
device's time; load is spread evenly; new weights arrive at once and cost
nothing; a learner's memory leaves as many places. The first two favour whoever
has more devices for one thing, the colocated layout.
"""

import argparse
import asyncio
import dataclasses
import itertools
import math
import random
import statistics
import sys
from collections.abc import Awaitable, Iterable, Iterator, Sequence

from agentrl_jax.controller.groups.group_queue import ANY_AGE
from agentrl_jax.errors import ConfigError
from bench.system import pipeline, virtual_time
from bench.system.devices import Devices
from bench.system.pipeline import Found, Pipeline
from configs import base
from launch.reports import measured

PLACES = 32  # of a device
GROUP_SIZE, GROUPS = 8, 32
BATCH = GROUP_SIZE * GROUPS
TURNS, TURN_S = 8, 0.2
PLAY_S = BATCH * TURNS * TURN_S / PLACES  # of a batch, at one device
OVERSAMPLED = 1.25  # groups that are started over those that are trained on
_LUCK = 1.05  # the most that drawn episodes are shorter than the mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """Quantities that all layouts of a comparison share."""

  ratio: float  # of play to update, at one device
  sigma: float  # of the logarithm of a turn's length
  fixed: float  # part of a decode step that fewer sequences do not save
  devices: int
  switch: float  # share of a batch's least time
  seed: int
  steps: int

  def __post_init__(self) -> None:
    if self.devices < 2:
      raise ConfigError(
        f"--devices={self.devices}: an asynchronous layout has 2 or more"
      )
    if not self.ratio > 0:
      raise ConfigError(f"--ratio={self.ratio:g}; it must be above 0")

  @property
  def update_s(self) -> float:
    """Time of an update at one device."""
    return PLAY_S / self.ratio

  @property
  def least_s(self) -> float:
    """Time of a batch if no device ever waits."""
    return (PLAY_S + self.update_s) / self.devices

  @property
  def spread(self) -> float:
    """Standard deviation of an episode's length over its mean."""
    return math.sqrt(math.expm1(self.sigma**2) / TURNS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
  """A use of the devices, and the most episodes per second that it allows."""

  arm: str
  playing: int  # devices
  bound: float
  pipeline: Pipeline


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """The best layout of an arm, and what became of it."""

  ratio: float
  sigma: float
  spread: float
  fixed: float
  devices: int
  switch: float
  seed: int
  steps: int
  arm: str
  max_staleness: int
  playing: int  # devices that play; all of them: colocated
  rate: float  # trained episodes per second
  share_of_bound: float
  speed_up: float  # over the best synchronous layout that keeps all episodes
  staleness_mean: float
  staleness_max: int
  length: float
  cut_off: float


def colocated(setting: Setting) -> Layout:
  """Returns the synchronous layout in which all devices play, then train."""
  switch_s = setting.switch * setting.least_s
  return _layout(
    setting,
    "colocated",
    setting.devices,
    train_s=setting.update_s / setting.devices + switch_s,
    bound=BATCH / (setting.least_s + switch_s),
  )


def split(setting: Setting, playing: int) -> Layout:
  """Returns the synchronous layout whose devices play or train."""
  train_s = setting.update_s / (setting.devices - playing)
  bound = BATCH / (PLAY_S / playing + train_s)
  return _layout(setting, "split", playing, train_s=train_s, bound=bound)


def asynchronous(setting: Setting, playing: int, max_staleness: int) -> Layout:
  """Returns a layout in which neither side waits for the other."""
  train_s = setting.update_s / (setting.devices - playing)
  queue = base.get_config().queue
  return _layout(
    setting,
    "asynchronous",
    playing,
    train_s=train_s,
    bound=BATCH / max(PLAY_S / playing, train_s),
    max_staleness=max_staleness,
    max_age=max(queue.max_age, max_staleness),
    patience=queue.patience,
  )


def _layout(
  setting: Setting,
  arm: str,
  playing: int,
  *,
  train_s: float,
  bound: float,
  max_staleness: int = 0,
  max_age: int = ANY_AGE,
  patience: float | None = None,
) -> Layout:
  of = Pipeline(
    sigma=setting.sigma,
    turn_s=TURN_S,
    turns=TURNS,
    places=PLACES * playing,
    group_size=GROUP_SIZE,
    groups_per_step=GROUPS,
    train_s=train_s,
    fixed=setting.fixed,
    max_staleness=max_staleness,
    max_age=max_age,
    patience=patience,
    deadline_s=math.inf,
    groups_in_flight=0,
    seed=setting.seed,
    steps=setting.steps,
  )
  return Layout(arm=arm, playing=playing, bound=bound, pipeline=of)


def best(layouts: Iterable[Layout]) -> tuple[Layout, Found]:
  """Simulates those that may be the fastest; returns the fastest.

  Highest bound first, so that the search ends once no bound is above the
  fastest rate. The first is kept where several are as fast.
  """
  found: tuple[Layout, Found] | None = None
  for layout in sorted(layouts, key=lambda each: -each.bound):
    if found and _LUCK * layout.bound <= found[1].rate:
      break
    result = pipeline.simulate(layout.pipeline)
    if not found or result.rate > found[1].rate:
      found = layout, result
  if found is None:
    raise ValueError("there is no layout to choose from")
  return found


def compare(setting: Setting, staleness: Sequence[int]) -> Iterator[Row]:
  """Yields the best layout of each arm.

  There is one asynchronous row for each `max_staleness`.
  """
  splits = range(1, setting.devices)
  together = colocated(setting)
  oversampled = dataclasses.replace(together, arm="oversampled")
  kept = [best([together]), best(split(setting, playing) for playing in splits)]
  others = [
    (oversampled, oversample(together.pipeline)),
    *(
      best(asynchronous(setting, playing, most) for playing in splits)
      for most in staleness
    ),
  ]
  synchronous = max(found.rate for _, found in kept)
  for layout, found in (*kept, *others):
    yield _row(setting, layout, found, synchronous)


def _row(
  setting: Setting, layout: Layout, found: Found, synchronous: float
) -> Row:
  return Row(
    **dataclasses.asdict(setting),
    spread=setting.spread,
    arm=layout.arm,
    max_staleness=layout.pipeline.max_staleness,
    playing=layout.playing,
    rate=found.rate,
    share_of_bound=found.rate * setting.least_s / BATCH,
    speed_up=found.rate / synchronous,
    staleness_mean=found.staleness_mean,
    staleness_max=found.staleness_max,
    length=found.length,
    cut_off=found.cut_off,
  )


def oversample(of: Pipeline) -> Found:
  """Simulates synchronous training on the first groups to finish."""
  return virtual_time.run(_oversample(of))


async def _oversample(of: Pipeline) -> Found:
  devices, dice = Devices(of.places, of.fixed), random.Random(of.seed)
  lengths_s: list[float] = []  # of all episodes that were started
  trained_s: list[float] = []

  async def play(length_s: float) -> float:
    async with devices.places:
      await devices.decode(length_s)
    return length_s

  def start() -> asyncio.Task[list[float]]:
    drawn = [of.length_s(dice.getrandbits(31)) for _ in range(of.group_size)]
    lengths_s.extend(drawn)
    return asyncio.create_task(_all(play(length_s) for length_s in drawn))

  for _ in range(of.steps):
    groups = [start() for _ in range(math.ceil(OVERSAMPLED * GROUPS))]
    ended = itertools.islice(asyncio.as_completed(groups), of.groups_per_step)
    for group in ended:
      trained_s += await group
    for group in groups:
      group.cancel()
    await asyncio.wait(groups)
    await asyncio.sleep(of.train_s)
  took_s = asyncio.get_running_loop().time()
  length = statistics.fmean(trained_s) / statistics.fmean(lengths_s)
  cut_off = 1 - len(trained_s) / len(lengths_s)
  return Found(
    rate=len(trained_s) / took_s,
    others=len(trained_s) / took_s,
    staleness_mean=0.0,
    staleness_max=0,
    length=length,
    cut_off=cut_off,
  )


async def _all(episodes: Iterable[Awaitable[float]]) -> list[float]:
  return list(await asyncio.gather(*episodes))


def settings(options: argparse.Namespace) -> Iterator[Setting]:
  """Yields a setting for each combination of the options."""
  names = ("fixed", "devices", "switch", "seed", "ratio", "sigma")
  values = (getattr(options, name) for name in names)
  for chosen in itertools.product(*values):
    yield Setting(**dict(zip(names, chosen, strict=True)), steps=options.steps)


def words(staleness: Sequence[int]) -> str:
  """Returns the words of the table: what its rows and columns are."""
  split_at = "{speed_up:.2f} ({playing} play)"
  columns = [
    ("spread", "{spread:.2f}", "colocated"),
    ("colocated, of bound", "{share_of_bound:.2f}", "colocated"),
    ("speed-up: split", split_at, "split"),
    ("oversampled", "{speed_up:.2f} (length {length:.2f})", "oversampled"),
    *(
      (f"max_staleness {n}", split_at, f"asynchronous; max_staleness={n}")
      for n in staleness
    ),
  ]
  return "\n".join(
    [
      "by fixed, devices, switch, seed, ratio, sigma",
      *(f"{title} = {cell} where arm={arm}" for title, cell, arm in columns),
    ]
  )


def main() -> None:
  """Prints the table; keeps its rows in `--output`."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  numbers, counts = pipeline.numbers, pipeline.counts
  parser.add_argument("--ratio", type=numbers, default=[0.5, 1.0, 2.0, 4.0])
  parser.add_argument("--sigma", type=numbers, default=[0.0, 0.5, 1.0, 1.5])
  parser.add_argument("--fixed", type=numbers, default=[0.5])
  parser.add_argument("--devices", type=counts, default=[8])
  parser.add_argument("--switch", type=numbers, default=[0.0])
  parser.add_argument("--staleness", type=counts, default=[1, 2, 4])
  parser.add_argument("--steps", type=int, default=40)
  parser.add_argument("--seed", type=counts, default=[0])
  parser.add_argument("--output", type=measured.output, help="a CSV, added to")
  options = parser.parse_args()
  rows: list[dict[str, object]] = []
  for setting in settings(options):
    rows += map(dataclasses.asdict, compare(setting, options.staleness))
    if options.output:
      measured.keep(options.output, rows)  # as they come: it takes minutes
  sys.stdout.write(f"simulated, not measured: {vars(options)}\n")
  sys.stdout.write(measured.table(rows, words(options.staleness)))


if __name__ == "__main__":
  main()
