"""Generated questions: what the files, logs, users and processes tell.

Each function draws one, harder at higher levels (1 to 3), with a script that
finds the answer and one that nearly does.
"""

import random

from environments.os_interaction.tasks.draft import (
  COMPARE_INTEGERS,
  FILLER,
  Draft,
  draw_names,
  draw_root,
  draw_tree,
  say_below,
  say_number_only,
  spread,
  write_files,
)
from environments.os_interaction.tasks.words import (
  CITIES,
  EVENTS,
  EXTENSIONS,
  FOLDERS,
  GROUPS,
  LEVELS,
  PEOPLE,
  PRODUCTS,
)


def count_files(rng: random.Random, level: int) -> Draft:
  """How many files are of some kind."""
  root = draw_root(rng)
  folders = draw_tree(rng, root, level)
  extensions = rng.sample(EXTENSIONS, 3)
  names = draw_names(rng, 6 * level + 4, extensions=extensions, hidden=0.25)
  sizes = [rng.choice((0, 10, 200, 700, 1000)) for _ in names]
  files = {
    path: FILLER[:size]
    for path, size in zip(spread(rng, folders, names), sizes, strict=True)
  }
  extension, limit = extensions[0], 10 * rng.randint(2, 90)
  what, test = rng.choice(
    (
      (f"regular files ending in .{extension}", f"-name '*.{extension}'"),
      ("hidden files (their names begin with a dot)", "-name '.*'"),
      ("empty files", "-empty"),
      (f"regular files larger than {limit} bytes", f"-size +{limit}c"),
      (
        f"regular files ending in .{extension} that are not hidden",
        f"-name '*.{extension}' ! -name '.*'",
      ),
      (
        f"files ending in .{extension} that are larger than {limit} bytes",
        f"-name '*.{extension}' -size +{limit}c",
      ),
    )[: 3 + level]
  )
  below = say_below(rng, root)
  ask = rng.choice(
    (
      f"How many {what} are there {below}?",
      f"Count the {what} {below}.",
      f"Find out how many {what} there are {below}.",
    )
  )
  return Draft(
    description=f"{ask} {say_number_only(rng)}",
    init=write_files(files),
    example=f"find {root} -type f {test} | wc -l",
    slip=f"find {root} | wc -l",
    compare=COMPARE_INTEGERS,
  )


def query_log(rng: random.Random, level: int) -> Draft:
  """What a log says of one level, user or event."""
  path = f"/var/log/{rng.choice(FOLDERS)}.log"
  people = rng.sample(PEOPLE, 3 + level)
  lines = [
    f"2024-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} "
    f"[{rng.choice(LEVELS)}] user={rng.choice(people)} {rng.choice(EVENTS)}"
    for _ in range(20 * level)
  ]
  kind, person = rng.choice(LEVELS), rng.choice(people)
  event = rng.choice(EVENTS)
  ask, example, slip = rng.choice(
    (
      (
        f"How many lines have the level {kind}?",
        f"grep '\\[{kind}\\]' {path} | wc -l",
        f"grep -c {person} {path}",
      ),
      (
        f"How many {kind} lines are about the user {person}?",
        f"grep '\\[{kind}\\]' {path} | grep 'user={person} ' | wc -l",
        f"grep -c 'user={person} ' {path}",
      ),
      (
        f'How many different users have a line that says "{event}"?',
        f"grep '{event}' {path} | grep -o 'user=[a-z]*' | sort -u | wc -l",
        f"grep -c '{event}' {path}",
      ),
      (
        f"On how many different days is there a {kind} line?",
        f"grep '\\[{kind}\\]' {path} | cut -d' ' -f1 | sort -u | wc -l",
        f"grep '\\[{kind}\\]' {path} | wc -l",
      ),
    )[: 1 + level]
  )
  return Draft(
    description=f"The log {path} has lines such as "
    f'"2024-01-31 [INFO] user={people[0]} {EVENTS[0]}". {ask} '
    f"{say_number_only(rng)}",
    init=write_files({path: "\n".join(lines) + "\n"}),
    example=example,
    slip=slip,
    compare=COMPARE_INTEGERS,
  )


def sum_column(rng: random.Random, level: int) -> Draft:
  """Arithmetic over a table of sales."""
  path = f"{draw_root(rng)}.csv"
  cities = rng.sample(CITIES, 2 + level)
  goods = rng.sample(PRODUCTS, 2 + level)
  rows = [
    f"{rng.choice(cities)},{rng.choice(goods)},{rng.randint(1, 40)},"
    f"{rng.randint(2, 90)}"
    for _ in range(12 * level)
  ]
  city, thing = rng.choice(cities), rng.choice(goods)
  ask, program = rng.choice(
    (
      (f"What is the total amount sold in {city}?", f'$1=="{city}"{{s+=$3}}'),
      (f"What is the total amount of {thing} sold?", f'$2=="{thing}"{{s+=$3}}'),
      (
        f"What was taken in {city} in all, each sale being amount times price?",
        f'$1=="{city}"{{s+=$3*$4}}',
      ),
      (
        f"How many sales of {thing} were of more than 20 pieces?",
        f'$2=="{thing}" && $3>20{{s++}}',
      ),
    )[: 1 + level]
  )
  return Draft(
    description=f"The file {path} has a line per sale: city, product, amount, "
    f"price, separated by commas. {ask} {say_number_only(rng)}",
    init=write_files({path: "city,product,amount,price\n" + "\n".join(rows)}),
    example=f"awk -F, '{program}END{{print s+0}}' {path}",
    slip=f"awk -F, '{{s+=$3}}END{{print s+1}}' {path}",
    compare=COMPARE_INTEGERS,
  )


