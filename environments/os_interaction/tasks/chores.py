"""Generated chores, judged by the state of the machine after the work.

As in `questions`, each function draws one chore of a level from 1 (easy) to 3,
with a script that does it, a `slip` that nearly does, and the right outcome.
"""

import random
import shlex
from collections.abc import Callable, Sequence

from environments.os_interaction.tasks import draft, outcomes, words

NUM_CASES = 3  # of a command that the judge tries; the policy does not see them
# A command: its purpose in words, bash code, (arguments, output) pairs.
_Command = tuple[str, str, list[tuple[list[str], str]]]


def set_permissions(rng: random.Random, level: int) -> draft.Draft:
  """Sets the mode of the files with one extension."""
  root = draft.draw_root(rng)
  extensions = rng.sample(words.EXTENSIONS, 3)
  names = draft.draw_names(rng, 4 + 3 * level, extensions=extensions)
  names.append(f"main.{extensions[0]}")
  paths = draft.spread(rng, draft.draw_tree(rng, root, level), names)
  chosen, kept = extensions[0], "604"
  mode = rng.choice(("600", "640", "444", "750", "755", "664"))
  below = draft.draw_below(rng, root)
  request = rng.choice(
    (
      f"Set the permissions of every file ending in .{chosen} {below} to "
      f"{mode}.",
      f"Every file ending in .{chosen} {below} must have the mode {mode}.",
    )
  )
  return draft.Draft(
    description=f"{request} Change no other file.",
    init=f"{draft.write_files(dict.fromkeys(paths, 'x'))}\n"
    f"find {root} -type f -exec chmod {kept} {{}} +",
    example=f"find {root} -type f -name '*.{chosen}' -exec chmod {mode} {{}} +",
    slip=f"chmod -R {mode} {root}",
    outcome=outcomes.Becomes(
      root=root,
      modes={p: int(mode, 8) for p in paths if p.endswith(f".{chosen}")},
    ),
  )


def add_user(rng: random.Random, level: int) -> draft.Draft:
  """Creates a user with an id, a home, a shell and groups."""
  person = rng.choice(words.PEOPLE)
  groups = tuple(rng.sample(words.GROUPS, level))
  shell = rng.choice(("/bin/bash", "/bin/sh"))
  number = rng.randint(2000, 2999)
  listed = " and ".join(groups)
  return draft.Draft(
    description=f"Create the user {person} with the user id {number}, the home "
    f"directory /home/{person}, which must exist, and the login shell {shell}, "
    f"who also belongs to the group{'s' * (level > 1)} {listed}, which "
    f"exist{'s' * (level == 1)} already.",
    init="\n".join(f"groupadd {group}" for group in groups),
    example=f"useradd -m -u {number} -s {shell} -G {','.join(groups)} {person}",
    slip=f"useradd -m -s {shell} -G {groups[0]} {person}",
    outcome=outcomes.UserMade(
      name=person,
      uid=number,
      home=f"/home/{person}",
      shell=shell,
      groups=groups,
    ),
  )


def rename_files(rng: random.Random, level: int) -> draft.Draft:
  """Changes the extension of files."""
  root = draft.draw_root(rng)
  old, new, other = rng.sample(words.EXTENSIONS, 3)
  names = draft.draw_names(rng, 3 + 3 * level, extensions=(old, other))
  paths = [f"{root}/main.{old}"]
  paths += draft.spread(rng, draft.draw_tree(rng, root, level), names)
  renamed = {
    path: f"{path.removesuffix(old)}{new}"
    for path in paths
    if path.endswith(f".{old}")
  }
  below = draft.draw_below(rng, root)
  return draft.Draft(
    description=rng.choice(
      (
        f"Rename every file ending in .{old} {below} so that it ends in .{new} "
        "instead.",
        f"The files ending in .{old} {below} have the wrong ending. Rename "
        f"them to end in .{new}; what is in them stays.",
      )
    ),
    init=draft.write_files(
      {p: f"{i} {rng.randrange(1 << 30)}\n" for i, p in enumerate(paths)}
    ),
    example=f"find {root} -name '*.{old}' | while read f; do mv \"$f\" "
    f'"${{f%.{old}}}.{new}"; done',
    slip=f"mv {root}/main.{old} {root}/main.{new}.tmp",
    outcome=outcomes.Becomes(root=root, renamed=renamed),
  )


