"""Generates tasks in Harbor's format, as a pure function of (split, index).

The tasks are small: a file, git, and a function whose unit test fails. A
one-line script solves each. Their tests run what the policy wrote as nobody,
who can read no test and write no reward.
"""

import dataclasses
import random
import shlex
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.data.split import split_of
from environments.os_interaction.machines.files import FILE, File, Tree
from environments.os_interaction.tasks import words

APP = "/app"
MAX_DRAWS = 1000  # for a task of a split
_TEST = """#!/bin/bash
# Writes 1 to /logs/verifier/reward.txt if the task is done, else 0.
chmod 700 /tests /logs/verifier

as_nobody() {{
  timeout 10 setpriv --reuid=65534 --regid=65534 --clear-groups \\
    env -i PATH="$PATH" "$@" 2>/dev/null
}}

holds() {{ [ -f "$1" ] && [ ! -L "$1" ] && [ "$(cat "$1")" = "$2" ]; }}

gives() {{ # EXPECTED COMMAND...
  local expected=$1 output
  shift
  output=$(as_nobody "$@") && [ "$output" = "$expected" ]
}}

in_git() {{ # EXPECTED ARGUMENTS...
  local expected=$1
  shift
  gives "$expected" env GIT_NO_REPLACE_OBJECTS=1 git -C {app} \\
    -c safe.directory={app} -c log.showSignature=false "$@"
}}

if {checks}; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
_CONFIG = """schema_version = "1.4"

[metadata]
kind = "{kind}"

[environment]
network_mode = "no-network"
"""
_DOCKERFILE = """FROM agentrl_jax/os_interaction
WORKDIR {app}
COPY files/ {app}/
{run}"""
_REPOSITORY = (
  "RUN git init -q -b main && git config user.name tester "
  "&& git config user.email tester@example.com "
  "&& git add . && git commit -q -m start\n"
)


@dataclasses.dataclass(frozen=True)
class TaskDraft:
  """A task: the files of /app, the work in one line, and tests in bash."""

  instruction: str
  files: Mapping[str, str]
  solution: str
  checks: Sequence[str]  # all must hold; words of `_TEST` may be used
  run: str = ""  # further instructions of the Dockerfile


def write(rng: random.Random) -> TaskDraft:
  """Writes a line to a new file."""
  path = f"{APP}/{_name(rng)}"
  text = " ".join(rng.sample((*words.PRODUCTS, *words.CITIES), 2))
  return TaskDraft(
    f"Write the line '{text}' to the new file {path}.",
    {"readme.txt": "Nothing is here yet.\n"},
    f"echo '{text}' > {path}",
    [f"holds {path} '{text}'"],
  )


def commit(rng: random.Random) -> TaskDraft:
  """Commits a changed file."""
  name = _name(rng)
  message = f"add {rng.choice(words.PRODUCTS)}"
  line = f"{rng.choice(words.CITIES)} {rng.randint(1, 99)}"
  text = shlex.quote(f"first\n{line}")
  return TaskDraft(
    f"{APP} is a git repository. Add the line '{line}' at the end of "
    f"{APP}/{name}, and commit the file with the message '{message}'.",
    {name: "first\n"},
    f"cd {APP} && echo '{line}' >> {name} && git commit -q -a -m '{message}'",
    [
      "in_git 2 rev-list --count HEAD",
      f"in_git '{message}' log -1 --format=%s HEAD",
      f"in_git {text} cat-file blob HEAD:{name}",
    ],
    _REPOSITORY,
  )


def fix(rng: random.Random) -> TaskDraft:
  """Repairs a function whose unit test fails."""
  module = rng.choice(words.STEMS)
  name, right, wrong = rng.choice(_FUNCTIONS)
  cases = [sorted(rng.sample(range(2, 99), 2)) for _ in range(4)]
  values = [eval(right, dict(zip("ab", case, strict=True))) for case in cases]
  source = f"def {name}(a, b):\n  return {{}}\n"
  call = (
    f'import sys; sys.path.insert(0, "{APP}"); from {module} import {name}; '
    f"print(*[{name}(*case) for case in {cases[1:]}])"
  )
  test = (
    f"import unittest\n\nfrom {module} import {name}\n\n\n"
    f"class Test(unittest.TestCase):\n  def test_{name}(self):\n"
    f"    self.assertEqual({name}{tuple(cases[0])}, {values[0]})\n"
  )
  expected = " ".join(map(str, values[1:]))
  typed = source.format(right).replace("\n", "\\n")
  return TaskDraft(
    f"The unit test {APP}/test_{module}.py fails: the function {name}(a, b) in "
    f"{APP}/{module}.py must return {right}. Repair {module}.py.",
    {f"{module}.py": source.format(wrong), f"test_{module}.py": test},
    f"printf '{typed}' > {APP}/{module}.py",
    [f"gives {shlex.quote(expected)} python3 -I -c {shlex.quote(call)}"],
  )


# Name, right and wrong expressions.
_FUNCTIONS = (
  ("area", "a * b", "a + b"),
  ("gap", "b - a", "a - b"),
  ("larger", "max(a, b)", "min(a, b)"),
  ("smaller", "min(a, b)", "max(a, b)"),
  ("double", "2 * a + b", "a + b"),
  ("mirror", "(b, a)", "(a, b)"),
)

KINDS: Mapping[str, Callable[[random.Random], TaskDraft]] = {
  "write": write,
  "commit": commit,
  "fix": fix,
}


def generate_files(
  split: str, index: int, kinds: Sequence[str] | None = None
) -> Tree:
  """Returns the files of a task, of the kinds in turn."""
  kinds = tuple(KINDS) if kinds is None else kinds
  rng = random.Random(f"harbor/{split}/{index}")
  kind = kinds[index % len(kinds)]
  for _ in range(MAX_DRAWS):  # each split has half of all instructions
    draft = KINDS[kind](rng)
    if split_of(draft.instruction) == split:
      return _files(kind, draft)
  raise AssertionError(f"there is no task of kind {kind!r} in split {split!r}")


def _files(kind: str, draft: TaskDraft) -> Tree:
  texts = {
    "task.toml": _CONFIG.format(kind=kind),
    "instruction.md": f"{draft.instruction}\n",
    "environment/Dockerfile": _DOCKERFILE.format(app=APP, run=draft.run),
    "tests/test.sh": _TEST.format(app=APP, checks=" && ".join(draft.checks)),
    "solution/solve.sh": f"#!/bin/bash\n{draft.solution}\n",
  }
  texts |= {f"environment/files/{p}": t for p, t in draft.files.items()}
  return {
    path: File(
      FILE, 0o755 if path.endswith(".sh") else 0o644, 0, 0, text.encode()
    )
    for path, text in texts.items()
  }


def _name(rng: random.Random) -> str:
  return f"{rng.choice(words.STEMS)}.{rng.choice(('txt', 'md', 'conf'))}"
