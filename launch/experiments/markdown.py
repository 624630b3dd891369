"""Tables of a comparison as Markdown, for pages that are kept.

A page has a block per table, which one command makes again from the numbers
that are kept beside it; a test compares them:

  <!-- finals: evidence/cross_policy.csv rl greedy -->
  <!-- end -->

`finals` are levels and differences after a stage; `rises` are the scores of
each run before and after reinforcement learning, in one mode:

  <!-- rises: evidence/merging.csv greedy -->
  <!-- end -->

`contrasts` are differences between arms of which none need be the first, or
between sums of arms and between stages (`finals.contrasts`), one a line:

  <!-- contrasts: evidence/merging.csv rl greedy
  two specialists: a/dbbench + b/webshop - both
  -->
  <!-- end -->

`diagnostics` are means over the updates of runs, and their cost:

  <!-- diagnostics: evidence/cross_policy_diagnostics.csv -->
  <!-- end -->

`measured` are what commands measured or simulated (`launch.reports.measured`),
and `claims` are those of papers beside what was found (`claims.py`).

What stands between the head of a block and its end is lost when it is made
again. So a page with a head or an end that is of no block is refused.
"""

import math
import pathlib
import re
from collections.abc import Iterable, Sequence

from agentrl_jax.errors import ConfigError
from configs.experiment import plain_side
from launch.comparisons.diagnostics import (
  Values,
  columns,
  read_diagnostics,
  table,
)
from launch.comparisons.finals import MEAN, Change, Finals, contrasts, finals
from launch.comparisons.runs import Arm, read_arms
from launch.comparisons.statistics import PairedDifference
from launch.experiments import claims
from launch.reports import measured, numbers
from launch.reports.summary import Score

_KINDS = ("finals", "rises", "contrasts", "diagnostics", "measured", "claims")
_BLOCK = re.compile(
  rf"(<!-- ({'|'.join(_KINDS)}): "
  r"(\S+)\s((?:(?!<!--|-->).)*?)\s?-->\n)"
  r"(?:(?!<!--).)*(<!-- end -->)",
  re.DOTALL,
)
# Kept by others, as `<!-- turn -->` of a page that a test reads.
_OTHER = re.compile(
  r"<!-- (?!end )\w+ -->(?:(?!<!--).)*(<!-- end -->)", re.DOTALL
)
# A head or an end, be it of a block or not; a misspelt kind names a file.
_PART = re.compile(
  rf"<!--\s*(?:end\s*-->|(?:{'|'.join(_KINDS)})\s*:|\S+:\s+\S+\.csv\b).*"
)


def filled(page: str, folder: pathlib.Path) -> str:
  """Returns the page with all blocks made again; paths are below `folder`.

  Raises `ConfigError` for a head or an end that is of no block, and for a block
  that cannot be made.
  """
  _require_blocks(page)

  def made(block: re.Match[str]) -> str:
    begin, kind, path, words, end = block.groups()
    try:
      return f"{begin}{_content(kind, folder / path, words)}{end}"
    except ConfigError as error:
      first, _, _ = begin.partition("\n")
      raise ConfigError(f"in the block {first!r}: {error}") from error

  return _BLOCK.sub(made, page)


def _require_blocks(page: str) -> None:
  blocks = list(_BLOCK.finditer(page))
  places = {place for of in blocks for place in (of.start(), of.start(5))}
  places |= {other.start(1) for other in _OTHER.finditer(page)}
  for part in _PART.finditer(page):
    if part.start() not in places:
      line = page.count("\n", 0, part.start()) + 1
      raise ConfigError(
        f"line {line} of the page, {part[0]!r}, is of no block, and what "
        "stands around it could be lost: write `<!-- KIND: FILE WORDS -->` at "
        f"the end of a line, with a KIND of {', '.join(_KINDS)}, and below it "
        "`<!-- end -->`, with no other comment between them"
      )


def _content(kind: str, path: pathlib.Path, words: str) -> str:
  """Returns what a block holds. Raises `ConfigError` if it cannot be made."""
  if kind == "diagnostics":
    return drift(read_diagnostics(path))
  if kind == "measured":
    return measured.with_origin(measured.read(path), words)
  if kind == "claims":
    return _table(claims.HEAD, claims.rows(words, path))
  arms = read_arms([path])
  if kind == "rises":
    return rises(arms, words)
  if kind == "contrasts":
    return lines_of_contrasts(arms, words)
  stage, _, mode = words.partition(" ")
  if stage == "rise":
    raise ConfigError(
      "`finals` have levels after a stage, and a rise is a difference of two: "
      "write `contrasts` for the rises of arms, and `rises` for those of runs"
    )
  scores = finals(arms, stage, mode)
  if scores is None:
    raise ConfigError(f"{path} has no evaluation of {stage}, {mode}")
  return markdown(scores)


