"""Expert of OS tasks, with or without mistakes.

It runs the gold script and answers with the reply, or reports that the work is
done. A mistake changes one of the two in one named way, so that a policy warmed
up on such episodes has something to unlearn.
"""

import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import draw_mistakes
from environments.options import OSInteractionOptions
from environments.os_interaction import prompts
from environments.os_interaction.tasks.generator import GeneratedTask
from environments.os_interaction.tasks.problem import OSProblem, Script

MISTAKES = OSInteractionOptions.mistakes
GUESS = "0"
DONE = "The work is done."
PLAN = "First I look at the machine."
MAX_TYPED_CHARS = 1000  # of a script that is typed unchanged
_OUTPUT_PREFIX = prompts.OUTPUT.partition("{")[0]


class BashExpert(Expert):
  """Runs one script, then answers or finishes.

  Args:
    script: runs first, unless it is empty.
    needs_answer: False for chores, which end with finish_action.
    answer: None takes the script's output.
    mistakes: some of `MISTAKES`.
  """

  def __init__(
    self,
    script: str,
    *,
    needs_answer: bool,
    answer: str | None = None,
    mistakes: Sequence[str] = (),
  ):
    self._script = script
    self._needs_answer = needs_answer
    self._answer = answer
    self._mistakes = mistakes

  def answer(self, messages: Sequence[Message]) -> Message:
    if "no_call" in self._mistakes and self.num_calls == 0:
      self.num_calls += 1  # words alone count as a call
      return Message("assistant", PLAN)
    if self._script:
      script, self._script = self._script, ""
      return self.call(prompts.BASH_ACTION.name, script=script)
    if not self._needs_answer or "finish" in self._mistakes:
      return self.call(prompts.FINISH_ACTION.name, thought=DONE)
    text = self._answer_text(messages[-1].content)
    return self.call(prompts.ANSWER_ACTION.name, answer=text)

  def _answer_text(self, reply: str) -> str:
    text = self._answer
    if text is None:
      is_output = reply.startswith(_OUTPUT_PREFIX)
      text = reply.removeprefix(_OUTPUT_PREFIX) if is_output else GUESS
      text = text.replace("\r\n", "\n").strip()
    if "off_by_one" in self._mistakes and text.isdecimal():
      text = str(int(text) + 1)
    return f"The answer is {text}." if "sentence" in self._mistakes else text


def expert_for_generated(
  task: GeneratedTask, *, seed: int, mistakes: Mapping[str, float]
) -> BashExpert:
  """Plays the gold script, with the mistakes that the seed draws."""
  problem = task.problem
  drawn = _draw(problem, seed, mistakes)
  script = problem.example.code if problem.example else ""
  if "slip" in drawn:
    script = task.slip
  if "no_look" in drawn:
    script = ""
  return BashExpert(
    script or "", needs_answer=problem.outcome is None, mistakes=drawn
  )


def expert_for_loaded(
  problem: OSProblem, *, seed: int, mistakes: Mapping[str, float]
) -> BashExpert:
  """Runs the task's example; answers with its output, or with the match."""
  drawn = _draw(problem, seed, mistakes)
  script = "" if problem.example is None else as_one_line(problem.example)
  if "no_look" in drawn or "slip" in drawn:
    script = ""
  return BashExpert(
    script,
    needs_answer=problem.match is not None or problem.check[:1] == (None,),
    answer=None if problem.match is None else problem.match.answer,
    mistakes=drawn,
  )


def _draw(
  problem: OSProblem, seed: int, mistakes: Mapping[str, float]
) -> list[str]:
  rng = random.Random(f"{problem.description}/{seed}")
  return draw_mistakes(mistakes, MISTAKES, rng, where="OSInteraction's expert")


def as_one_line(script: Script) -> str:
  """Rewrites a script as one line, so that the reply contains none of it.

  A short line of plain bash stays unchanged. Any other script becomes one
  quoted argument of its interpreter, whose output is piped through cat.
  """
  code = script.code or ""
  is_plain = code.isascii() and code.isprintable() and "!" not in code
  if script.language == "bash" and is_plain and len(code) <= MAX_TYPED_CHARS:
    return code
  program = "python3 -c" if script.language == "python" else "bash -c"
  return f"{program} {_ansi_c_quote(code)} 2>/dev/null | cat"


def _ansi_c_quote(text: str) -> str:
  """Quotes a text as bash's $'...', which can write every byte in ASCII."""
  escaped = "".join(
    chr(byte)
    if 32 <= byte < 127 and chr(byte) not in "'\\!"
    else f"\\x{byte:02x}"
    for byte in text.encode()
  )
  return f"$'{escaped}'"
