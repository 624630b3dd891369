"""Scripted policies: baselines that choose among the listed actions."""

import functools
import re
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import Echo, ScriptedPolicies, ScriptedPolicy

_ACTIONS = " AVAILABLE ACTIONS: "
_TASK = "Your task is to:"


class ListedAction(ScriptedPolicy):
  """Takes a random action of the list, none twice while there are others.

  Args:
    reads_task: prefer the action that shares most words with the task.
  """

  def __init__(self, *, seed: int, reads_task: bool = False):
    super().__init__(seed=seed)
    self._reads_task = reads_task
    self._taken: set[str] = set()

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Calls the tool with an action of the last list."""
    listed = next(
      m.content.partition(_ACTIONS)[2].strip().split("\n")
      for m in reversed(messages)
      if _ACTIONS in m.content
    )
    fresh = [a for a in listed if a not in self._taken] or listed
    self.rng.shuffle(fresh)
    if self._reads_task:
      opening = next(m.content for m in messages if _TASK in m.content)
      task = _words(opening.partition(_TASK)[2].partition(_ACTIONS)[0])
      fresh.sort(key=lambda action: -len(task & _words(action)))
    self._taken.add(fresh[0])
    return self.call("take_action", action=fresh[0])


def _words(text: str) -> set[str]:
  return set(re.findall(r"[a-z]+", text.lower()))


POLICIES: ScriptedPolicies = {
  "echo": Echo,
  "random": ListedAction,
  "most_words_of_the_task": functools.partial(ListedAction, reads_task=True),
}
