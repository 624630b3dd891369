"""Tables of what studies observe: means over seeds, as Markdown."""

from collections.abc import Mapping, Sequence

import numpy as np

from launch.comparisons.statistics import interval_reach

Observation = Mapping[str, object]


def table(
  observations: Sequence[Observation], by: Sequence[str], columns: Sequence[str]
) -> str:
  """Returns a row for each group of observations that are alike in `by`.

  A cell is the mean, and half of its 95 % interval where there are several.
  """
  groups: dict[tuple[str, ...], list[Observation]] = {}
  for each in observations:
    groups.setdefault(tuple(str(each[name]) for name in by), []).append(each)
  rows = [
    [*by, *columns],
    ["---"] * (len(by) + len(columns)),
    *(
      [*key, *(_cell([each[name] for each in group]) for name in columns)]
      for key, group in groups.items()
    ),
  ]
  return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(values: Sequence[object]) -> str:
  numbers = np.array(values, float)
  half = f" ± {interval_reach(numbers):.2g}" if len(numbers) > 1 else ""
  return f"{numbers.mean():.4g}{half}"
