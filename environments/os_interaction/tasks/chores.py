"""Generated chores: work after which the machine must be as was asked.

As in `questions`, each function draws one: what to do, how it is done, how it
is nearly done, and what the machine must have become.
"""

import random

from environments.os_interaction.tasks.draft import (
  Draft,
  draw_names,
  draw_root,
  draw_tree,
  say_below,
  spread,
  write_files,
)
from environments.os_interaction.tasks.outcomes import (
  Becomes,
  PackedInto,
  ProcessesEnded,
  UserMade,
)
from environments.os_interaction.tasks.words import (
  EXTENSIONS,
  GROUPS,
  KEYS,
  PEOPLE,
  PRODUCTS,
)


def set_permissions(rng: random.Random, level: int) -> Draft:
  """Files of a kind get a mode, and no others."""
  root = draw_root(rng)
  extensions = rng.sample(EXTENSIONS, 3)
  names = draw_names(rng, 4 + 3 * level, extensions=extensions)
  names.append(f"main.{extensions[0]}")
  paths = spread(rng, draw_tree(rng, root, level), names)
  chosen, kept = extensions[0], "604"
  mode = rng.choice(("600", "640", "444", "750", "755", "664"))
  below = say_below(rng, root)
  ask = rng.choice(
    (
      f"Set the permissions of every file ending in .{chosen} {below} to "
      f"{mode}.",
      f"Every file ending in .{chosen} {below} must have the mode {mode}.",
    )
  )
  return Draft(
    description=f"{ask} Change no other file.",
    init=f"{write_files(dict.fromkeys(paths, 'x'))}\n"
    f"find {root} -type f -exec chmod {kept} {{}} +",
    example=f"find {root} -type f -name '*.{chosen}' -exec chmod {mode} {{}} +",
    slip=f"chmod -R {mode} {root}",
    outcome=Becomes(
      root=root,
      modes={p: int(mode, 8) for p in paths if p.endswith(f".{chosen}")},
    ),
  )


def add_user(rng: random.Random, level: int) -> Draft:
  """A user with a home, a shell and groups."""
  person = rng.choice(PEOPLE)
  groups = tuple(rng.sample(GROUPS, level))
  shell = rng.choice(("/bin/bash", "/bin/sh"))
  number = rng.randint(2000, 2999)
  listed = " and ".join(groups)
  return Draft(
    description=f"Create the user {person} with the user id {number}, the home "
    f"directory /home/{person}, which must exist, and the login shell {shell}, "
    f"who also belongs to the group{'s' * (level > 1)} {listed}, which "
    f"exist{'s' * (level == 1)} already.",
    init="\n".join(f"groupadd {group}" for group in groups),
    example=f"useradd -m -u {number} -s {shell} -G {','.join(groups)} {person}",
    slip=f"useradd -m -s {shell} -G {groups[0]} {person}",
    outcome=UserMade(
      name=person,
      uid=number,
      home=f"/home/{person}",
      shell=shell,
      groups=groups,
    ),
  )


def rename_files(rng: random.Random, level: int) -> Draft:
  """Files of one ending get another."""
  root = draw_root(rng)
  old, new, other = rng.sample(EXTENSIONS, 3)
  names = draw_names(rng, 3 + 3 * level, extensions=(old, other))
  paths = [f"{root}/main.{old}"]
  paths += spread(rng, draw_tree(rng, root, level), names)
  renamed = {
    path: f"{path.removesuffix(old)}{new}"
    for path in paths
    if path.endswith(f".{old}")
  }
  below = say_below(rng, root)
  return Draft(
    description=rng.choice(
      (
        f"Rename every file ending in .{old} {below} so that it ends in .{new} "
        "instead.",
        f"The files ending in .{old} {below} have the wrong ending. Rename "
        f"them to end in .{new}; what is in them stays.",
      )
    ),
    init=write_files(
      {p: f"{i} {rng.randrange(1 << 30)}\n" for i, p in enumerate(paths)}
    ),
    example=f"find {root} -name '*.{old}' | while read f; do mv \"$f\" "
    f'"${{f%.{old}}}.{new}"; done',
    slip=f"mv {root}/main.{old} {root}/main.{new}.tmp",
    outcome=Becomes(root=root, renamed=renamed),
  )


def pack_folder(rng: random.Random, level: int) -> Draft:
  """A folder becomes an archive."""
  root = draw_root(rng)
  names = draw_names(rng, 3 + 2 * level)
  paths = spread(rng, draw_tree(rng, root, level), names)
  archive = f"/tmp/{rng.choice(PRODUCTS)}-{rng.randint(1, 99)}.tar.gz"
  parent, _, name = root.rpartition("/")
  return Draft(
    description=rng.choice(
      (
        f"Pack the directory {root} with all that is in it into the "
        f"gzip-compressed tar archive {archive}.",
        f"Make {archive}, a tar archive compressed with gzip, of the directory "
        f"{root} and all that is in it. The directory stays where it is.",
      )
    ),
    init=write_files(
      {p: f"{i} {rng.randrange(1 << 30)}\n" for i, p in enumerate(paths)}
    ),
    example=f"tar -czf {archive} -C {parent} {name}",
    slip=f"tar -cf {archive} -C {parent} {name}",
    outcome=PackedInto(root, archive),
  )