def pack_folder(rng: random.Random, level: int) -> draft.Draft:
  """Packs a folder into an archive."""
  root = draft.draw_root(rng)
  names = draft.draw_names(rng, 3 + 2 * level)
  paths = draft.spread(rng, draft.draw_tree(rng, root, level), names)
  archive = f"/tmp/{rng.choice(words.PRODUCTS)}-{rng.randint(1, 99)}.tar.gz"
  parent, _, name = root.rpartition("/")
  return draft.Draft(
    description=rng.choice(
      (
        f"Pack the directory {root} with all that is in it into the "
        f"gzip-compressed tar archive {archive}.",
        f"Make {archive}, a tar archive compressed with gzip, of the directory "
        f"{root} and all that is in it. The directory stays where it is.",
      )
    ),
    init=draft.write_files(
      {p: f"{i} {rng.randrange(1 << 30)}\n" for i, p in enumerate(paths)}
    ),
    example=f"tar -czf {archive} -C {parent} {name}",
    slip=f"tar -cf {archive} -C {parent} {name}",
    outcome=outcomes.PackedInto(root, archive),
  )


def edit_setting(rng: random.Random, level: int) -> draft.Draft:
  """Changes settings in a file."""
  path = f"/etc/{rng.choice(words.PRODUCTS)}.conf"
  keys = rng.sample(words.KEYS, 3 + 2 * level)
  before = {key: str(rng.randint(1, 99)) for key in keys}
  changed = rng.sample(keys, level)
  values = {key: str(rng.randint(100, 999)) for key in changed}

  def text(settings: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())

  edits = ";".join(f"s/^{key}=.*/{key}={values[key]}/" for key in changed)
  wanted = " and ".join(f"{key} to {values[key]}" for key in changed)
  return draft.Draft(
    description=f"In the file {path}, set {wanted}. Leave all the rest as it "
    "is.",
    init=draft.write_files({path: text(before)}),
    example=f"sed -i '{edits}' {path}",
    slip="\n".join(
      f"echo {key}={value} >> {path}" for key, value in values.items()
    ),
    outcome=outcomes.Becomes(
      root=path, texts={path: text(before | values)}, text_only=True
    ),
  )


def end_processes(rng: random.Random, level: int) -> draft.Draft:
  """Ends the processes of one program and spares those of another."""
  name = f"{rng.choice(words.PRODUCTS)}{rng.randint(2, 99)}d"
  other = f"{name}-{rng.choice(('old', 'main', 'backup'))}"
  count, others = rng.randint(1, 1 + level), rng.randint(1, 1 + level)
  return draft.Draft(
    description=rng.choice(
      (
        f"Stop all processes of the program {name}, but none of the program "
        f"{other}.",
        f"The program {name} must not run any more: end its processes. Those "
        f"of {other} go on.",
      )
    ),
    init=f"{draft.start_programs({name: count, other: others})}\n"
    f"until [ $(pgrep -c ^{name}) = {count + others} ]; do sleep 0.01; done",
    example=f"pkill -x {name}",
    slip=f"pkill {name}",
    outcome=outcomes.ProcessesEnded(name, other),
  )


def remove_links(rng: random.Random, level: int) -> draft.Draft:
  """Removes links whose targets do not exist."""
  root = draft.draw_root(rng)
  names = draft.draw_names(rng, 4 + 2 * level)
  removed = rng.sample(names, 1 + level)
  folder = f"{root}/{rng.choice(('links', 'current', 'latest', 'shared'))}"
  files = {f"{root}/{name}": "x" for name in names}
  links = [f"ln -s {root}/{n} {folder}/{n}.link" for n in names]
  removals = [f"rm {root}/{n}" for n in removed]
  return draft.Draft(
    description=rng.choice(
      (
        f"Remove every symbolic link in {folder} whose target does not exist, "
        "and nothing else.",
        f"Some symbolic links in {folder} lead nowhere. Delete those, and keep "
        "all other files.",
      )
    ),
    init="\n".join(
      [draft.write_files(files), f"mkdir {folder}", *links, *removals]
    ),
    example=f"find {folder} -xtype l -delete",
    slip=f"find {folder} -type l -delete",
    outcome=outcomes.Becomes(
      root=root, removed=tuple(f"{folder}/{n}.link" for n in removed)
    ),
  )


