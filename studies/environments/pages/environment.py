"""Pages: links to follow through texts that may not fit one context.

An agent alone reads every page of the way. A planner who has workers read them
gets the number of the next page, and no more; a worker reads one page. Whoever
plays has the same tools and the same words, so that one policy can be all three
(`agents.py`). Sessions here are for demonstrations: each task shows one of the
three.
"""

import contextlib
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import Status, Task, Tool
from agentrl_jax.data.split import split_of
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, OneCallSession, Session, Step
from agentrl_jax.env.options import require_positive, require_some_of
from studies.environments.pages import trail
from studies.environments.pages.expert import MISTAKES, Follower
from studies.environments.pages.scripted import POLICIES
from studies.environments.pages.trail import Trail

_PAGE = {"type": "integer", "minimum": trail.FIRST, "maximum": trail.LAST}
OPEN = Tool(
  "open",
  "Opens a page; left counts the links still to follow.",
  {
    "type": "object",
    "properties": {"page": _PAGE, "left": {"type": "integer"}},
    "required": ["page", "left"],
    "additionalProperties": False,
  },
)
ANSWER = Tool(
  "answer",
  "Gives the page at the end.",
  {
    "type": "object",
    "properties": {"page": _PAGE},
    "required": ["page"],
    "additionalProperties": False,
  },
)
TOOLS = (OPEN, ANSWER)
NO_CALL = "No tool call found. Call open or answer."
ALONE, PLANNER, WORKER = FORMS = ("alone", "planner", "worker")


class Pages(IndexedEnvironment[Trail]):
  """Task i of a split is a trail; calling `answer` ends the episode.

  Args:
    num_steps: links to follow.
    num_notes: entries of a page beside its link, which make it long.
    forms: of demonstrations. `alone` reads pages, `planner` reads numbers, and
      `worker` reads one page, whatever `num_steps` is.
  """

  name = "pages"
  mistakes = MISTAKES
  policies = POLICIES
  baseline = "follow_links"

  def __init__(
    self,
    *,
    num_steps: int = 2,
    num_notes: int = 20,
    forms: Sequence[str] = (ALONE,),
    max_turns: int = 12,
    num_tasks: int = 1 << 20,
  ):
    require_positive(
      num_steps=num_steps, num_notes=num_notes, max_turns=max_turns
    )
    require_some_of(FORMS, forms=forms)
    super().__init__(num_tasks=num_tasks)
    self._num_steps, self._num_notes = num_steps, num_notes
    self._forms, self._max_turns = tuple(forms), max_turns

  def form(self, task: Task) -> str:
    """Returns which of the forms a demonstration of the task shows."""
    return random.Random(f"{task.split}/{task.index}/form").choice(self._forms)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session; ignores the seed, as the task determines the pages."""
    del seed
    yield _Session(self._shown(task), self.form(task), self._max_turns)

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that follows links; see `expert.MISTAKES`."""
    shown = self._shown(task)
    return Follower(shown.start, shown.num_steps, seed=seed, mistakes=mistakes)

  def generate(self, split: str, index: int) -> Trail:
    """Draws a trail whose first page the split owns."""
    rng = random.Random(f"{split}/{index}")
    while True:  # the split owns a page with probability 1/2
      start = rng.randint(trail.FIRST, trail.LAST)
      if split_of(f"page {start}") == split:
        seed = f"{split}/{index}"
        return Trail(start, self._num_steps, self._num_notes, seed)

  def _shown(self, task: Task) -> Trail:
    found = self.find(task)
    if self.form(task) == WORKER:
      return Trail(found.start, 1, found.num_notes, found.seed)
    return found


class _Session(OneCallSession):
  tools = TOOLS

  def __init__(self, content: Trail, form: str, max_turns: int):
    super().__init__(content.question, max_turns=max_turns, no_call=NO_CALL)
    self._trail, self._form = content, form

  def play(self, tool: str, arguments: Mapping[str, Any]) -> str | Step:
    if tool == "answer":
      is_right = arguments["page"] == self._trail.end
      return Step((), reward=float(is_right), status=Status.COMPLETED)
    if self._form == PLANNER:
      return str(self._trail.next(arguments["page"]))
    return self._trail.text(arguments["page"])
