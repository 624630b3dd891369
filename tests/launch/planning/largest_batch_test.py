"""The largest batch, on chips whose programs grow as they are told to."""

import dataclasses

from absl.testing import parameterized

from launch.planning.chips import GIB, parse_slice
from launch.planning.compiled import Compiled, Memory
from launch.planning.roofline import Flops
from launch.planning.search import largest
from launch.planning.study import RESERVE, Judgement

SLICE = parse_slice("v6e-8")
ROOM = SLICE.chip.memory * (1 - RESERVE)


class LargestTest(parameterized.TestCase):
  @parameterized.parameters(
    (2.0, 0.5, 8, 8),
    (2.0, 0.5, 64, 8),  # the first does not fit
    (1.0, 0.01, 8, 4),
    (20.0, 0.125, 16, 16),
  )
  def test_it_is_the_last_that_fits(self, fixed, per_row, start, step):
    tried = []

    def judge(rows: int) -> Judgement:
      tried.append(rows)
      return _judged((fixed + per_row * rows) * GIB)

    found = largest("train.micro_batch", judge, start, step)
    most = int((ROOM / GIB - fixed) / per_row) // step * step
    self.assertEqual(found.size, most)
    self.assertIn(found.size, tried)
    self.assertLessEqual(len(tried), 5)

  def test_growth_that_is_no_line_still_gives_one_that_was_compiled(self):
    def judge(rows: int) -> Judgement:
      return _judged((1 + 0.01 * rows**2) * GIB)

    found = largest("train.micro_batch", judge, 8, 8)
    self.assertTrue(found.judged.fits)
    self.assertBetween(found.size, 32, 48)

  @parameterized.parameters((8, 0, "it died"), (16, 8, ""), (64, 16, ""))
  def test_a_death_of_the_compiler_ends_the_line(self, dies, most, failure):
    def judge(rows: int) -> Judgement:
      found = _judged((1 + 0.25 * rows) * GIB)
      if rows < dies:
        return found
      died = Compiled(memory=None, wanted=0, failure="it died")
      return dataclasses.replace(found, compiled=died)

    found = largest("train.micro_batch", judge, 8, 8)
    self.assertEqual((found.size, found.judged.failure), (most, failure))

  def test_where_nothing_fits_it_is_none(self):
    found = largest("train.micro_batch", lambda _: _judged(99 * GIB), 8, 8)
    self.assertEqual(found.size, 0)
    self.assertFalse(found.judged.fits)


def _judged(wanted: float) -> Judgement:
  memory = Memory(
    arguments=int(wanted), outputs=0, aliased=0, temporaries=0, code=0
  )
  return Judgement(
    name="gradient",
    slice_=SLICE,
    compiled=Compiled(memory=memory, wanted=int(wanted)),
    beside={},
    tokens=1,
    flops=Flops(0, 0),
    roofline=None,
  )
