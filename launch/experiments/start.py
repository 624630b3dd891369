"""State of a warm start: can arms that begin from it still differ?

From its attempts at training tasks: success, spread of the rewards, share of
groups with a signal, and the tasks that any attempt wins.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from agentrl_jax.controller.evaluation import wilson_interval
from agentrl_jax.data.records import Status, Task
from launch.comparisons.attempts import Attempt, differing_share
from launch.reports.numbers import percent

LEAST_SIGNAL = 0.1  # share of groups; below, success can hardly be learned
LEAST_ROOM = 0.05  # share of tasks, where no plan says which difference counts

Attempts = Mapping[str, Mapping[Task, Sequence[Attempt]]]  # by environment


@dataclasses.dataclass(frozen=True)
class TaskStart:
  """State of one environment at the start of RL."""

  task: str
  success: float  # sampled
  low: float
  high: float
  reward_spread: float  # standard deviation over attempts
  signal: float  # share of groups whose attempts differ in the trained reward
  differ: float  # share of groups whose attempts differ in success
  greedy: float | None  # success; None: not played
  reachable: float  # share of tasks that any attempt wins, greedy or sampled

  def level(self, mode: str) -> float | None:
    """Returns success in the mode that is judged."""
    return self.greedy if mode == "greedy" else self.success


def starts_of(
  attempts: Attempts,
  group_size: int,
  *,
  incomplete_reward: float,
  greedy: Attempts | None = None,
) -> list[TaskStart]:
  """Reads the attempts of a warm start, by environment.

  As in training, an attempt that did not complete has `incomplete_reward`.
  `greedy` has one attempt at each of the same tasks.
  """

  def trained_reward(attempt: Attempt) -> float:
    is_complete = attempt.status == Status.COMPLETED.value
    return attempt.reward if is_complete else incomplete_reward

  starts = []
  for name, tasks in sorted(attempts.items()):
    each = [a for tries in tasks.values() for a in tries]
    wins = sum(a.success for a in each)
    low, high = wilson_interval(wins, len(each))
    by_greed = (greedy or {}).get(name, {})
    starts.append(
      TaskStart(
        task=name,
        success=wins / len(each),
        low=low,
        high=high,
        reward_spread=statistics.pstdev(map(trained_reward, each)),
        signal=differing_share(
          [list(map(trained_reward, tries)) for tries in tasks.values()],
          group_size,
        ),
        differ=differing_share(
          [[a.success for a in tries] for tries in tasks.values()], group_size
        ),
        greedy=_success(by_greed) if by_greed else None,
        reachable=statistics.fmean(
          any(a.success for a in (*tries, *by_greed.get(task, ())))
          for task, tries in tasks.items()
        ),
      )
    )
  return starts


def _success(tasks: Mapping[Task, Sequence[Attempt]]) -> float:
  return statistics.fmean(a.success for own in tasks.values() for a in own)


def hopeless_tasks(starts: Sequence[TaskStart]) -> list[str]:
  """Says of each task from which an arm can hardly learn, and why."""
  sentences = []
  for each in starts:
    if each.differ >= LEAST_SIGNAL:
      continue
    if each.success < 0.1:
      how, remedy = "almost never", "more demonstrations, or easier tasks"
    elif each.success > 0.9:
      how, remedy = "almost always", "harder tasks"
    else:
      how, remedy = "always or never, by task", "tasks of other difficulty"
    sentences.append(
      f"{each.task} is solved {how} at the start ({percent(each.success)}): "
      f"only {percent(each.differ)} of its groups differ in success. No arm "
      f"can show much there; try {remedy}."
    )
  return sentences


def without_room(
  starts: Sequence[TaskStart], mode: str, least: float
) -> str | None:
  """Says why no arm can rise by `least` (a share) from here; None: it can.

  The room is the share of tasks that the warm start does not win in the mode
  that is judged, and wins in one of its attempts. RL that finds what no attempt
  does can rise further, and few do.
  """
  levels = [each.level(mode) for each in starts]
  known = [level for level in levels if level is not None]
  if not known or len(known) < len(levels):
    return None
  level = statistics.fmean(known)
  reachable = statistics.fmean(each.reachable for each in starts)
  if reachable - level >= least:
    return None
  where = "ceiling" if level > 1 - reachable else "floor"
  return (
    f"the warm start is at its {where}, {percent(level)} {mode}: all attempts "
    f"together win {percent(reachable)} of the tasks, so that "
    f"{100 * max(reachable - level, 0):.1f} points are left to learn"
  )
