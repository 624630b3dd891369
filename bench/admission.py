"""Staleness bounds: their cost by admission, and by dropping stale groups.

  python -m bench.admission

Simulates the pipeline in virtual time with the controller's own `Admission`:
groups of log-normal length in a fixed number of places, and a learner that
takes a batch, trains for a while and publishes a version. Peers, in the same
run and on the same lengths: other orders in which the learner takes groups
under admission (as they finish; the same, but in time for `max_age`; as they
started), and dropping, which starts a group whenever there is a place and drops
groups older than `max_staleness`.

The reference is a learner that never waits: `busy` is the share of time in
which the learner trains. `mean`, `p99` and `max` are staleness in versions.
`length` is the mean length of trained groups over that of played groups: below
1, the data is biased towards short tasks.
"""

import argparse
import heapq
import math
import random
import statistics

from agentrl_jax.controller.admission import Admission, AdmissionLimits
from agentrl_jax.controller.group_queue import select_groups

STEP_S = 10.0  # of training
NO_ADMISSION = 1 << 30


class Pipeline:
  """Groups in flight and finished, by the virtual clock."""

  def __init__(self, rule: str, args: argparse.Namespace) -> None:
    self._rule, self._args = rule, args
    bound = NO_ADMISSION if rule == "drop" else args.max_staleness
    self._admission = Admission(
      AdmissionLimits(
        max_staleness=bound,
        groups_per_step=args.groups_per_step,
        max_concurrent_groups=args.places,
        versions_per_step=1,
        refills_per_step=0,
      )
    )
    self._lengths: list[float] = []  # of every group, by its number
    self._since: list[int] = []  # which version, of every group
    self._born: dict[int, int] = {}  # the same, of those not yet taken
    self._ends: list[tuple[float, int]] = []  # heap of (time, group)
    self._finished: dict[int, None] = {}
    self.num_dropped = 0

  def start_what_may(self, now_s: float) -> None:
    while self._admission.refusal() is None:
      group = len(self._lengths)
      dice = random.Random(f"{self._args.seed}/{group}")
      mean_log = math.log(self._args.length_s) - self._args.sigma**2 / 2
      length_s = dice.lognormvariate(mean_log, self._args.sigma)
      self._lengths.append(min(length_s, self._args.deadline_s))
      self._since.append(self._admission.version)
      self._born[group] = self._admission.version
      self._admission.start()
      heapq.heappush(self._ends, (now_s + self._lengths[group], group))

  def advance_to(self, now_s: float) -> None:
    while self._ends and self._ends[0][0] <= now_s:
      end_s, group = heapq.heappop(self._ends)
      self._finished[group] = None
      self._admission.end()
      self.start_what_may(end_s)

  def batch(self) -> list[int] | None:
    """Selects the learner's next batch, if there are enough groups."""
    self._drop_stale()
    taken = self._choose()
    for group in taken or ():
      del self._finished[group]
      del self._born[group]
    return taken

  def _choose(self) -> list[int] | None:
    number = self._args.groups_per_step
    if len(self._finished) < number:
      return None
    if self._rule == "started":
      first = sorted(self._born)[:number]
      return first if all(g in self._finished for g in first) else None
    if self._rule == "in time":
      return select_groups(
        self._finished,
        self._born,
        num_groups=number,
        version=self._admission.version,
        max_age=self._args.max_age,
      )
    return list(self._finished)[:number]

  def next_end_s(self) -> float:
    return self._ends[0][0]

  def trained(self, now_s: float) -> None:
    self._admission.advance(self._admission.version + 1)
    self.start_what_may(now_s)

  def age(self, group: int) -> int:
    return self._admission.version - self._since[group]

  def length_s(self, group: int) -> float:
    return self._lengths[group]

  def mean_length_of_ended(self) -> float:
    running = {group for _, group in self._ends}
    return statistics.fmean(
      s for group, s in enumerate(self._lengths) if group not in running
    )

  def _drop_stale(self) -> None:
    if self._rule != "drop":
      return
    for group in list(self._finished):
      if self.age(group) > self._args.max_staleness:
        del self._finished[group]
        del self._born[group]
        self.num_dropped += 1


def simulate(rule: str, args: argparse.Namespace) -> str:
  """Simulates one rule, from an empty pipeline to `args.steps` updates."""
  pipeline = Pipeline(rule, args)
  now_s = idle_timeout_s = 0.0
  ages: list[int] = []
  lengths_s: list[float] = []
  pipeline.start_what_may(now_s)
  for _ in range(args.steps):
    while (taken := pipeline.batch()) is None:
      idle_timeout_s += pipeline.next_end_s() - now_s
      now_s = pipeline.next_end_s()
      pipeline.advance_to(now_s)
    ages += map(pipeline.age, taken)
    lengths_s += map(pipeline.length_s, taken)
    now_s += STEP_S
    pipeline.advance_to(now_s)
    pipeline.trained(now_s)
  ages.sort()
  share = statistics.fmean(lengths_s) / pipeline.mean_length_of_ended()
  dropped = pipeline.num_dropped / (pipeline.num_dropped + len(ages))
  busy, p99 = args.steps * STEP_S / now_s, ages[len(ages) * 99 // 100]
  return (
    f"{rule:>9} {busy:6.2f} {statistics.fmean(ages):6.2f} {p99:5d}"
    f" {ages[-1]:5d} {dropped:8.1%} {share:7.2f}"
  )


def main() -> None:
  """Prints one line per rule."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--groups_per_step", type=int, default=16)
  parser.add_argument("--places", type=int, default=48)
  parser.add_argument("--max_staleness", type=int, default=2)
  parser.add_argument("--max_age", type=int, default=6)
  parser.add_argument("--length_s", type=float, default=20.0)
  parser.add_argument("--sigma", type=float, default=1.0)
  parser.add_argument("--deadline_s", type=float, default=math.inf)
  parser.add_argument("--steps", type=int, default=500)
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  print(f"simulated, not measured: {vars(args)}, {STEP_S:g} s of training")  # noqa: T201
  print("    taken   busy   mean   p99   max  dropped  length")  # noqa: T201
  for rule in ("finished", "in time", "started", "drop"):
    print(simulate(rule, args), flush=True)  # noqa: T201


if __name__ == "__main__":
  main()
