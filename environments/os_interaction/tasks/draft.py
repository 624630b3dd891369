"""A generated task before it is settled, and how files are laid out for it."""

import dataclasses
import random
import shlex
from collections.abc import Mapping, Sequence

from environments.os_interaction.tasks.outcomes import Outcome
from environments.os_interaction.tasks.words import EXTENSIONS, FOLDERS, STEMS

COMPARE_INTEGERS = "check/integer-match.py"
COMPARE_TEXTS = "check/string-match.py"
TOPS = ("/root", "/srv", "/opt", "/data")
FILLER = "0123456789abcdef" * 64  # what files of some size hold


@dataclasses.dataclass(frozen=True)
class Draft:
  """A task: what is told, what is set up, and how it is solved and judged.

  With `compare`, the answer is what `example` says; else `outcome` tells what
  the machine must have become. `slip` is a likely way to get it wrong.
  """

  description: str
  init: str
  example: str
  slip: str
  compare: str = ""
  outcome: Outcome | None = None


def say_number_only(rng: random.Random) -> str:
  """Asks for an answer that is a number."""
  return rng.choice(
    (
      "Answer with the number only.",
      "Give nothing but the number as your answer.",
      "The answer is a single number, without any words.",
      "Reply with the bare number.",
    )
  )


def say_name_only(rng: random.Random) -> str:
  """Asks for an answer that is the name of a file."""
  return rng.choice(
    (
      "Answer with the name only, without its directory.",
      "Give the bare file name as your answer, no path.",
      "The answer is the file's name, not the path that leads to it.",
    )
  )


def say_below(rng: random.Random, root: str) -> str:
  """Names a folder with all that is below it."""
  return rng.choice(
    (
      f"in {root} and all of its subdirectories",
      f"in the directory {root} and everything below it",
      f"anywhere below {root}",
    )
  )


def draw_root(rng: random.Random, *, tops: Sequence[str] = TOPS) -> str:
  """The path of a folder that no image has."""
  first, second = rng.sample(FOLDERS, 2)
  return rng.choice(tops) + rng.choice(
    (
      f"/{first}",
      f"/{first}-{rng.randint(2, 99)}",
      f"/{first}/{second}",
      f"/{rng.randint(1990, 2029)}/{first}",
    )
  )


def quote(text: str) -> str:
  """The text as one word of bash."""
  return shlex.quote(text)


def write_files(files: Mapping[str, str]) -> str:
  """A script that makes the files, and the folders that they are in."""
  folders = sorted({name.rpartition("/")[0] for name in files} - {""})
  lines = [f"mkdir -p {' '.join(folders)}"] if folders else []
  for name, text in files.items():
    if text:
      lines.append(f"printf %s {quote(text)} > {name}")
    else:
      lines.append(f": > {name}")
  return "\n".join(lines)


def draw_names(
  rng: random.Random,
  count: int,
  *,
  extensions: Sequence[str] = EXTENSIONS,
  hidden: float = 0.0,
) -> list[str]:
  """File names, no two alike; some hidden, with the probability given."""
  names: list[str] = []
  while len(names) < count:
    stem = f"{rng.choice(STEMS)}_{rng.randint(1, 99)}"
    dot = "." if rng.random() < hidden else ""
    name = f"{dot}{stem}.{rng.choice(extensions)}"
    if name not in names:
      names.append(name)
  return names


def draw_tree(rng: random.Random, root: str, level: int) -> list[str]:
  """Folders of a tree, the root first; deeper at higher levels."""
  folders = [root]
  for _ in range(rng.randint(level, 2 * level)):
    parent = rng.choice(
      [f for f in folders if f.count("/") - root.count("/") < level]
    )
    folder = f"{parent}/{rng.choice(STEMS)}{rng.randint(1, 9)}"
    if folder not in folders:
      folders.append(folder)
  return folders


def spread(
  rng: random.Random, folders: Sequence[str], names: Sequence[str]
) -> list[str]:
  """Each name in one of the folders; none of these stays empty at first."""
  return [
    f"{folders[i] if i < len(folders) else rng.choice(folders)}/{name}"
    for i, name in enumerate(names)
  ]
