"""Generated tasks are a function of (split, index), of every kind and level."""

import unittest

from agentrl_jax.data.split import SPLITS, split_of
from environments.options import OSInteractionOptions
from environments.os_interaction.tasks.generator import (
  KINDS,
  LEVELS,
  TaskGenerator,
)


class GeneratorTest(unittest.TestCase):
  def test_splits_share_no_description(self):
    generator = TaskGenerator()
    for split in SPLITS:
      for index in range(300):
        problem = generator.generate(split, index).problem
        self.assertEqual(split_of(problem.description), split)

  def test_kinds_have_tasks_in_both_splits_at_every_level(self):
    for kind in KINDS:
      for level in range(LEVELS[0], LEVELS[1] + 1):
        generator = TaskGenerator(
          OSInteractionOptions(kinds=(kind,), difficulty=(level, level))
        )
        for split in SPLITS:
          with self.subTest(kind=kind, level=level, split=split):
            drawn = [generator.generate(split, i) for i in range(8)]
            distinct = {task.problem.description for task in drawn}
            self.assertGreaterEqual(len(distinct), 2)

  def test_the_slip_is_not_the_example(self):
    generator = TaskGenerator()
    for index in range(200):
      task = generator.generate("train", index)
      self.assertNotEqual(task.slip, task.problem.example.code)
