"""Writes docs/test_vectors.md: every function of the losses on a small case.

  python -m tests.golden.make_test_vectors

The numbers come from the float64 loops in tests/reference. Neither jax nor the
library is imported; `tests/losses/library/test_vectors_test.py` compares the
page with the library.
"""

import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.golden.vectors import (
  vectors_advantages,
  vectors_logprobs,
  vectors_policy,
  vectors_ratios,
  vectors_reductions,
  vectors_tasks,
  vectors_time,
)
from tests.golden.vectors.cases import Case

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "test_vectors.md"

HEAD = """\
# Test vectors

This page has every function of `agentrl_jax.losses` on a case small enough to
follow by hand, for those who port a function or check its edge cases. The
results do not come from the library, but from the float64 loops in
[`tests/reference`](../tests/reference), written from the papers, one number at
a time. A test compares the library with this page, to 1e-6 in float32 and 1e-8
in float64. This command writes the page:

```
python -m tests.golden.make_test_vectors
```

Notation:

- Results are rounded to 9 significant digits, gradients to 7 decimals. Inputs
  are exact in float32, except settings such as `epsilon`. Settings that are not
  given have their defaults.
- A list is an array, nested by its axes: `x_BT` has rows B of tokens T. `true`
  and `false` are bool, as in all masks; a number with a decimal point is float.
- `null` in an array is a number that must not matter: use NaN. `"inf"` and
  `"-inf"` are the infinities.
- An object is a `Mean` (`total`, `weight`), a `TaskMoments` (`weight_I`,
  `mean_I`, `variance_I`), another result by the names of its fields, or a tuple
  by the names in the docstring, in their order. A name with `()` is a method.
- The `estimator` of `kl_penalised_reward` is a function of the library.
- `gradient` is the gradient of the sum of the result with respect to the named
  argument; of several results it is that of the first, of a `Mean` that of its
  `total`. It was computed by central differences, with everything fixed that
  the docstring calls a constant.
"""


def sections() -> dict[str, list[Case]]:
  """The cases by module of the library, in the order of its `__init__`."""
  found: dict[str, list[Case]] = {}
  for topic in (
    vectors_advantages,
    vectors_logprobs,
    vectors_policy,
    vectors_ratios,
    vectors_reductions,
    vectors_tasks,
    vectors_time,
  ):
    found |= topic.cases()
  return dict(sorted(found.items()))


def page() -> str:
  """The whole page."""
  return "\n".join([HEAD, *_lines()])


def _lines() -> Iterator[str]:
  for module, cases in sections().items():
    yield f"## `losses/{module}.py`\n"
    heading = None
    for case in cases:
      if case.function != heading:
        heading = case.function
        yield f"### `{heading}`\n"
      yield f"{case.about}\n\n```json\n{_block(case)}\n```\n"


def _block(case: Case) -> str:
  fields = {
    "function": case.function,
    "arguments": _plain(case.arguments, digits=17),
    "returns": _plain(case.returns, digits=9),
  }
  if case.gradient:
    rounded = {name: np.round(x, 7) for name, x in case.gradient.items()}
    fields["gradient"] = _plain(rounded, digits=9)
  return _text(fields, depth=2)


def _text(value: Any, depth: int, indent: str = "") -> str:
  """JSON with a line for each entry of the outer objects."""
  if not (isinstance(value, dict) and value and depth):
    return json.dumps(value, allow_nan=False)
  inner = indent + "  "
  lines = [
    f'{inner}"{name}": {_text(entry, depth - 1, inner)}'
    for name, entry in value.items()
  ]
  return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _plain(value: Any, *, digits: int) -> Any:
  """Numpy's and Python's values as those of JSON."""
  if isinstance(value, dict):
    return {name: _plain(x, digits=digits) for name, x in value.items()}
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  if isinstance(value, list | tuple):
    return [_plain(x, digits=digits) for x in value]
  if not isinstance(value, float):
    return value
  if math.isnan(value):
    return None
  if math.isinf(value):
    return str(value)
  return float(f"{value:.{digits}g}") + 0.0  # without a minus before 0


def main() -> None:
  """Writes the page to its place."""
  PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
  main()