def count_users(rng: random.Random, level: int) -> Draft:
  """Who belongs to a group, or has a shell."""
  people = rng.sample(PEOPLE, 3 + 2 * level)
  groups = [f"{g}{rng.randint(2, 60)}" for g in rng.sample(GROUPS, 1 + level)]
  shells = [rng.choice(("/bin/bash", "/bin/sh")) for _ in people]
  lines = [f"groupadd {group}" for group in groups]
  for person, shell in zip(people, shells, strict=True):
    member = [group for group in groups if rng.random() < 0.5]
    extra = f" -G {','.join(member)}" if member else ""
    lines.append(f"useradd -m -s {shell}{extra} {person}")
  group, shell = rng.choice(groups), rng.choice(("/bin/bash", "/bin/sh"))
  first, last = rng.choice("abcdefghijkl"), rng.choice("mnopqrstuvwxyz")
  ask, example, slip = rng.choice(
    (
      (
        f"How many users of this system have the login shell {shell} and a "
        f"name that begins with a letter from {first} to {last}?",
        f"grep ':{shell}$' /etc/passwd | grep '^[{first}-{last}]' | wc -l",
        "grep -c /bin/ /etc/passwd",
      ),
      (
        f"How many users belong to the group {group}?",
        f"getent group {group} | cut -d: -f4 | tr ',' '\\n' | grep . | wc -l",
        "ls /home | wc -l",
      ),
      (
        f"How many users with a home below /home do not belong to the group "
        f"{group}?",
        f"for u in $(ls /home); do id -nG $u | grep -qw {group} || echo $u; "
        "done | wc -l",
        f"getent group {group} | wc -w",
      ),
    )[: 1 + level]
  )
  return Draft(
    description=f"{ask} {say_number_only(rng)}",
    init="\n".join(lines),
    example=example,
    slip=slip,
    compare=COMPARE_INTEGERS,
  )


def count_words(rng: random.Random, level: int) -> Draft:
  """Words of a text: how often, how many, which most often."""
  path = f"{draw_root(rng)}/{rng.choice(PEOPLE)}.txt"
  words = rng.sample(PRODUCTS, 4 + level)
  weights = rng.sample(range(1, 12), len(words))
  text = rng.choices(words, weights, k=40 * level)
  lines = [" ".join(text[i : i + 8]) for i in range(0, len(text), 8)]
  word = rng.choice(words)
  ask, example, slip = rng.choice(
    (
      (
        f'How often does the word "{word}" occur?',
        f"grep -ow {word} {path} | wc -l",
        f"wc -l < {path}",
      ),
      (
        f'How many lines do not hold the word "{word}"?',
        f"grep -vw {word} {path} | wc -l",
        f"grep -ow {word} {path} | wc -l",
      ),
      (
        "How many different words are there?",
        f"tr ' ' '\\n' < {path} | sort -u | wc -l",
        f"wc -w < {path}",
      ),
    )[:level]
  )
  return Draft(
    description=f"The file {path} holds words separated by spaces. {ask} "
    f"{say_number_only(rng)}",
    init=write_files({path: "\n".join(lines) + "\n"}),
    example=example,
    slip=slip,
    compare=COMPARE_INTEGERS,
  )


def count_processes(rng: random.Random, level: int) -> Draft:
  """How many processes of a program are running."""
  name = f"{rng.choice(PRODUCTS)}{rng.randint(2, 99)}d"
  count, others = rng.randint(2, 3 + 4 * level), rng.randint(1, 2)
  other = f"{rng.choice(PRODUCTS)}ctl"
  start = (
    "for i in $(seq {count}); do setsid /usr/local/bin/{name} 3600 "
    "</dev/null >/dev/null 2>&1 & done"
  )
  return Draft(
    description=rng.choice(
      (
        f"How many processes of the program {name} are running?",
        f"Count the running processes of {name}.",
        f"The program {name} was started several times. How many of its "
        "processes are there now?",
      )
    )
    + f" {say_number_only(rng)}",
    init="\n".join(
      [
        f"cp /bin/sleep /usr/local/bin/{name}",
        f"cp /bin/sleep /usr/local/bin/{other}",
        start.format(count=count, name=name),
        start.format(count=others, name=other),
        f"until [ $(pgrep -xc {name}) = {count} ]; do sleep 0.01; done",
      ]
    ),
    example=f"pgrep -xc {name}",
    slip=f"ps aux | grep -c {name}",
    compare=COMPARE_INTEGERS,
  )


def look_into_archive(rng: random.Random, level: int) -> Draft:
  """How many files in an archive are of some kind."""
  root = draw_root(rng)
  extensions = rng.sample(EXTENSIONS, 3)
  names = draw_names(rng, 6 * level + 3, extensions=extensions)
  folders = draw_tree(rng, "box", level)
  files = {path: "x" for path in spread(rng, folders, names)}
  archive = f"{root}.{rng.choice(('tar.gz', 'tar', 'zip'))}"
  pack = "zip -qr" if archive.endswith("zip") else "tar -caf"
  unpack = "unzip -Z1" if archive.endswith("zip") else "tar -taf"
  extension = extensions[0]
  return Draft(
    description=rng.choice(
      (
        f"How many files ending in .{extension} are in the archive {archive}?",
        f"Without its directories, {archive} holds files of several kinds. How "
        f"many of them end in .{extension}?",
      )
    )
    + f" {say_number_only(rng)}",
    init="\n".join(
      [
        f"mkdir -p {root.rpartition('/')[0]}",
        "cd $(mktemp -d)",
        write_files(files),
        f"{pack} {archive} box",
      ]
    ),
    example=f"{unpack} {archive} | grep '\\.{extension}$' | wc -l",
    slip=f"{unpack} {archive} | wc -l",
    compare=COMPARE_INTEGERS,
  )
