"""Makes tasks out of nothing: content is a pure function of (split, index).

The line between the splits is drawn through texts, not seeds: a task is drawn
again until its description belongs to its split, so train and test share none.
What is right is found out by running the gold script on the task's machine,
before the policy's first command.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.data.split import split_of
from agentrl_jax.errors import ConfigError
from environments.os_interaction.tasks import (
  chores,
  commands,
  lookups,
  questions,
)
from environments.os_interaction.tasks.draft import Draft
from environments.os_interaction.tasks.problem import Problem, Script

KINDS: Mapping[str, Callable[[random.Random, int], Draft]] = {
  "count_files": questions.count_files,
  "log": questions.query_log,
  "sum": questions.sum_column,
  "largest": lookups.find_largest,
  "users": questions.count_users,
  "words": questions.count_words,
  "processes": questions.count_processes,
  "archive": questions.look_into_archive,
  "setting": lookups.read_setting,
  "search": lookups.find_text,
  "permissions": chores.set_permissions,
  "add_user": chores.add_user,
  "rename": chores.rename_files,
  "pack": chores.pack_folder,
  "edit": chores.edit_setting,
  "command": commands.make_command,
  "end_processes": chores.end_processes,
  "links": chores.link_files,
  "owners": chores.give_files_away,
}
DEFAULT_KINDS = tuple(KINDS)
LEVELS = (1, 3)  # the easiest and the hardest
_TRIES = 1000  # until a kind counts as having no task on one side


@dataclasses.dataclass(frozen=True)
class Generated:
  """A problem, and how it came about."""

  problem: Problem
  kind: str
  slip: str  # a script that nearly solves it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generator:
  """What is asked, and how hard it is (levels from 1 to 3, inclusive)."""

  kinds: Sequence[str] = DEFAULT_KINDS
  difficulty: tuple[int, int] = LEVELS

  def __post_init__(self) -> None:
    unknown = sorted(set(self.kinds) - set(KINDS))
    if unknown or not self.kinds or isinstance(self.kinds, str):
      raise ConfigError(
        f"OSInteraction's kinds are {self.kinds!r}; allowed is a list of one "
        f"or more of {', '.join(KINDS)}"
      )
    low, high = self.difficulty
    if not LEVELS[0] <= low <= high <= LEVELS[1]:
      raise ConfigError(
        f"OSInteraction's difficulty is {self.difficulty!r}; allowed is a pair "
        f"(low, high) with {LEVELS[0]} <= low <= high <= {LEVELS[1]}"
      )

  def generate(self, split: str, index: int) -> Generated:
    """The task that belongs to (split, index), and to no other split."""
    rng = random.Random(f"os_interaction/{split}/{index}")
    kind = rng.choice(self.kinds)
    for _ in range(_TRIES):  # half of all descriptions are on either side
      draft = KINDS[kind](rng, rng.randint(*self.difficulty))
      if split_of(draft.description) == split:
        return _settled(kind, draft)
    raise ConfigError(f"there is no task of kind {kind!r} in split {split!r}")


def _settled(kind: str, draft: Draft) -> Generated:
  check: tuple[Script | None, ...] = ()
  if draft.compare:
    check = (None, Script("python", None, draft.compare))
  problem = Problem(
    description=draft.description,
    init=(Script("bash", draft.init),),
    check=check,
    outcome=draft.outcome,
    example=Script("bash", draft.example),
    example_only_reads=bool(draft.compare),
    labels=(kind,),
  )
  return Generated(problem, kind, draft.slip)
