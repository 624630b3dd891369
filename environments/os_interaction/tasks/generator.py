"""Generates tasks as a pure function of (split, index).

The splits are separated by descriptions, not by seeds: a task is drawn again
until its description belongs to its split, so train and test share none. The
right answer to a question is the output of its gold script on the task's
machine, before the policy's first command.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping

from agentrl_jax.data.split import split_of
from agentrl_jax.env.options import require_bounds, require_some_of
from agentrl_jax.errors import ConfigError
from environments.options import OSInteractionOptions
from environments.os_interaction.tasks import chores, questions
from environments.os_interaction.tasks.draft import Draft
from environments.os_interaction.tasks.problem import OSProblem, Script

KINDS: Mapping[str, Callable[[random.Random, int], Draft]] = {
  "count_files": questions.count_files,
  "log": questions.query_log,
  "sum": questions.sum_column,
  "largest": questions.find_largest,
  "users": questions.count_users,
  "words": questions.count_words,
  "processes": questions.count_processes,
  "archive": questions.look_into_archive,
  "setting": questions.read_setting,
  "search": questions.find_text,
  "permissions": chores.set_permissions,
  "add_user": chores.add_user,
  "rename": chores.rename_files,
  "pack": chores.pack_folder,
  "edit": chores.edit_setting,
  "command": chores.make_command,
  "end_processes": chores.end_processes,
  "links": chores.remove_links,
  "owners": chores.change_owner,
}
LEVELS = (1, 3)  # the easiest and the hardest
MAX_DRAWS = 1000  # for a task of a kind and split


@dataclasses.dataclass(frozen=True)
class GeneratedTask:
  """A problem with the kind that it was drawn from."""

  problem: OSProblem
  kind: str
  slip: str  # a script that nearly solves it


class TaskGenerator:
  """Draws tasks of the given kinds, with levels within `difficulty`."""

  def __init__(
    self,
    options: OSInteractionOptions = OSInteractionOptions(),  # noqa: B008
  ):
    kinds = options.kinds
    self._kinds = tuple(KINDS) if kinds is None else kinds
    self._difficulty = options.difficulty
    require_some_of(KINDS, kinds=self._kinds)
    require_bounds(difficulty=self._difficulty, least=LEVELS[0], most=LEVELS[1])

  def generate(self, split: str, index: int) -> GeneratedTask:
    """Draws the task of (split, index)."""
    rng = random.Random(f"os_interaction/{split}/{index}")
    kind = rng.choice(self._kinds)
    for _ in range(MAX_DRAWS):  # each split has half of all descriptions
      draft = KINDS[kind](rng, rng.randint(*self._difficulty))
      if split_of(draft.description) == split:
        return _to_task(kind, draft)
    raise ConfigError(f"there is no task of kind {kind!r} in split {split!r}")


def _to_task(kind: str, draft: Draft) -> GeneratedTask:
  check: tuple[Script | None, ...] = ()
  if draft.compare:
    check = (None, Script("python", None, draft.compare))
  problem = OSProblem(
    description=draft.description,
    init=(Script("bash", draft.init),),
    check=check,
    outcome=draft.outcome,
    example=Script("bash", draft.example),
    example_only_reads=bool(draft.compare),
  )
  return GeneratedTask(problem, kind, draft.slip)
