"""Generated questions that are answered with what stands somewhere.

As in `questions`, each function draws one.
"""

import random

from environments.os_interaction.draft import (
  COMPARE_INTEGERS,
  COMPARE_TEXTS,
  FILLER,
  Draft,
  draw_names,
  draw_tree,
  quote,
  spread,
  write_files,
)
from environments.os_interaction.words import FOLDERS, PEOPLE, PRODUCTS


def find_largest(rng: random.Random, level: int) -> Draft:
  """Which file is the largest, or the smallest."""
  root = f"/root/{rng.choice(FOLDERS)}"
  names = draw_names(rng, 5 + 3 * level)
  sizes = rng.sample(range(10, 900), len(names))
  paths = spread(rng, draw_tree(rng, root, level), names)
  files = {path: FILLER[:size] for path, size in zip(paths, sizes, strict=True)}
  word, order, other = rng.choice(
    (("largest", "-rn", "-n"), ("smallest", "-n", "-rn"))
  )
  example = (
    f"find {root} -type f -printf '%s %f\\n' | sort {{}} | head -n 1 | "
    "cut -d' ' -f2"
  )
  return Draft(
    description=f"What is the name of the {word} file, in bytes, in {root} and "
    "all of its subdirectories? Answer with the name only, without its "
    "directory.",
    init=write_files(files),
    example=example.format(order),
    slip=example.format(other),
    compare=COMPARE_TEXTS,
  )


def read_setting(rng: random.Random, level: int) -> Draft:
  """What the last definition of a variable is, among several."""
  person, thing = rng.choice(PEOPLE), rng.choice(PRODUCTS)
  path = f"/etc/{thing}.conf"
  values = rng.sample(range(10, 9999), 2 + level)
  lines = [f"# settings of {thing}"]
  for value in values:
    lines += [f"limit={value}", f"owner={rng.choice(PEOPLE)}"]
    lines.append(f"#limit={rng.randint(10, 9999)}")
  return Draft(
    description=f"The program {thing} reads {path} from top to bottom; lines "
    "that begin with # are ignored, and of several lines that set the same key "
    "the last one counts. What is the value of the key limit for it? Answer "
    "with the number only.",
    init=f"useradd {person}\n{write_files({path: chr(10).join(lines)})}",
    example=f"grep '^limit=' {path} | tail -n 1 | cut -d= -f2",
    slip=f"grep limit= {path} | tail -n 1 | cut -d= -f2",
    compare=COMPARE_INTEGERS,
  )


def find_text(rng: random.Random, level: int) -> Draft:
  """Which file holds a line."""
  root = f"/root/{rng.choice(FOLDERS)}"
  names = draw_names(rng, 4 + 4 * level)
  paths = spread(rng, draw_tree(rng, root, level), names)
  codes = [f"{rng.randrange(16**8):08x}" for _ in paths]
  code = rng.choice(codes)
  files = {
    path: f"code: {its}\n" for path, its in zip(paths, codes, strict=True)
  }
  return Draft(
    description=f"One of the files in {root} and its subdirectories holds the "
    f"text {quote(code)}. What is its name? Answer with the name only, without "
    "its directory.",
    init=write_files(files),
    example=f"basename $(grep -rl {code} {root})",
    slip=f"ls {root} | tail -n 1",
    compare=COMPARE_TEXTS,
  )
