r"""Mutations of the source: which of them the nearest tests notice.

  python -m bench.mutations --draw=60 --seed=0 > /tmp/mutations.json
  python -m bench.mutations /tmp/mutations.json

The first command draws mutations, evenly over the rooms of the source; the
second makes each in a tree of its own, and runs the quick tests of its file:
those of the test file of the same name, then of two that import it most.
A mutation is kept as the expression and its function, so that a list drawn from
one commit serves another one, in which files moved.
"""

import argparse
import ast
import dataclasses
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = ("agentrl_jax/*", "environments/*", "launch/*")
ALSO = ("studies/*",)  # to where code of a room may have moved
TIMEOUT_S = 600  # of the tests of one file
_OTHER = {
  ast.Lt: ast.LtE,
  ast.LtE: ast.Lt,
  ast.Gt: ast.GtE,
  ast.GtE: ast.Gt,
  ast.Eq: ast.NotEq,
  ast.NotEq: ast.Eq,
  ast.Add: ast.Sub,
  ast.Sub: ast.Add,
  ast.Mult: ast.Add,
  ast.And: ast.Or,
  ast.Or: ast.And,
}


@dataclasses.dataclass(frozen=True)
class Mutation:
  """An expression of a function, as `ast.unparse` writes it, and another."""

  path: str
  function: str
  before: str
  after: str


def mutated(node: ast.AST) -> ast.AST | None:
  """Returns an expression with one operator or number changed, or None."""
  match node:
    case ast.Compare(ops=[op]) if type(op) in _OTHER:
      return ast.Compare(node.left, [_OTHER[type(op)]()], node.comparators)
    case ast.BinOp() if type(node.op) in _OTHER:
      return ast.BinOp(node.left, _OTHER[type(node.op)](), node.right)
    case ast.BoolOp():
      return ast.BoolOp(_OTHER[type(node.op)](), node.values)
    case ast.UnaryOp(op=ast.Not()):
      return node.operand
    case ast.Constant(value=int(value)) if not isinstance(value, bool):
      return ast.Constant(value + 1)
  return None


def expressions(path: pathlib.Path) -> Iterator[tuple[str, ast.expr]]:
  """Yields the function's name and each expression of a file's functions."""
  for function in ast.walk(ast.parse(path.read_text())):
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
      for statement in function.body:
        for node in ast.walk(statement):
          if isinstance(node, ast.expr):
            yield function.name, node


def draw(number: int, seed: int) -> list[Mutation]:
  """Draws mutations, as many from each room as from any other."""
  rng = random.Random(seed)
  rooms = sorted(p for room in ROOMS for p in ROOT.glob(room) if p.is_dir())
  found: dict[pathlib.Path, list[Mutation]] = {
    room: [
      Mutation(
        str(path.relative_to(ROOT)), name, ast.unparse(node), ast.unparse(other)
      )
      for path in sorted(room.rglob("*.py"))
      for name, node in expressions(path)
      if (other := mutated(node)) is not None
    ]
    for room in rooms
  }
  full = [room for room in rooms if found[room]]
  return [rng.choice(found[full[n % len(full)]]) for n in range(number) if full]


def _num_equal_ends(path: str, other: str) -> int:
  """Counts the equal letters at the ends of two paths."""
  return len(os.path.commonprefix([path[::-1], other[::-1]]))


def locate(mutation: Mutation, top: pathlib.Path) -> tuple[str, str] | None:
  """Returns the path of a mutation in a tree, and the file's mutated text."""
  paths = sorted(
    (p for room in ROOMS + ALSO for p in top.glob(f"{room}/**/*.py")),
    key=lambda p: -_num_equal_ends(str(p.relative_to(top)), mutation.path),
  )
  for path in paths:
    text = path.read_text()
    if f"def {mutation.function}(" not in text:
      continue
    for name, node in expressions(path):
      if (name, ast.unparse(node)) == (mutation.function, mutation.before):
        segment = ast.get_source_segment(text, node)
        lines = text.splitlines(keepends=True)
        start = sum(map(len, lines[: node.lineno - 1]))
        start += len(
          lines[node.lineno - 1].encode()[: node.col_offset].decode()
        )
        assert segment is not None
        rest = text[start + len(segment) :]
        changed = f"{text[:start]}({mutation.after}){rest}"
        return str(path.relative_to(top)), changed
  return None


def nearest_tests(path: str, top: pathlib.Path) -> list[str]:
  """Returns the test file of a module, then the two that name it most."""
  module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
  name = re.compile(rf"\b{re.escape(module)}\b")
  package, _, last = module.rpartition(".")
  imported = re.compile(
    rf"from {re.escape(package)} import [^\n]*\b{re.escape(last)}\b"
  )
  counts = {}
  for test in sorted((top / "tests").rglob("*_test.py")):
    text = test.read_text()
    number = len(name.findall(text)) + len(imported.findall(text))
    if number:
      counts[str(test.relative_to(top))] = number
  inner = path.removeprefix("agentrl_jax/").removesuffix(".py")
  mirror = f"tests/{inner}_test.py"
  others = sorted(counts, key=lambda test: -counts[test])
  mirrors = [mirror] if (top / mirror).exists() else []
  return mirrors + [test for test in others if test != mirror][:2]


def is_noticed(path: str, top: pathlib.Path) -> bool:
  """Runs the nearest tests of a file; True if one of them fails or hangs."""
  environment = os.environ | {"PYTHONPATH": str(top), "JAX_PLATFORMS": "cpu"}
  for test in nearest_tests(path, top):
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", test]
    try:
      done = subprocess.run(
        command,
        cwd=top,
        env=environment,
        capture_output=True,
        timeout=TIMEOUT_S,
      )
    except subprocess.TimeoutExpired:
      return True
    if done.returncode not in (0, 5):  # 5: no test of the file is quick
      return True
  return False


def run(mutations: Sequence[Mutation], top: pathlib.Path) -> None:
  """Prints of each mutation whether it was killed, and the counts."""
  counts = dict.fromkeys(("killed", "survived", "gone"), 0)
  for mutation in mutations:
    place = locate(mutation, top)
    fate = "gone"
    if place is not None:
      file = top / place[0]
      text = file.read_text()
      file.write_text(place[1])
      try:
        fate = "killed" if is_noticed(place[0], top) else "survived"
      finally:
        file.write_text(text)
    counts[fate] += 1
    where = mutation.path if place is None else place[0]
    change = f"{mutation.before} -> {mutation.after}"
    line = f"{fate:8} {where} {mutation.function}: {change}"
    sys.stdout.write(line.replace("\n", " ")[:200] + "\n")
    sys.stdout.flush()
  sys.stdout.write(f"{counts}\n")


def main() -> None:
  """Draws mutations, or runs those of a file."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("file", nargs="?", type=pathlib.Path)
  parser.add_argument("--draw", type=int, metavar="NUMBER")
  parser.add_argument("--seed", type=int, default=0)
  given = parser.parse_args()
  if given.draw is not None:
    drawn = [dataclasses.asdict(m) for m in draw(given.draw, given.seed)]
    json.dump(drawn, sys.stdout, indent=1)
    return
  if given.file is None:
    parser.error("name a file of mutations, or --draw=NUMBER")
  mutations = [Mutation(**each) for each in json.loads(given.file.read_text())]
  with tempfile.TemporaryDirectory() as folder:
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "-q", "--detach", folder], check=True)
    try:
      run(mutations, pathlib.Path(folder))
    finally:
      subprocess.run([*git, "remove", "--force", folder], check=True)


if __name__ == "__main__":
  main()
