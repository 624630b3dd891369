"""Tests that the curriculum's stages divide the updates that a run has.

The lake is that of another experiment: its sizes may change, and these not.
"""

import re

from absl.testing import absltest, parameterized

from studies.configs import curriculum


class CurriculumTest(parameterized.TestCase):
  @parameterized.parameters("scaled", "reversed")
  def test_each_stage_has_a_third_of_the_updates(self, arm):
    config = curriculum.get_config(arm)
    ends = [
      int(re.search(r"until (\d+)", stage)[1])
      for stage in config.curriculum.limits
    ]
    ends = [0, *(min(end, config.train.steps) for end in ends)]
    if ends[-1] < config.train.steps:
      ends.append(config.train.steps)  # at the evaluations' limits
    lengths = [b - a for a, b in zip(ends, ends[1:], strict=False)]
    self.assertLen(lengths, 3)
    for length in lengths:
      self.assertAlmostEqual(length, config.train.steps / 3, delta=1)


if __name__ == "__main__":
  absltest.main()