def rises(arms: Sequence[Arm], mode: str) -> str:
  """Returns each run's success before and after RL as a table.

  With the 95 % intervals of single runs, which count their episodes. Raises
  `ConfigError` if no run was evaluated twice.
  """
  rows = []
  for arm in arms:
    for seed, run in sorted(arm.runs.items()):
      before, after = (run.evaluation(s, mode) for s in ("warm_start", "rl"))
      if before is not None and after is not None:
        rows.append((f"{arm.name}, seed {seed}", before.tasks, after.tasks))
  if not rows:
    raise ConfigError(f"no run was evaluated {mode} both before and after RL")
  names = list(dict.fromkeys(task for _, _, after in rows for task in after))
  return _table(
    [mode, *names],
    [
      [
        label,
        *(
          f"{_level(before[name])} → {_level(after[name])}"
          if name in before and name in after
          else ""
          for name in names
        ),
      ]
      for label, before, after in rows
    ],
  )


def drift(values: Values) -> str:
  """Returns what runs cost and how far policies were apart as a table."""
  return _table(
    ["mean over seeds", *(each.title for each in columns(values).values())],
    [
      [label, *(f"{c.text} ({c.note})" if c.note else c.text for c in cells)]
      for label, cells in table(values)
    ],
  )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  lines = [head, ["---"] * len(head), *rows]
  texts = [f"| {' | '.join(line)} |" for line in lines]
  texts[1] = texts[1].replace(" ", "")
  return "\n".join(texts) + "\n"


def _level(score: Score) -> str:
  interval = numbers.interval(score.low, score.high)
  return f"{100 * score.success:.1f} ({interval})"


def markdown(of: Finals) -> str:
  """Returns levels and differences as a table."""
  names = of.columns
  levels = [
    [
      f"{level.arm}, {level.num_seeds} seed{'s' * (level.num_seeds > 1)}",
      *(
        f"{100 * e.mean:.1f} ({numbers.interval(e.low, e.high)})" if e else ""
        for e in map(level.tasks.get, names)
      ),
    ]
    for level in of.levels
  ]
  changes = [row for each in of.changes for row in _difference(each, names)]
  head = [f"{numbers.stage_name(of.stage)}, {of.mode}", *names]
  return _table(head, levels + changes)


def lines_of_contrasts(arms: Sequence[Arm], words: str) -> str:
  """Returns differences of any sides, paired by seed, as a table.

  Raises `ConfigError` for a line that is none, for sides that no seed has, and
  for two lines of the same sides.
  """
  header, *lines = words.splitlines() or [""]
  if not lines:
    raise ConfigError(
      "a block of contrasts says STAGE MODE, and then a line `label: arm - "
      f"arm` for each; this one says {words!r}"
    )
  stage, _, mode = header.partition(" ")
  labels: dict[tuple[str, str], str] = {}
  for line in lines:
    label, _, sides = line.rpartition(": ")
    after, minus, before = sides.partition(" - ")
    if not minus:
      raise ConfigError(f"a contrast is `arm - arm`, and this line is {line!r}")
    pair = (plain_side(after, stage), plain_side(before, stage))
    if pair in labels:
      raise ConfigError(
        f"two lines are of {' - '.join(pair)}, and a row has one label: leave "
        f"out {line!r}, or the other"
      )
    labels[pair] = label
  found = contrasts(arms, stage, mode, list(labels))
  if missing := labels.keys() - {(each.after, each.before) for each in found}:
    sides = "; ".join(" - ".join(pair) for pair in missing)
    raise ConfigError(f"no seed was evaluated {mode} on both sides of {sides}")
  tasks = dict.fromkeys(task for each in found for task in each.tasks)
  names = sorted(tasks, key=lambda task: task == MEAN)
  if len(names) == 2 and MEAN in names:
    names.remove(MEAN)  # of one task
  head = [f"{numbers.stage_name(stage)}, {mode}", *names]
  return _table(
    head,
    [
      row
      for each in found
      for row in _difference(each, names, labels[each.after, each.before])
    ],
  )


def _difference(
  change: Change, names: Sequence[str], label: str = ""
) -> list[list[str]]:
  """Returns the row of the first test, and the paired t where it differs."""
  tests = list(map(change.tasks.get, names))
  label = label or change.label
  if all(of is None or of.first == of.paired for of in tests):
    return [[label, *(_test(of.paired) if of else "" for of in tests)]]
  return [
    [
      label,
      *(
        _test(of.first, "" if of.is_pooled else ", not pooled") if of else ""
        for of in tests
      ),
    ],
    [f"{label}, paired t", *(_test(of.paired) if of else "" for of in tests)],
  ]


def _test(of: PairedDifference, how: str = "") -> str:
  if math.isnan(of.p):
    return f"{numbers.points(of.mean)} (1 seed)"
  interval = numbers.signed_interval(of.low, of.high)
  return f"{numbers.points(of.mean)} ({interval}; {numbers.p_value(of.p)}{how})"
