"""Generated questions about files, logs, tables, users and processes.

Each function draws one question of a level from 1 (easy) to 3, with a script
that finds the answer and a `slip`, a script that nearly does. The order of the
random draws decides which tasks an index stands for.
"""

import random
import shlex

from environments.os_interaction.tasks import words
from environments.os_interaction.tasks.draft import (
  COMPARE_INTEGERS,
  COMPARE_TEXTS,
  FILLER,
  Draft,
  draw_below,
  draw_names,
  draw_root,
  draw_tree,
  spread,
  start_programs,
  write_files,
)


def count_files(rng: random.Random, level: int) -> Draft:
  """Counts files of a kind."""
  root = draw_root(rng)
  folders = draw_tree(rng, root, level)
  extensions = rng.sample(words.EXTENSIONS, 3)
  names = draw_names(rng, 6 * level + 4, extensions=extensions, hidden=0.25)
  sizes = [rng.choice((0, 10, 200, 700, 1000)) for _ in names]
  files = {
    path: FILLER[:size]
    for path, size in zip(spread(rng, folders, names), sizes, strict=True)
  }
  extension, limit = extensions[0], 10 * rng.randint(2, 90)
  kind, test = rng.choice(
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
  below = draw_below(rng, root)
  question = rng.choice(
    (
      f"How many {kind} are there {below}?",
      f"Count the {kind} {below}.",
      f"Find out how many {kind} there are {below}.",
    )
  )
  return _number_question(
    rng,
    question,
    init=write_files(files),
    example=f"find {root} -type f {test} | wc -l",
    slip=f"find {root} | wc -l",
  )


def query_log(rng: random.Random, level: int) -> Draft:
  """Counts lines, users or days of a log."""
  path = f"/var/log/{rng.choice(words.FOLDERS)}.log"
  people = rng.sample(words.PEOPLE, 3 + level)
  lines = [
    f"2024-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} "
    f"[{rng.choice(words.LEVELS)}] user={rng.choice(people)} "
    f"{rng.choice(words.EVENTS)}"
    for _ in range(20 * level)
  ]
  log_level, person = rng.choice(words.LEVELS), rng.choice(people)
  event = rng.choice(words.EVENTS)
  question, example, slip = rng.choice(
    (
      (
        f"How many lines have the level {log_level}?",
        f"grep '\\[{log_level}\\]' {path} | wc -l",
        f"grep -c {person} {path}",
      ),
      (
        f"How many {log_level} lines are about the user {person}?",
        f"grep '\\[{log_level}\\]' {path} | grep 'user={person} ' | wc -l",
        f"grep -c 'user={person} ' {path}",
      ),
      (
        f'How many different users have a line that says "{event}"?',
        f"grep '{event}' {path} | grep -o 'user=[a-z]*' | sort -u | wc -l",
        f"grep -c '{event}' {path}",
      ),
      (
        f"On how many different days is there a {log_level} line?",
        f"grep '\\[{log_level}\\]' {path} | cut -d' ' -f1 | sort -u | wc -l",
        f"grep '\\[{log_level}\\]' {path} | wc -l",
      ),
    )[: 1 + level]
  )
  return _number_question(
    rng,
    f"The log {path} has lines such as "
    f'"2024-01-31 [INFO] user={people[0]} {words.EVENTS[0]}". {question}',
    init=write_files({path: "\n".join(lines) + "\n"}),
    example=example,
    slip=slip,
  )


def sum_column(rng: random.Random, level: int) -> Draft:
  """Adds up or counts rows of a table of sales."""
  path = f"{draw_root(rng)}.csv"
  cities = rng.sample(words.CITIES, 2 + level)
  goods = rng.sample(words.PRODUCTS, 2 + level)
  rows = [
    f"{rng.choice(cities)},{rng.choice(goods)},{rng.randint(1, 40)},"
    f"{rng.randint(2, 90)}"
    for _ in range(12 * level)
  ]
  city, thing = rng.choice(cities), rng.choice(goods)
  question, program = rng.choice(
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
  return _number_question(
    rng,
    f"The file {path} has a line per sale: city, product, amount, "
    f"price, separated by commas. {question}",
    init=write_files({path: "city,product,amount,price\n" + "\n".join(rows)}),
    example=f"awk -F, '{program}END{{print s+0}}' {path}",
    slip=f"awk -F, '{{s+=$3}}END{{print s+1}}' {path}",
  )


def count_users(rng: random.Random, level: int) -> Draft:
  """Counts users by group or login shell."""
  people = rng.sample(words.PEOPLE, 3 + 2 * level)
  groups = [
    f"{g}{rng.randint(2, 60)}" for g in rng.sample(words.GROUPS, 1 + level)
  ]
  shells = [rng.choice(("/bin/bash", "/bin/sh")) for _ in people]
  lines = [f"groupadd {group}" for group in groups]
  for person, shell in zip(people, shells, strict=True):
    member = [group for group in groups if rng.random() < 0.5]
    extra = f" -G {','.join(member)}" if member else ""
    lines.append(f"useradd -m -s {shell}{extra} {person}")
  group, shell = rng.choice(groups), rng.choice(("/bin/bash", "/bin/sh"))
  first, last = rng.choice("abcdefghijkl"), rng.choice("mnopqrstuvwxyz")
  question, example, slip = rng.choice(
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
  return _number_question(
    rng, question, init="\n".join(lines), example=example, slip=slip
  )


def count_words(rng: random.Random, level: int) -> Draft:
  """Counts words or lines of a text."""
  path = f"{draw_root(rng)}/{rng.choice(words.PEOPLE)}.txt"
  choices = rng.sample(words.PRODUCTS, 4 + level)
  weights = rng.sample(range(1, 12), len(choices))
  text = rng.choices(choices, weights, k=40 * level)
  lines = [" ".join(text[i : i + 8]) for i in range(0, len(text), 8)]
  word = rng.choice(choices)
  question, example, slip = rng.choice(
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
  return _number_question(
    rng,
    f"The file {path} holds words separated by spaces. {question}",
    init=write_files({path: "\n".join(lines) + "\n"}),
    example=example,
    slip=slip,
  )


def count_processes(rng: random.Random, level: int) -> Draft:
  """Counts the running processes of a program."""
  name = f"{rng.choice(words.PRODUCTS)}{rng.randint(2, 99)}d"
  count, others = rng.randint(2, 3 + 4 * level), rng.randint(1, 2)
  other = f"{rng.choice(words.PRODUCTS)}ctl"
  question = rng.choice(
    (
      f"How many processes of the program {name} are running?",
      f"Count the running processes of {name}.",
      f"The program {name} was started several times. How many of its "
      "processes are there now?",
    )
  )
  return _number_question(
    rng,
    question,
    init=f"{start_programs({name: count, other: others})}\n"
    f"until [ $(pgrep -xc {name}) = {count} ]; do sleep 0.01; done",
    example=f"pgrep -xc {name}",
    slip=f"ps aux | grep -c {name}",
  )


def look_into_archive(rng: random.Random, level: int) -> Draft:
  """Counts files of a kind in an archive."""
  root = draw_root(rng)
  extensions = rng.sample(words.EXTENSIONS, 3)
  names = draw_names(rng, 6 * level + 3, extensions=extensions)
  folders = draw_tree(rng, "box", level)
  files = {path: "x" for path in spread(rng, folders, names)}
  archive = f"{root}.{rng.choice(('tar.gz', 'tar', 'zip'))}"
  pack = "zip -qr" if archive.endswith("zip") else "tar -caf"
  unpack = "unzip -Z1" if archive.endswith("zip") else "tar -taf"
  extension = extensions[0]
  question = rng.choice(
    (
      f"How many files ending in .{extension} are in the archive {archive}?",
      f"Without its directories, {archive} holds files of several kinds. How "
      f"many of them end in .{extension}?",
    )
  )
  return _number_question(
    rng,
    question,
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
  )


def find_largest(rng: random.Random, level: int) -> Draft:
  """Finds the largest, smallest or second file by size."""
  root = draw_root(rng)
  extensions = rng.sample(words.EXTENSIONS, 3)
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
  file, below = f"{rank}{word} {kind}, in bytes,", draw_below(rng, root)
  question = rng.choice(
    (
      f"What is the name of the {file} {below}?",
      f"Find the {file} {below}. What is it called?",
    )
  )
  return _name_question(
    rng,
    question,
    init=write_files(files),
    example=example.format(order),
    slip=example.format(other),
  )


def read_setting(rng: random.Random, level: int) -> Draft:
  """Finds the last of several settings of a key."""
  person, thing, key = (
    rng.choice(w) for w in (words.PEOPLE, words.PRODUCTS, words.KEYS)
  )
  path = (
    f"/etc/{thing}{rng.choice(('', '-', '/'))}{rng.choice(words.KEYS)}.conf"
  )
  values = rng.sample(range(10, 9999), 2 + level)
  lines = [f"# settings of {thing}"]
  for value in values:
    lines += [f"{key}={value}", f"owner={rng.choice(words.PEOPLE)}"]
    lines.append(f"#{key}={rng.randint(10, 9999)}")
  question = rng.choice(
    (
      f"What is the value of the key {key} for it?",
      f"Which value does it take for {key}?",
      f"To what is {key} set when it has read all of the file?",
    )
  )
  return _number_question(
    rng,
    f"The program {thing} reads {path} from top to bottom; lines "
    "that begin with # are ignored, and of several lines that set the same key "
    f"the last one counts. {question}",
    init=f"useradd {person}\n{write_files({path: chr(10).join(lines)})}",
    example=f"grep '^{key}=' {path} | tail -n 1 | cut -d= -f2",
    slip=f"grep {key}= {path} | tail -n 1 | cut -d= -f2",
  )


def find_text(rng: random.Random, level: int) -> Draft:
  """Finds the file that holds a text."""
  root = draw_root(rng)
  names = draw_names(rng, 4 + 4 * level)
  paths = spread(rng, draw_tree(rng, root, level), names)
  codes = [f"{rng.randrange(16**8):08x}" for _ in paths]
  code = rng.choice(codes)
  files = {
    path: f"code: {its}\n" for path, its in zip(paths, codes, strict=True)
  }
  return _name_question(
    rng,
    f"There is a file {draw_below(rng, root)} that holds the text "
    f"{shlex.quote(code)}. What is its name?",
    init=write_files(files),
    example=f"basename $(grep -rl {code} {root})",
    slip=f"ls {root} | tail -n 1",
  )


def _number_question(
  rng: random.Random, question: str, *, init: str, example: str, slip: str
) -> Draft:
  """Completes a question with a drawn request for the bare number."""
  request = rng.choice(
    (
      "Answer with the number only.",
      "Give nothing but the number as your answer.",
      "The answer is a single number, without any words.",
      "Reply with the bare number.",
    )
  )
  return Draft(f"{question} {request}", init, example, slip, COMPARE_INTEGERS)


def _name_question(
  rng: random.Random, question: str, *, init: str, example: str, slip: str
) -> Draft:
  """Completes a question with a drawn request for a bare file name."""
  request = rng.choice(
    (
      "Answer with the name only, without its directory.",
      "Give the bare file name as your answer, no path.",
      "The answer is the file's name, not the path that leads to it.",
    )
  )
  return Draft(f"{question} {request}", init, example, slip, COMPARE_TEXTS)
