"""Generated chores: work after which the machine must be as was asked.

As in `questions`, each function draws one: what to do, how it is done, how it
is nearly done, and a script that looks whether it was.
"""

import random

from environments.os_interaction.draft import (
  Draft,
  draw_names,
  draw_tree,
  quote,
  spread,
  write_files,
)
from environments.os_interaction.words import (
  CITIES,
  EXTENSIONS,
  FOLDERS,
  GROUPS,
  KEYS,
  PEOPLE,
  PRODUCTS,
)


def set_permissions(rng: random.Random, level: int) -> Draft:
  """Files of a kind get a mode, and no others."""
  root = f"/root/{rng.choice(FOLDERS)}"
  extensions = rng.sample(EXTENSIONS, 3)
  names = draw_names(rng, 4 + 3 * level, extensions=extensions)
  paths = spread(rng, draw_tree(rng, root, level), names)
  chosen = extensions[0]
  mode = rng.choice(("600", "640", "444", "750", "755", "664"))
  kept = "604"
  mine = f"{root} -type f -name '*.{chosen}'"
  others = f"{root} -type f ! -name '*.{chosen}'"
  return Draft(
    description=f"Set the permissions of every file ending in .{chosen} in "
    f"{root} and its subdirectories to {mode}. Change no other file.",
    init=f"{write_files(dict.fromkeys(paths, 'x'))}\n"
    f"find {root} -type f -exec chmod {kept} {{}} +",
    example=f"find {mine} -exec chmod {mode} {{}} +",
    slip=f"chmod -R {mode} {root}",
    check=f'[ -z "$(find {mine} ! -perm {mode})" ] && '
    f'[ -z "$(find {others} ! -perm {kept})" ] && '
    f"[ $(find {root} -type f | wc -l) = {len(paths)} ]",
  )


def add_user(rng: random.Random, level: int) -> Draft:
  """A user with a home, a shell and groups."""
  person = rng.choice(PEOPLE)
  groups = rng.sample(GROUPS, level)
  shell = rng.choice(("/bin/bash", "/bin/sh"))
  number = rng.randint(2000, 2999)
  listed = " and ".join(groups)
  tests = [
    f"[ $(id -u {person}) = {number} ]",
    f"[ $(getent passwd {person} | cut -d: -f7) = {shell} ]",
    f"[ -d /home/{person} ]",
    *(f"id -nG {person} | grep -qw {group}" for group in groups),
  ]
  return Draft(
    description=f"Create the user {person} with the user id {number}, the home "
    f"directory /home/{person}, which must exist, and the login shell {shell}, "
    f"who also belongs to the group{'s' * (level > 1)} {listed}, which "
    f"exist{'s' * (level == 1)} already.",
    init="\n".join(f"groupadd {group}" for group in groups),
    example=f"useradd -m -u {number} -s {shell} -G {','.join(groups)} {person}",
    slip=f"useradd -m -s {shell} -G {groups[0]} {person}",
    check=" && ".join(tests),
  )


def rename_files(rng: random.Random, level: int) -> Draft:
  """Files of one ending get another."""
  root = f"/root/{rng.choice(FOLDERS)}"
  old, new, other = rng.sample(EXTENSIONS, 3)
  names = draw_names(rng, 3 + 3 * level, extensions=(old, other))
  paths = spread(rng, draw_tree(rng, root, level), names)
  renamed = [
    f"{p.removesuffix(old)}{new}" if p.endswith(f".{old}") else p for p in paths
  ]
  wanted = "\n".join(sorted(renamed))
  example = (
    f"find {root} -name '*.{old}' | while read f; do mv \"$f\" "
    f'"${{f%.{old}}}.{new}"; done'
  )
  return Draft(
    description=f"In {root} and its subdirectories, rename every file ending "
    f"in .{old} so that it ends in .{new} instead.",
    init=f"{write_files(dict.fromkeys(paths, 'x'))}\ntouch {root}/main.{old}",
    example=example,
    slip=f"mv {root}/main.{old} {root}/main.{new}.tmp",
    check=f"[ \"$(find {root} -type f ! -name 'main.*' | LC_ALL=C sort)\" = "
    f"{quote(wanted)} ] && [ -e {root}/main.{new} ]",
  )


def pack_folder(rng: random.Random, level: int) -> Draft:
  """A folder becomes an archive."""
  root = f"/root/{rng.choice(FOLDERS)}"
  names = draw_names(rng, 3 + 2 * level)
  paths = spread(rng, draw_tree(rng, root, level), names)
  archive = f"/tmp/{rng.choice(PRODUCTS)}.tar.gz"
  wanted = "\n".join(sorted(path.rpartition("/")[2] for path in paths))
  return Draft(
    description=f"Pack the directory {root} with all that is in it into the "
    f"gzip-compressed tar archive {archive}.",
    init=write_files({p: f"{i}\n" for i, p in enumerate(paths)}),
    example=f"tar -czf {archive} -C /root {root.rpartition('/')[2]}",
    slip=f"tar -cf {archive} -C /root {root.rpartition('/')[2]}",
    check=f"gzip -t {archive} && [ \"$(tar -tzf {archive} | grep -v '/$' | "
    f"sed 's|.*/||' | LC_ALL=C sort)\" = {quote(wanted)} ]",
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
    check=f'[ "$(cat {path})" = {quote(text(before | values).rstrip())} ]',
  )


