"""Scripted expert of pages, with or without mistakes."""

import re
from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.mistakes import BROKEN_JSON, ErringExpert
from studies.environments.pages.trail import LINK

MISTAKES = (
  "wrong_entry",  # takes a page's note for its link
  "early_answer",  # answers a link too early
  "no_call",  # writes a number as text and calls no tool
  BROKEN_JSON,
)
_NUMBER = re.compile(r"\b\d\d\b")


class Follower(ErringExpert):
  """Opens page after page, and answers the last one."""

  def __init__(
    self,
    start: int,
    num_steps: int,
    *,
    seed: int,
    mistakes: Mapping[str, float],
  ):
    super().__init__(
      seed=seed, mistakes=mistakes, known=MISTAKES, where="Pages' expert"
    )
    self._page, self._left = start, num_steps

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next call for the environment's last messages."""
    if self.draws("no_call"):
      return Message("assistant", str(self._page))
    last = messages[-1]
    found = self._read(last.content) if last.role == "tool" else None
    if found is not None:
      self._page, self._left = found, self._left - 1
    if self._left == 0 or (self._left == 1 and self._is_early(found)):
      return self.erring_call("answer", {"page": self._page})
    return self.erring_call("open", {"page": self._page, "left": self._left})

  def _read(self, text: str) -> int | None:
    """Returns the next page; None if the text is that of an error."""
    if text.isdigit():
      return int(text)
    link = LINK.search(text)
    if link is None:
      return None
    notes = [int(n) for n in _NUMBER.findall(text)]
    is_wrong = self.draws("wrong_entry")
    return self.rng.choice(notes) if is_wrong else int(link.group(1))

  def _is_early(self, found: int | None) -> bool:
    return found is not None and self.draws("early_answer")