def change_owner(rng: random.Random, level: int) -> draft.Draft:
  """Gives one user's files to another."""
  old, new, third = rng.sample(words.PEOPLE, 3)
  numbers = {old: 1501, new: 1502, third: 1503}
  root = draft.draw_root(rng, parents=("/srv", "/opt", "/data"))
  names = draft.draw_names(rng, 4 + 2 * level)
  paths = draft.spread(rng, draft.draw_tree(rng, root, level), names)
  owners = {path: rng.choice((old, third)) for path in paths} | {paths[0]: old}
  has_third = third in owners.values()
  return draft.Draft(
    description=f"Make the user {new} the owner of every file "
    f"{draft.draw_below(rng, root)} that belongs to the user {old} now. Change "
    "no other file.",
    init="\n".join(
      [
        *(f"useradd -m -u {n} {person}" for person, n in numbers.items()),
        draft.write_files(dict.fromkeys(paths, "x")),
        *(f"chown {owner} {path}" for path, owner in owners.items()),
      ]
    ),
    example=f"find {root} -user {old} -exec chown {new} {{}} +",
    slip=f"chown -R {new} {root}" if has_third else f"chown {new} {root}",
    outcome=outcomes.Becomes(
      root=root,
      owners={p: numbers[new] for p, owner in owners.items() if owner == old},
    ),
  )


def make_command(rng: random.Random, level: int) -> draft.Draft:
  """Makes a command that any user can call from anywhere."""
  name = f"{rng.choice(words.PRODUCTS)}-{rng.choice(words.PRODUCTS)}"
  draw = rng.choice((_fixed, _labelled, _textual, _numeric)[: 1 + level])
  purpose, body, cases = draw(rng)
  path = f"/usr/local/bin/{name}"
  write = f"printf '#!/bin/bash\\n%s\\n' {shlex.quote(body)} > {path}"
  return draft.Draft(
    description=f"Make a command {name} that can be called from any directory, "
    f"by every user, and {purpose}.",
    init="mkdir -p /opt",
    example=f"{write}; chmod 755 {path}",
    slip=write,
    outcome=outcomes.CommandMade(
      name, tuple((tuple(arguments), output) for arguments, output in cases)
    ),
  )


def _fixed(rng: random.Random) -> _Command:
  """Prints a fixed text."""
  text = rng.choice(("Hello from", "Greetings from", "This is"))
  text = f"{text} {rng.choice(words.CITIES)} and {rng.choice(words.CITIES)}"
  return f"prints {text}", f"echo {text}", [([], text)]


def _labelled(rng: random.Random) -> _Command:
  """Prints a label and the first argument."""
  city = rng.choice(words.CITIES)
  cases = [([word], f"{city}: {word}") for word in _words(rng, NUM_CASES)]
  purpose = f'prints "{city}: " and then its first argument'
  return purpose, f'echo "{city}: $1"', cases


def _textual(rng: random.Random) -> _Command:
  """Prints a property of its arguments as words."""
  arguments = [_words(rng, rng.randint(1, 4)) for _ in range(NUM_CASES)]
  functions: tuple[tuple[str, str, Callable[[list[str]], str]], ...] = (
    (
      "prints the number of its arguments",
      "echo $#",
      lambda given: str(len(given)),
    ),
    (
      "prints its first argument in capital letters",
      'echo "${1^^}"',
      lambda given: given[0].upper(),
    ),
    (
      "prints the last of its arguments",
      'echo "${@: -1}"',
      lambda given: given[-1],
    ),
    (
      "prints how many characters its first argument has",
      'echo "${#1}"',
      lambda given: str(len(given[0])),
    ),
  )
  purpose, body, output = rng.choice(functions)
  return purpose, body, [(given, output(given)) for given in arguments]


def _numeric(rng: random.Random) -> _Command:
  """Prints a function of its arguments as integers."""
  pairs = [
    (rng.randint(-99, 999), rng.randint(-99, 999)) for _ in range(NUM_CASES)
  ]
  factor = rng.randint(2, 9)
  functions: tuple[tuple[str, str, Callable[[int, int], int]], ...] = (
    (
      "prints the sum of its two arguments, which are integers",
      "echo $(($1 + $2))",
      lambda a, b: a + b,
    ),
    (
      "prints the product of its two arguments, which are integers",
      "echo $(($1 * $2))",
      lambda a, b: a * b,
    ),
    (
      "prints the larger of its two arguments, which are integers",
      "echo $(($1 > $2 ? $1 : $2))",
      max,
    ),
    (
      f"prints {factor} times the difference of its two arguments, the first "
      "minus the second, which are integers",
      f"echo $((($1 - $2) * {factor}))",
      lambda a, b: (a - b) * factor,
    ),
  )
  purpose, body, output = rng.choice(functions)
  cases = [([str(a), str(b)], str(output(a, b))) for a, b in pairs]
  return purpose, body, cases


def _words(rng: random.Random, count: int) -> list[str]:
  stems: Sequence[str] = (*words.PEOPLE, *words.PRODUCTS, *words.EVENTS)
  return [f"{rng.choice(stems)}{rng.randint(0, 999)}" for _ in range(count)]
