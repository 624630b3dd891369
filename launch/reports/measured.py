"""Tables of pages from measurements that commands have kept.

A command writes a CSV with a line for each observation (an arm of one seed, a
cell of a simulation, a row of a benchmark) and where it comes from: its
command, commit and date. A page says what of it a table shows:

  <!-- measured: evidence/pipeline.csv across sigma where seed=0
  speed-up, one version = {speed_up:.2f} where arm=max_staleness 1
  two versions = {speed_up:.2f} where arm=max_staleness 2; train_s=1.6
  -->
  <!-- end -->

A line is a row here, with a cell for each value of `sigma`. With `by estimator`
in place of `across sigma` a line is a column, and each estimator a row; `by`
takes several fields, with commas between them. Conditions have semicolons
between them. A cell is a format string over its observations: `{x:.2f}` is the
mean, `{x.half:.2f}` half of the 95 % interval of the mean (Student's t),
`{x.min:.2f}` and `{x.max:.2f}` the extremes; `{x}` is a text. A cell without
observations is empty, and so is a part of it in brackets; one of NaN is a dash.

Observations that were copied from an older page say so (`source`), and so does
the line below their table.
"""

import contextlib
import csv
import datetime
import io
import math
import pathlib
import re
import shlex
import string
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from scipy import stats

from agentrl_jax.errors import ConfigError, NotWritten
from agentrl_jax.files import reading, write_whole
from launch.reports import facts

Observation = Mapping[str, object]
TRANSCRIBED = "transcribed"
_LINE = re.compile(r"(?P<title>.+?) = (?P<format>.+?)(?: where (?P<where>.+))?")
_HEAD = re.compile(
  r"(?P<way>by|across) (?P<fields>.+?)(?: where (?P<where>.+))?"
)


def read(path: pathlib.Path) -> list[dict[str, str]]:
  """Returns the observations of a file; what a short row lacks is empty."""
  with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
    return list(csv.DictReader(file, restval=""))


def output(text: str) -> pathlib.Path:
  """Reads an `--output`; raises `NotWritten` if nothing can be added to it.

  So it is known before the work, and not after it.
  """
  path = pathlib.Path(text)
  if not path.parent.is_dir():
    raise NotWritten(
      f"--output={path}: {path.parent} is no folder; make it, or name a file "
      "in another one"
    )
  try:
    if path.exists():
      read(path)
  except ConfigError as error:  # in which argparse would show no sentence
    raise NotWritten(f"--output={path}: {error}") from error
  return path


def keep(
  path: pathlib.Path,
  observations: Iterable[Observation],
  *,
  command: str | None = None,
) -> None:
  """Adds a command's observations to a file, in place of its earlier ones.

  Args:
    path: a CSV, which need not be there.
    observations: values by name; numbers are kept to six digits.
    command: that made them; the running one by default.
  """
  command = command or running_command()
  head, _, changed = facts.commit(facts.ROOT).partition(" ")
  about = {
    "command": command,
    "commit": f"{head[:8]} {changed}".rstrip(),
    "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
  }
  before = read(path) if path.exists() else []
  rows: list[Observation] = [
    *(row for row in before if row.get("command") != command),
    *({**each, **about} for each in observations),
  ]
  names = dict.fromkeys(name for row in rows for name in row)
  file = io.StringIO()
  writer = csv.DictWriter(file, list(names), lineterminator="\n")
  writer.writeheader()
  writer.writerows({n: _text(x) for n, x in row.items()} for row in rows)
  write_whole(path, file.getvalue())


def running_command() -> str:
  """Returns the running command without its `--output`."""
  module = sys.modules["__main__"].__spec__
  name = module.name.removesuffix(".__main__") if module else sys.argv[0]
  flags = [flag for flag in sys.argv[1:] if not flag.startswith("--output=")]
  return shlex.join(["python", "-m", name, *flags])


def _text(value: object) -> str:
  return f"{value:.6g}" if isinstance(value, float) else str(value)


def table(observations: Sequence[Observation], words: str) -> str:
  """Returns a table, as the words of its block ask for.

  Raises `ConfigError` for words that are none, for a field that no observation
  has, and for conditions that none meets.
  """
  head, *lines = words.strip().splitlines() or [""]
  parsed = _HEAD.fullmatch(head)
  if not parsed or not lines:
    raise ConfigError(
      "a block of measurements says `by FIELD` or `across FIELD`, and then a "
      f"line `title = format` for each column or row; this one says {words!r}"
    )
  fields = parsed["fields"].split(", ")
  found = _where(observations, parsed["where"])
  keys = list(dict.fromkeys(_key(each, fields) for each in found))
  specs = [_spec(line) for line in lines]
  cells = [
    [_cell(group, form) for group in _groups(found, where, fields, keys)]
    for _, form, where in specs
  ]
  titles = [title for title, _, _ in specs]
  if parsed["way"] == "across":
    top = [*fields, *(" ".join(key) for key in keys)]
    body = [[title, *row] for title, row in zip(titles, cells, strict=True)]
  else:
    columns = zip(*cells, strict=True)
    top = [*fields, *titles]
    body = [[*key, *row] for key, row in zip(keys, columns, strict=True)]
  rows = [top, ["---"] * len(top), *body]
  written = ["| " + " | ".join(row) + " |" for row in rows]
  written[1] = written[1].replace(" ", "")
  return "\n".join(written) + "\n"