def edit_setting(rng: random.Random, level: int) -> Draft:
  """One setting changes in a file, and nothing else does."""
  path = f"/etc/{rng.choice(PRODUCTS)}.conf"
  keys = rng.sample(KEYS, 3 + 2 * level)
  before = {key: str(rng.randint(1, 99)) for key in keys}
  changed = rng.sample(keys, level)
  values = {key: str(rng.randint(100, 999)) for key in changed}

  def text(settings: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())

  edits = ";".join(f"s/^{key}=.*/{key}={values[key]}/" for key in changed)
  asked = " and ".join(f"{key} to {values[key]}" for key in changed)
  return Draft(
    description=f"In the file {path}, set {asked}. Leave all the rest as it "
    "is.",
    init=write_files({path: text(before)}),
    example=f"sed -i '{edits}' {path}",
    slip="\n".join(
      f"echo {key}={value} >> {path}" for key, value in values.items()
    ),
    outcome=Becomes(
      root=path, texts={path: text(before | values)}, text_only=True
    ),
  )


def end_processes(rng: random.Random, level: int) -> Draft:
  """One program's processes end, another's go on."""
  name = f"{rng.choice(PRODUCTS)}{rng.randint(2, 99)}d"
  other = f"{name}-{rng.choice(('old', 'main', 'backup'))}"
  count, others = rng.randint(1, 1 + level), rng.randint(1, 1 + level)
  start = (
    "for i in $(seq {count}); do setsid /usr/local/bin/{name} 3600 "
    "</dev/null >/dev/null 2>&1 & done"
  )
  return Draft(
    description=rng.choice(
      (
        f"Stop all processes of the program {name}, but none of the program "
        f"{other}.",
        f"The program {name} must not run any more: end its processes. Those "
        f"of {other} go on.",
      )
    ),
    init="\n".join(
      [
        f"cp /bin/sleep /usr/local/bin/{name}",
        f"cp /bin/sleep /usr/local/bin/{other}",
        start.format(count=count, name=name),
        start.format(count=others, name=other),
        f"until [ $(pgrep -c ^{name}) = {count + others} ]; do sleep 0.01; "
        "done",
      ]
    ),
    example=f"pkill -x {name}",
    slip=f"pkill {name}",
    outcome=ProcessesEnded(name, other),
  )


def link_files(rng: random.Random, level: int) -> Draft:
  """Links that lead nowhere are removed."""
  root = draw_root(rng)
  names = draw_names(rng, 4 + 2 * level)
  gone = rng.sample(names, 1 + level)
  folder = f"{root}/{rng.choice(('links', 'current', 'latest', 'shared'))}"
  files = {f"{root}/{name}": "x" for name in names}
  links = [f"ln -s {root}/{n} {folder}/{n}.link" for n in names]
  removals = [f"rm {root}/{n}" for n in gone]
  return Draft(
    description=rng.choice(
      (
        f"Remove every symbolic link in {folder} whose target does not exist, "
        "and nothing else.",
        f"Some symbolic links in {folder} lead nowhere. Delete those, and keep "
        "all other files.",
      )
    ),
    init="\n".join([write_files(files), f"mkdir {folder}", *links, *removals]),
    example=f"find {folder} -xtype l -delete",
    slip=f"find {folder} -type l -delete",
    outcome=Becomes(
      root=root, removed=tuple(f"{folder}/{n}.link" for n in gone)
    ),
  )


def give_files_away(rng: random.Random, level: int) -> Draft:
  """What one user owns becomes another's."""
  old, new, third = rng.sample(PEOPLE, 3)
  numbers = {old: 1501, new: 1502, third: 1503}
  root = draw_root(rng, tops=("/srv", "/opt", "/data"))
  names = draw_names(rng, 4 + 2 * level)
  paths = spread(rng, draw_tree(rng, root, level), names)
  owners = {path: rng.choice((old, third)) for path in paths} | {paths[0]: old}
  kept = third in owners.values()
  return Draft(
    description=f"Make the user {new} the owner of every file "
    f"{say_below(rng, root)} that belongs to the user {old} now. Change no "
    "other file.",
    init="\n".join(
      [
        *(f"useradd -m -u {n} {person}" for person, n in numbers.items()),
        write_files(dict.fromkeys(paths, "x")),
        *(f"chown {owner} {path}" for path, owner in owners.items()),
      ]
    ),
    example=f"find {root} -user {old} -exec chown {new} {{}} +",
    slip=f"chown -R {new} {root}" if kept else f"chown {new} {root}",
    outcome=Becomes(
      root=root,
      owners={p: numbers[new] for p, owner in owners.items() if owner == old},
    ),
  )