def make_command(rng: random.Random, level: int) -> Draft:
  """A program that can be called from anywhere."""
  name = f"{rng.choice(PRODUCTS)}-{rng.choice(PRODUCTS)}"
  city = rng.choice(CITIES)
  asked, body, outputs = rng.choice(
    (
      (
        f"prints Hello from {city}",
        f"echo Hello from {city}",
        {"": f"Hello from {city}"},
      ),
      (
        f'prints "{city}: " and then its first argument',
        f'echo "{city}: $1"',
        {"7": f"{city}: 7", "x": f"{city}: x"},
      ),
      (
        "prints the sum of its two arguments, which are integers",
        "echo $(($1 + $2))",
        {"3 4": "7", "40 -2": "38"},
      ),
    )[:level]
  )
  tests = [
    f'[ "$(cd / && {name} {argument})" = {quote(output)} ]'
    for argument, output in outputs.items()
  ]
  path = f"/usr/local/bin/{name}"
  return Draft(
    description=f"Make a command {name} that can be called from any directory, "
    f"by every user, and {asked}.",
    init=f"mkdir -p /opt/{city.lower()}",
    example=f"printf '#!/bin/bash\\n%s\\n' {quote(body)} > {path}; "
    f"chmod 755 {path}",
    slip=f"printf '#!/bin/bash\\n%s\\n' {quote(body)} > {path}",
    check=" && ".join([*tests, f'[ -n "$(find {path} -perm -005)" ]']),
  )


def end_processes(rng: random.Random, level: int) -> Draft:
  """One program's processes end, another's go on."""
  name = f"{rng.choice(PRODUCTS)}d"
  other = f"{name}-{rng.choice(('old', 'main', 'backup'))}"
  count, others = rng.randint(1, 1 + level), rng.randint(1, 1 + level)
  start = (
    "for i in $(seq {count}); do setsid /usr/local/bin/{name} 3600 "
    "</dev/null >/dev/null 2>&1 & done"
  )
  return Draft(
    description=f"Stop all processes of the program {name}, but none of the "
    f"program {other}.",
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
    # What was told to end may take a moment.
    check=f"for i in $(seq 20); do pgrep -x {name} >/dev/null || break; "
    f"sleep 0.05; done; [ $(pgrep -xc {name}) = 0 ] && "
    f"[ $(pgrep -c ^{name[:15]}) = {others} ]",
  )


def link_files(rng: random.Random, level: int) -> Draft:
  """Links that lead nowhere are removed."""
  root = f"/root/{rng.choice(FOLDERS)}"
  names = draw_names(rng, 4 + 2 * level)
  gone = rng.sample(names, 1 + level)
  files = {f"{root}/{name}": "x" for name in names}
  links = [f"ln -s {root}/{n} {root}/links/{n}.link" for n in names]
  removals = [f"rm {root}/{n}" for n in gone]
  left = "\n".join(sorted(f"{n}.link" for n in names if n not in gone))
  return Draft(
    description=f"Remove every symbolic link in {root}/links whose target does "
    "not exist, and nothing else.",
    init="\n".join(
      [write_files(files), f"mkdir {root}/links", *links, *removals]
    ),
    example=f"find {root}/links -xtype l -delete",
    slip=f"find {root}/links -type l -delete",
    check=f'[ "$(ls {root}/links | LC_ALL=C sort)" = {quote(left)} ] && '
    f"[ $(find {root} -maxdepth 1 -type f | wc -l) = "
    f"{len(names) - len(gone)} ]",
  )


def give_files_away(rng: random.Random, level: int) -> Draft:
  """What one user owns becomes another's."""
  old, new, third = rng.sample(PEOPLE, 3)
  root = f"/srv/{rng.choice(FOLDERS)}"
  names = draw_names(rng, 4 + 2 * level)
  paths = spread(rng, draw_tree(rng, root, level), names)
  owners = {path: rng.choice((old, third)) for path in paths} | {paths[0]: old}
  kept = sum(owner == third for owner in owners.values())
  return Draft(
    description=f"Make the user {new} the owner of every file in {root} and "
    f"its subdirectories that belongs to the user {old} now. Change no other "
    "file.",
    init="\n".join(
      [
        *(f"useradd -m {person}" for person in (old, new, third)),
        write_files(dict.fromkeys(paths, "x")),
        *(f"chown {owner} {path}" for path, owner in owners.items()),
      ]
    ),
    example=f"find {root} -user {old} -exec chown {new} {{}} +",
    slip=f"chown -R {new} {root}" if kept else f"chown {new} {root}",
    check=f"[ $(find {root} -type f -user {new} | wc -l) = "
    f"{len(paths) - kept} ] && "
    f"[ $(find {root} -type f -user {third} | wc -l) = {kept} ]",
  )
