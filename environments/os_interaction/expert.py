"""A scripted player of OS tasks, with or without mistakes.

It runs the gold script, reads the reply and answers with what it found there,
or says that the work is done. A mistake spoils one of the two in one named way,
so that a policy warmed up on such play has something to unlearn.
"""

import json
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known
from environments.os_interaction.prompts import (
  ANSWER_ACTION,
  BASH_ACTION,
  FINISH_ACTION,
  OUTPUT,
)
from environments.os_interaction.tasks.generator import Generated
from environments.os_interaction.tasks.problem import Problem, Script

MISTAKES: Mapping[str, str] = {
  "slip": "runs a script that is nearly right",
  "no_look": "answers, or says that it is done, without having run anything",
  "sentence": "answers with a sentence, not with the bare answer",
  "off_by_one": "answers with a number that is too high by one",
  "finish": "says that it is done, where an answer is asked for",
  "no_call": "begins with words alone, which costs a round and nothing else",
}
GUESS = "0"
DONE = "The work is done."
PLAN = "First I look at the machine."
MAX_TYPED = 1000  # characters of a script that is typed as it stands
_START = OUTPUT.partition("{")[0]


class BashExpert(Expert):
  """Runs one script, then commits."""

  def __init__(
    self,
    script: str,
    *,
    asks: bool,
    answer: str | None = None,
    made: Sequence[str] = (),
  ):
    self._script = script  # empty: commit at once
    self._asks = asks  # for an answer
    self._answer = answer  # None: what the reply says
    self._made = made
    self._num_answers = 0

  def answer(self, messages: Sequence[Message]) -> Message:
    """The script first; then the answer."""
    self._num_answers += 1
    if "no_call" in self._made and self._num_answers == 1:
      return Message("assistant", PLAN)
    if self._script:
      script, self._script = self._script, ""
      return self._call(BASH_ACTION.name, "script", script)
    if not self._asks or "finish" in self._made:
      return self._call(FINISH_ACTION.name, "thought", DONE)
    found = self._found_in(messages[-1])
    return self._call(ANSWER_ACTION.name, "answer", found)

  def _found_in(self, message: Message) -> str:
    found = self._answer
    if found is None:
      is_output = message.content.startswith(_START)
      found = message.content.removeprefix(_START) if is_output else GUESS
      found = found.replace("\r\n", "\n").strip()
    if "off_by_one" in self._made and found.isdecimal():
      found = str(int(found) + 1)
    return f"The answer is {found}." if "sentence" in self._made else found

  def _call(self, name: str, key: str, value: str) -> Message:
    call = ToolCall(
      name,
      json.dumps({key: value}, ensure_ascii=False),
      id=f"call_{self._num_answers}",
    )
    return Message("assistant", tool_calls=(call,))


def expert_for_generated(
  generated: Generated, *, seed: int, mistakes: Mapping[str, float]
) -> BashExpert:
  """Plays the gold script, spoilt by the mistakes that the seed draws."""
  problem = generated.problem
  made = draw_mistakes(problem, seed=seed, mistakes=mistakes)
  script = problem.example.code if problem.example else ""
  if "slip" in made:
    script = generated.slip
  if "no_look" in made:
    script = ""
  return BashExpert(script or "", asks=problem.outcome is None, made=made)


def expert_for_loaded(
  problem: Problem, *, seed: int, mistakes: Mapping[str, float]
) -> BashExpert:
  """Runs the file's example; commits its output, or what it must match."""
  made = draw_mistakes(problem, seed=seed, mistakes=mistakes)
  script = "" if problem.example is None else as_one_line(problem.example)
  if "no_look" in made or "slip" in made:
    script = ""
  return BashExpert(
    script,
    asks=problem.match is not None or problem.check[:1] == (None,),
    answer=None if problem.match is None else problem.match.answer,
    made=made,
  )


def draw_mistakes(
  problem: Problem, *, seed: int, mistakes: Mapping[str, float]
) -> list[str]:
  """Those that are made; raises `ConfigError` for one nobody makes here."""
  require_known(mistakes, MISTAKES, where="OSInteraction's expert")
  rng = random.Random(f"{problem.description}/{seed}")
  return [m for m in MISTAKES if rng.random() < mistakes.get(m, 0.0)]


def as_one_line(script: Script) -> str:
  """The script as one line to type, so that nothing of it comes back.

  A short line of plain bash is typed as it stands. Anything else is handed to
  its interpreter as one word, away from the terminal.
  """
  code = script.code or ""
  is_plain = code.isascii() and code.isprintable() and "!" not in code
  if script.language == "bash" and is_plain and len(code) <= MAX_TYPED:
    return code
  program = "python3 -c" if script.language == "python" else "bash -c"
  return f"{program} {_as_word(code)} 2>/dev/null | cat"


def _as_word(text: str) -> str:
  """Bash's $'...', in which every byte can be written in plain letters."""
  written = "".join(
    chr(byte)
    if 32 <= byte < 127 and chr(byte) not in "'\\!"
    else f"\\x{byte:02x}"
    for byte in text.encode()
  )
  return f"$'{written}'"
