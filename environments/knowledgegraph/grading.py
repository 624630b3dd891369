"""Whether an answer is right: the same set, and how near it is otherwise."""

from collections.abc import Set


def f1(found: Set[str], wanted: Set[str]) -> float:
  """The harmonic mean of precision and recall; 0 if nothing is common."""
  num_right = len(found & wanted)
  if not num_right:
    return 0.0
  precision, recall = num_right / len(found), num_right / len(wanted)
  return 2 * precision * recall / (precision + recall)
