"""Plan of an experiment: what is asked and judged, written before it is run.

An ablation's file has `PLAN = ExperimentPlan(...)` beside its ARMS. The sweep
records it at its first start, and the report says what was run otherwise.
"""

import dataclasses
import math

from agentrl_jax.errors import ConfigError

LEVEL = 0.05  # of false positives, over all contrasts and looks
MOST_SEEDS = 1000
LEAST_SAMPLED = 512  # tasks of a sampled outcome
SAMPLED = "sampled"


def split_term(term: str) -> tuple[str, str, str]:
  """Splits "arm@stage/task"; what is left out is ""."""
  whole, _, task = term.strip().partition("/")
  arm, _, stage = whole.partition("@")
  return arm, stage, task


def plain_side(side: str, stage: str) -> str:
  """Returns a side without what says nothing: blanks, and the stage of all.

  So that an arm is known as one, however it is written.
  """
  terms = []
  for term in side.split(" + "):
    arm, own_stage, task = split_term(term)
    at = f"@{own_stage}" if own_stage not in ("", stage) else ""
    terms.append(f"{arm}{at}/{task}" if task else f"{arm}{at}")
  return " + ".join(terms)


@dataclasses.dataclass(frozen=True)
class Contrast:
  """Two sides of a difference, `after` - `before`.

  A side is an arm, or a sum of several that each have some of the tasks;
  `launch/comparisons/finals.py` has the syntax.
  """

  after: str
  before: str

  @classmethod
  def parse(cls, text: str) -> "Contrast":
    """Reads "after - before"; raises `ConfigError` if it is something else."""
    after, minus, before = (part.strip() for part in text.partition(" - "))
    if not (minus and after and before):
      raise ConfigError(
        f"the plan's contrast {text!r} must be two arms as `after - before`"
      )
    after, before = plain_side(after, "rl"), plain_side(before, "rl")
    if sorted(after.split(" + ")) == sorted(before.split(" + ")):
      raise ConfigError(
        f"the plan's contrast {text!r} is of {after} with itself: name two arms"
      )
    return cls(after, before)

  @property
  def terms(self) -> list[tuple[str, str, str]]:
    """Arm, stage and task of each term of both sides."""
    terms = [*self.after.split(" + "), *self.before.split(" + ")]
    return [split_term(term) for term in terms]

  @property
  def arms(self) -> list[str]:
    """The arms of both sides, without tasks and stages."""
    return list(dict.fromkeys(arm for arm, _, _ in self.terms))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentPlan:
  """One experiment. Raises `ConfigError` for a plan that says nothing.

  The primary outcome is the success after `stage`, in `mode`, on `task`. The
  level of each test is LEVEL, divided by the contrasts and the planned looks
  (Bonferroni).
  """

  question: str
  mode: str  # greedy, sampled, or a mode of training of launch/report.py
  task: str = "mean"  # or the name of an environment
  stage: str = "rl"
  contrasts: tuple[str, ...]  # "after - before"
  controls: tuple[str, ...] = ()  # contrasts that must come out null
  seeds: int  # of each arm, fixed
  # Points of success that must be found: the paper's, or what would matter.
  least_difference: float
  # Points: standard deviation over seeds of the paired difference that is
  # expected, beyond the noise of episodes; and the runs that it is taken from.
  spread: float
  spread_from: str
  num_tasks: int  # per environment that the mode evaluates; 0: training
  power: float = 0.8
  looks: int = 1  # at the data
  higher: str  # meaning of a higher `after`, as a sentence
  lower: str
  neither: str

  def __post_init__(self) -> None:
    self._require_texts()
    self._require_numbers()
    for text in (*self.contrasts, *self.controls):
      Contrast.parse(text)
    if twice := set(self.contrasts) & set(self.controls):
      raise ConfigError(
        f"the plan has {', '.join(sorted(twice))} both as a contrast and as a "
        "control, which must come out null: choose one"
      )
    if self.mode == SAMPLED and self.num_tasks < LEAST_SAMPLED:
      raise ConfigError(
        f"the plan judges a sampled outcome by num_tasks={self.num_tasks}, and "
        f"needs at least {LEAST_SAMPLED}: tasks are cheaper than seeds. Set "
        f"evaluation.num_sampled={LEAST_SAMPLED} in get_config, too"
      )

  def _require_texts(self) -> None:
    for name in ("contrasts", "controls"):
      found = getattr(self, name)
      if not isinstance(found, tuple):
        raise ConfigError(
          f"the plan's {name} must be a tuple of texts, as in "
          f'("changed - full",); it is {found!r}'
        )
    names = ("question", "mode", "task", "stage", "spread_from")
    for name in (*names, "higher", "lower", "neither"):
      found = getattr(self, name)
      if not isinstance(found, str) or not found.strip():
        raise ConfigError(
          f"the plan's {name} must say something; it is {found!r}"
        )
    if not self.contrasts:
      raise ConfigError("the plan must have a contrast, as `changed - full`")

  def _require_numbers(self) -> None:
    least = {"seeds": 2, "looks": 1, "num_tasks": 0}
    for name, at_least in least.items():
      found = getattr(self, name)
      if type(found) is not int or found < at_least:
        raise ConfigError(
          f"the plan's {name} must be a whole number from {at_least} on; it is "
          f"{found!r}"
        )
    for name, above, below in (
      ("least_difference", 0.0, 100.0),
      ("spread", -math.ulp(0.0), 100.0),
      ("power", 0.5, 1.0),
    ):
      found = getattr(self, name)
      if not isinstance(found, int | float) or not above < found < below:
        raise ConfigError(
          f"the plan's {name} must be a number between {max(above, 0.0):g} and "
          f"{below:g}; it is {found!r}"
        )
    if self.is_of_training != (self.num_tasks == 0):
      raise ConfigError(
        f"the plan's num_tasks is {self.num_tasks} and its mode {self.mode!r}: "
        "set the tasks of an evaluation, and 0 for a mode of training, whose "
        "spread over seeds has the noise of its episodes in it"
      )

  @property
  def is_of_training(self) -> bool:
    """True if the rollouts of training are judged, and no evaluation."""
    return self.mode.startswith("training")

  @property
  def arms(self) -> list[str]:
    """The arms of all contrasts and controls, in their order."""
    each = [Contrast.parse(c).arms for c in (*self.contrasts, *self.controls)]
    return list(dict.fromkeys(name for arms in each for name in arms))

  @property
  def level(self) -> float:
    """Level of each test."""
    return LEVEL / (self.looks * len(self.contrasts))
