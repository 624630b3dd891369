"""Test vectors of the losses: small cases in `vectors.json`, by module.

A case has the function, what it shows, its arguments, what the function
returns, and the gradient with respect to some arguments. docs/losses.md
explains the notation.
"""

import json
import pathlib
from typing import Any

import numpy as np

FILE = pathlib.Path(__file__).with_name("vectors.json")


def sections() -> dict[str, list[dict[str, Any]]]:
  """Returns the cases by file of the library."""
  return json.loads(FILE.read_text(encoding="utf-8"))


def to_array(value: list) -> np.ndarray:
  """Returns a nested list as bool, integers, or floats with NaN for null."""
  array = np.array(value, dtype=object)
  kinds = {type(x) for x in array.flat}
  if kinds <= {bool} or kinds <= {int}:
    return np.array(value)
  return np.vectorize(lambda x: np.nan if x is None else float(x))(array)
