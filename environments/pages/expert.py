"""Scripted expert of pages, with or without mistakes."""

import json
import random
import re
from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known
from environments.pages.trail import LINK

MISTAKES = (
  "wrong_entry",  # takes a page's note for its link
  "early_answer",  # answers a link too early
  "no_call",  # writes a number as text and calls no tool
  "broken_json",  # the closing brace of a call is missing
)
_NUMBER = re.compile(r"\b\d\d\b")


class Follower(Expert):
  """Opens page after page, and answers the last one."""

  def __init__(
    self,
    start: int,
    num_steps: int,
    *,
    seed: int,
    mistakes: Mapping[str, float],
  ):
    require_known(mistakes, MISTAKES, where="Pages' expert")
    self._page, self._left = start, num_steps
    self._mistakes = mistakes
    self._rng = random.Random(seed)

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next call for the environment's last messages."""
    if self._draws("no_call"):
      return Message("assistant", str(self._page))
    last = messages[-1]
    found = self._read(last.content) if last.role == "tool" else None
    if found is not None:
      self._page, self._left = found, self._left - 1
    if self._left == 0 or (self._left == 1 and self._is_early(found)):
      return self._call("answer", {"page": self._page})
    return self._call("open", {"page": self._page, "left": self._left})

  def _read(self, text: str) -> int | None:
    """Returns the next page; None if the text is that of an error."""
    if text.isdigit():
      return int(text)
    link = LINK.search(text)
    if link is None:
      return None
    notes = [int(n) for n in _NUMBER.findall(text)]
    is_wrong = self._draws("wrong_entry")
    return self._rng.choice(notes) if is_wrong else int(link.group(1))

  def _is_early(self, found: int | None) -> bool:
    return found is not None and self._draws("early_answer")

  def _call(self, name: str, arguments: Mapping[str, int]) -> Message:
    text = json.dumps(arguments)
    if self._draws("broken_json"):
      text = text[:-1]
    return Message("assistant", tool_calls=(self.write_call(name, text),))

  def _draws(self, mistake: str) -> bool:
    return self._rng.random() < self._mistakes.get(mistake, 0.0)
