"""The stream mixes by weight, is reproducible, and resumes."""

import collections

import pytest
from absl.testing import parameterized

from agentrl_jax.controller.task_source import IndicesWithout, TaskStream
from agentrl_jax.errors import ConfigError


def _stream(seed=0, *, weights=(1.0, 3.0), short=range(100, 110)):
  return TaskStream(
    {"long": range(1 << 20), "short": short},
    weights=dict(zip(("long", "short"), weights, strict=True)),
    split="train",
    seed=seed,
  )


class TaskStreamTest(parameterized.TestCase):
  def test_mixes_by_weight(self):
    stream = _stream()
    counts = collections.Counter(next(stream)[1].name for _ in range(80))
    self.assertEqual(counts, {"long": 20, "short": 60})

  def test_small_sets_come_again_and_large_ones_do_not(self):
    stream = _stream(weights=(1.0, 1.0))
    tasks = [next(stream)[1] for _ in range(100)]
    self.assertLen({t for t in tasks if t.name == "long"}, 50)
    self.assertEqual(
      {t.index for t in tasks if t.name == "short"}, set(range(100, 110))
    )

  def test_is_a_function_of_the_seed(self):
    def first(seed):
      stream = _stream(seed)
      return [next(stream) for _ in range(20)]

    self.assertEqual(first(3), first(3))
    self.assertNotEqual(first(3), first(4))

  def test_resumes(self):
    stream = _stream()
    for _ in range(37):
      next(stream)
    again = _stream()
    again.restore(stream.state())
    self.assertEqual(
      [next(again) for _ in range(20)], [next(stream) for _ in range(20)]
    )

  def test_keeps_an_order_that_is_wanted(self):
    stream = TaskStream(
      {"a": range(9)}, weights={"a": 1}, split="s", seed=0, shuffle=False
    )
    found = [next(stream)[1].index for _ in range(12)]
    self.assertEqual(found, [*range(9), 0, 1, 2])

  @parameterized.named_parameters(
    ("zero_weight", {"weights": (0.0, 1.0)}, "must be positive"),
    ("no_tasks", {"short": ()}, "have no task"),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      _stream(**changes)


@pytest.mark.parametrize("held_out", [(), (0,), (9,), (3, 4, 8), range(10)])
def test_indices_without_those_that_are_held_out(held_out):
  indices = range(100, 110)
  left = IndicesWithout(indices, [100 + n for n in held_out] + [7])
  expected = [n for n in indices if n - 100 not in held_out]
  assert list(left) == expected
  assert left[-3:] == expected[-3:]
  assert len(left) == len(expected)
  with pytest.raises(IndexError):
    _ = left[len(expected)]


def test_indices_of_a_huge_split_take_no_memory():
  left = IndicesWithout(range(10**12), [5, 10**11])
  assert (left[5], left[10**11], left[-1]) == (6, 10**11 + 2, 10**12 - 1)
