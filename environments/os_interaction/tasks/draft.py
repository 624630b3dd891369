"""Draft of a generated task, and the files and programs it is set up with."""

import dataclasses
import random
import shlex
from collections.abc import Mapping, Sequence

from environments.os_interaction.tasks.outcomes import ChoreOutcome
from environments.os_interaction.tasks.words import EXTENSIONS, FOLDERS, STEMS

COMPARE_INTEGERS = "check/integer-match.py"
COMPARE_TEXTS = "check/string-match.py"
ROOT_PARENTS = ("/root", "/srv", "/opt", "/data")
FILLER = "0123456789abcdef" * 64  # content of files of a given size


@dataclasses.dataclass(frozen=True)
class Draft:
  """A task as drawn, before it is known to belong to a split.

  A question has `compare`, the comparison with the output of `example`; a chore
  has an `outcome`. `slip` is a likely wrong solution.
  """

  description: str
  init: str
  example: str
  slip: str
  compare: str = ""
  outcome: ChoreOutcome | None = None


def draw_below(rng: random.Random, root: str) -> str:
  """Draws a phrase for a folder with all of its subfolders."""
  return rng.choice(
    (
      f"in {root} and all of its subdirectories",
      f"in the directory {root} and everything below it",
      f"anywhere below {root}",
    )
  )


def draw_root(
  rng: random.Random, *, parents: Sequence[str] = ROOT_PARENTS
) -> str:
  """Draws the path of a folder that no image has."""
  first, second = rng.sample(FOLDERS, 2)
  return rng.choice(parents) + rng.choice(
    (
      f"/{first}",
      f"/{first}-{rng.randint(2, 99)}",
      f"/{first}/{second}",
      f"/{rng.randint(1990, 2029)}/{first}",
    )
  )


def draw_names(
  rng: random.Random,
  count: int,
  *,
  extensions: Sequence[str] = EXTENSIONS,
  hidden: float = 0.0,
) -> list[str]:
  """Draws distinct file names; each is hidden with the given probability."""
  names: list[str] = []
  while len(names) < count:
    stem = f"{rng.choice(STEMS)}_{rng.randint(1, 99)}"
    dot = "." if rng.random() < hidden else ""
    name = f"{dot}{stem}.{rng.choice(extensions)}"
    if name not in names:
      names.append(name)
  return names


def draw_tree(rng: random.Random, root: str, level: int) -> list[str]:
  """Draws folders below `root`, deeper at higher levels; `root` comes first."""
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
  """Puts each name in a folder; the first names fill every folder once."""
  return [
    f"{folders[i] if i < len(folders) else rng.choice(folders)}/{name}"
    for i, name in enumerate(names)
  ]


def write_files(files: Mapping[str, str]) -> str:
  """Returns a script that writes the files and creates their folders."""
  folders = sorted({name.rpartition("/")[0] for name in files} - {""})
  lines = [f"mkdir -p {' '.join(folders)}"] if folders else []
  for name, text in files.items():
    if text:
      lines.append(f"printf %s {shlex.quote(text)} > {name}")
    else:
      lines.append(f": > {name}")
  return "\n".join(lines)


def start_programs(counts: Mapping[str, int]) -> str:
  """Returns a script that makes programs and starts so many processes each."""
  lines = [f"cp /bin/sleep /usr/local/bin/{name}" for name in counts]
  lines += [
    f"for i in $(seq {count}); do setsid /usr/local/bin/{name} 3600 "
    "</dev/null >/dev/null 2>&1 & done"
    for name, count in counts.items()
  ]
  return "\n".join(lines)
