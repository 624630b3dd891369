"""Generated questions that are answered with what stands somewhere.

As in `questions`, each function draws one.
"""

import random

from environments.os_interaction.tasks.draft import (
  COMPARE_INTEGERS,
  COMPARE_TEXTS,
  FILLER,
  Draft,
  draw_names,
  draw_root,
  draw_tree,
  quote,
  say_below,
  say_name_only,
  say_number_only,
  spread,
  write_files,
)
from environments.os_interaction.tasks.words import (
  EXTENSIONS,
  KEYS,
  PEOPLE,
  PRODUCTS,
)


def find_largest(rng: random.Random, level: int) -> Draft:
  """Which file is the largest, or the smallest, or the next to it."""
  root = draw_root(rng)
  extensions = rng.sample(EXTENSIONS, 3)
  names = draw_names(rng, 6 + 3 * level, extensions=extensions)
  names += [f"{stem}.{extensions[0]}" for stem in ("main", "side", "a", "b")]
  sizes = rng.sample(range(10, 900), len(names))
  paths = spread(rng, draw_tree(rng, root, level), names)
  files = {path: FILLER[:size] for path, size in zip(paths, sizes, strict=True)}
  word, order, other = rng.choice(
    (("largest", "-rn", "-n"), ("smallest", "-n", "-rn"))
  )
  rank, place = rng.choice((("", 1), ("second ", 2))[: min(level, 2)])
  kind, test = rng.choice(
    (
      ("file", ""),
      (f"file ending in .{extensions[0]}", f"-name '*.{extensions[0]}' "),
    )
  )
  example = (
    f"find {root} -type f {test}-printf '%s %f\\n' | sort {{}} | "
    f"sed -n {place}p | cut -d' ' -f2"
  )
  what, below = f"{rank}{word} {kind}, in bytes,", say_below(rng, root)
  ask = rng.choice(
    (
      f"What is the name of the {what} {below}?",
      f"Find the {what} {below}. What is it called?",
    )
  )
  return Draft(
    description=f"{ask} {say_name_only(rng)}",
    init=write_files(files),
    example=example.format(order),
    slip=example.format(other),
    compare=COMPARE_TEXTS,
  )


def read_setting(rng: random.Random, level: int) -> Draft:
  """What the last definition of a variable is, among several."""
  person, thing, key = (rng.choice(w) for w in (PEOPLE, PRODUCTS, KEYS))
  path = f"/etc/{thing}{rng.choice(('', '-', '/'))}{rng.choice(KEYS)}.conf"
  values = rng.sample(range(10, 9999), 2 + level)
  lines = [f"# settings of {thing}"]
  for value in values:
    lines += [f"{key}={value}", f"owner={rng.choice(PEOPLE)}"]
    lines.append(f"#{key}={rng.randint(10, 9999)}")
  ask = rng.choice(
    (
      f"What is the value of the key {key} for it?",
      f"Which value does it take for {key}?",
      f"To what is {key} set when it has read all of the file?",
    )
  )
  return Draft(
    description=f"The program {thing} reads {path} from top to bottom; lines "
    "that begin with # are ignored, and of several lines that set the same key "
    f"the last one counts. {ask} {say_number_only(rng)}",
    init=f"useradd {person}\n{write_files({path: chr(10).join(lines)})}",
    example=f"grep '^{key}=' {path} | tail -n 1 | cut -d= -f2",
    slip=f"grep {key}= {path} | tail -n 1 | cut -d= -f2",
    compare=COMPARE_INTEGERS,
  )


def find_text(rng: random.Random, level: int) -> Draft:
  """Which file holds a line."""
  root = draw_root(rng)
  names = draw_names(rng, 4 + 4 * level)
  paths = spread(rng, draw_tree(rng, root, level), names)
  codes = [f"{rng.randrange(16**8):08x}" for _ in paths]
  code = rng.choice(codes)
  files = {
    path: f"code: {its}\n" for path, its in zip(paths, codes, strict=True)
  }
  return Draft(
    description=f"There is a file {say_below(rng, root)} that holds the text "
    f"{quote(code)}. What is its name? {say_name_only(rng)}",
    init=write_files(files),
    example=f"basename $(grep -rl {code} {root})",
    slip=f"ls {root} | tail -n 1",
    compare=COMPARE_TEXTS,
  )
