"""Data of one task: the machine's set-up, the description, the evaluation."""

import dataclasses

from environments.os_interaction.tasks.outcomes import ChoreOutcome

LANGUAGES = ("bash", "python", "c", "c++")


@dataclasses.dataclass(frozen=True)
class Script:
  """A program to run on a machine.

  `code` is None if the file that the task names was not found.
  """

  language: str
  code: str | None
  file: str = ""


@dataclasses.dataclass(frozen=True)
class AnswerMatch:
  """Rule for an answer: equal to `answer`, or containing a match of `regex`."""

  answer: str | None = None
  regex: str | None = None
  strip: bool = True


@dataclasses.dataclass(frozen=True)
class OSProblem:
  """One task, judged by `match`, by `outcome`, or else by `check`.

  Each script of `check` gets the answer and the outputs of the scripts before
  it as arguments; all must exit with 0. None stands for the example, which is
  run before the policy's first command.
  """

  description: str
  image: str = "default"
  init: tuple[Script, ...] = ()
  start: Script | None = None  # typed into the policy's shell
  match: AnswerMatch | None = None
  check: tuple[Script | None, ...] = ()
  outcome: ChoreOutcome | None = None
  example: Script | None = None
  example_only_reads: bool = False  # known not to write files
