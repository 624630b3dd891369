"""Trails of linked pages: what a page says, and where a trail ends.

A page has a number of two digits, a text that is as long as the task wants, and
one link to another page. Everything is a function of the trail's seed, so that
an agent in another process reads the same pages.
"""

import dataclasses
import random
import re

FIRST, LAST = 10, 99  # numbers of pages
LINK = re.compile(r"link (\d\d)")


@dataclasses.dataclass(frozen=True)
class Trail:
  """One task: a page to begin at, and the number of links to follow."""

  start: int
  num_steps: int
  num_notes: int  # of a page, beside its link
  seed: str

  @property
  def question(self) -> str:
    """The text that the policy reads."""
    return question(self.start, self.num_steps)

  @property
  def end(self) -> int:
    """The page to answer."""
    page = self.start
    for _ in range(self.num_steps):
      page = self.next(page)
    return page

  def next(self, page: int) -> int:
    """Returns the page that a page links to; never the page itself."""
    others = [n for n in range(FIRST, LAST + 1) if n != page]
    return random.Random(f"{self.seed}/{page}").choice(others)

  def text(self, page: int) -> str:
    """Returns the page: numbers, and among them the link."""
    rng = random.Random(f"{self.seed}/{page}/text")
    notes = [str(rng.randint(FIRST, LAST)) for _ in range(self.num_notes)]
    place = rng.randint(0, len(notes))
    return ",".join([*notes[:place], f"link {self.next(page)}", *notes[place:]])


def question(page: int, num_steps: int) -> str:
  """Returns the text that asks to follow some links from a page."""
  return f"Follow {num_steps} from {page}."
