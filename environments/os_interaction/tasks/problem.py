"""What an OS task is made of: a machine to set up, a question, and its judge.

Plain frozen data, whether it was read from AgentBench's files or generated.
Nothing here runs a script, and nothing here judges an answer.
"""

import dataclasses

from environments.os_interaction.tasks.outcomes import Outcome

LANGUAGES = ("bash", "python", "c", "c++")


@dataclasses.dataclass(frozen=True)
class Script:
  """A program that is run in the machine.

  `code` is None where the file that the task names was not at hand.
  """

  language: str
  code: str | None
  file: str = ""


@dataclasses.dataclass(frozen=True)
class Match:
  """Judges an answer by itself: equal to `answer`, or with `regex` in it."""

  answer: str | None = None
  regex: str | None = None
  strip: bool = True


@dataclasses.dataclass(frozen=True)
class Problem:
  """One task. It is judged by `match`, by `outcome`, or else by `check`.

  Each script of `check` gets the answer, and what those before it said. All
  must end well; None stands for the example, which is run before the policy's
  first command.
  """

  description: str
  image: str = "default"
  init: tuple[Script, ...] = ()
  start: Script | None = None  # typed into the policy's own shell
  match: Match | None = None
  check: tuple[Script | None, ...] = ()
  outcome: Outcome | None = None
  example: Script | None = None
  example_only_reads: bool = False  # it is known to change nothing
  labels: tuple[str, ...] = ()
