"""First prompts: what the chat template shows the policy, by environment.

Text and ids stand on the terminal at the start of a run, and in its report. A
wrong template would otherwise train in silence.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

from agentrl_jax.files import reading

_HEAD, _TAIL = 1500, 500  # characters of a prompt that a terminal shows
_IDS = 24  # as many at either end


@dataclasses.dataclass(frozen=True)
class FirstPrompt:
  """The first prompt of an environment's first task."""

  task: str
  text: str
  ids: Sequence[int]
  fault: str  # why there is none; "": there is one

  def shown(self, name: str, path: pathlib.Path) -> str:
    """Returns a terminal's text, shortened; `path` has the whole of it."""
    if self.fault:
      return f"{name} shows no first prompt: {self.fault}"
    text, ids = self.text, " ".join(map(str, self.ids))
    left_out = len(text) - _HEAD - _TAIL
    if left_out > 0:
      note = f"\n[... {left_out} characters, see {path} ...]\n"
      text = text[:_HEAD] + note + text[-_TAIL:]
    if len(self.ids) > 2 * _IDS:
      first, last = self.ids[:_IDS], self.ids[-_IDS:]
      ids = " ... ".join(" ".join(map(str, part)) for part in (first, last))
    return (
      f"first prompt of {self.task}, {len(self.ids)} tokens:\n{text}\n"
      f"its ids: {ids}"
    )


def read_first_prompts(path: pathlib.Path) -> Mapping[str, FirstPrompt]:
  """Reads a run's first prompts; none if it has not come to them."""
  if not path.exists():
    return {}
  with reading(path):
    body = json.loads(path.read_text(encoding="utf-8"))
    return {name: FirstPrompt(**prompt) for name, prompt in body.items()}