def with_origin(observations: Sequence[Observation], words: str) -> str:
  """Returns a table and the line below it that says where it comes from."""
  made = table(observations, words)
  head = _HEAD.fullmatch(words.strip().partition("\n")[0])
  found = _where(observations, head and head["where"])
  return f"{made}\n{origin(found)}\n"


def origin(observations: Sequence[Observation]) -> str:
  """Returns the commits and dates of observations, and if they were copied."""

  def texts(name: str) -> str:
    values = {str(each.get(name, "")) for each in observations} - {""}
    return ", ".join(sorted(values))

  text = f"Commit {texts('commit')}; {texts('date')}"
  text += f"; {texts('machine')}" if texts("machine") else ""
  copied = sum(each.get("source") == TRANSCRIBED for each in observations)
  if copied:
    all_of = len(observations)
    some = "" if copied == all_of else f"{copied} of {all_of} "
    text += f"; {some}copied from an older page"
  return f"*{text}.*"


def _spec(line: str) -> tuple[str, str, str | None]:
  parsed = _LINE.fullmatch(line)
  if not parsed:
    raise ConfigError(
      f"a line is `title = format where field=value`, and this is {line!r}"
    )
  return parsed["title"], parsed["format"], parsed["where"]


def _where(
  observations: Sequence[Observation], words: str | None
) -> Sequence[Observation]:
  for condition in words.split("; ") if words else []:
    name, _, value = condition.partition("=")
    observations = [o for o in observations if str(o.get(name)) == value]
    if not observations:
      raise ConfigError(f"no observation has {condition!r} of {words!r}")
  return observations


def _key(observation: Observation, fields: Sequence[str]) -> tuple[str, ...]:
  try:
    return tuple(_text(observation[field]) for field in fields)
  except KeyError as error:
    raise ConfigError(
      f"no field {error}; there are {', '.join(observation)}"
    ) from error


def _groups(
  observations: Sequence[Observation],
  where: str | None,
  fields: Sequence[str],
  keys: Iterable[tuple[str, ...]],
) -> Iterable[list[Observation]]:
  groups: dict[tuple[str, ...], list[Observation]] = {key: [] for key in keys}
  for each in _where(observations, where):
    groups[_key(each, fields)].append(each)
  return groups.values()


def _cell(observations: Sequence[Observation], form: str) -> str:
  with _formatting(form):
    names = [name for _, name, _, _ in string.Formatter().parse(form) if name]
    values = {}
    for name in {name.partition(".")[0] for name in names}:
      if any(name not in each for each in observations):
        raise ConfigError(f"{form!r} names {name!r}, which observations lack")
      values[name] = _Values([_text(each[name]) for each in observations])
    text = "".join(_filled(part, values) for part in re.split(r"[\[\]]", form))
  if re.search(r"\bnan\b", text):
    return "–"
  return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


@contextlib.contextmanager
def _formatting(form: str) -> Iterator[None]:
  """Turns the errors of a cell's format into a `ConfigError` that names it."""
  try:
    yield
  except ConfigError:
    raise
  except (ValueError, LookupError, AttributeError, TypeError) as error:
    raise ConfigError(
      f"the format {form!r} cannot be filled in ({error}): write {{x}} for a "
      "text x, and for numbers {x:.2f}, {x.half:.2f}, {x.min:.2f} or "
      "{x.max:.2f}"
    ) from error


def _filled(form: str, values: Mapping[str, "_Values"]) -> str:
  names = [name for _, name, _, _ in string.Formatter().parse(form) if name]
  has_all = all(values[name.partition(".")[0]] for name in names)
  return form.format_map(values) if has_all else ""


class _Values(list[str]):
  """A field of a cell's observations, of which empty ones are left out."""

  def __init__(self, texts: Iterable[str]) -> None:
    super().__init__(text for text in texts if text)

  def __format__(self, spec: str) -> str:
    if spec:
      return format(float(np.mean(self._numbers)), spec)
    if len(set(self)) > 1:
      raise ConfigError(f"a text is one, and a cell has {sorted(set(self))}")
    return self[0]

  @property
  def _numbers(self) -> list[float]:
    return [float(text) for text in self]

  @property
  def min(self) -> float:
    """The least number."""
    return min(self._numbers)

  @property
  def max(self) -> float:
    """The greatest number."""
    return max(self._numbers)

  @property
  def half(self) -> float:
    """Half of the 95 % interval of the mean, by Student's t."""
    n = len(self)
    if n < 2:
      return math.nan
    spread = float(np.std(self._numbers, ddof=1)) / math.sqrt(n)
    return float(stats.t.ppf(0.975, n - 1)) * spread
