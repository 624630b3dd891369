"""Tests of `data.task_weights`: weights follow what groups teach."""

import collections
import json

from absl.testing import absltest, parameterized

from agentrl_jax.data.records import Task
from agentrl_jax.data.task_source import LearningTaskStream, task_datasets
from agentrl_jax.data.task_weights import TaskWeights, TaskWeightsConfig
from agentrl_jax.errors import ConfigError
from configs import base


def _stream(weights=(1.0, 1.0), **changes):
  config = base.defaults(
    TaskWeightsConfig, "task_weights", **{"rule": "signal"} | changes
  )
  by_name = dict(zip(("easy", "hard"), weights, strict=True))
  indices = {"easy": range(1 << 20), "hard": range(100, 110)}
  return LearningTaskStream(
    task_datasets(indices, weights=by_name, split="train", seed=3),
    TaskWeights(by_name, config),
  )


def _counts(stream, number):
  return collections.Counter(next(stream)[1].name for _ in range(number))


def _teach(stream, name, has_signal, times):
  for _ in range(times):
    stream.learn(Task(name, "train", 0), has_signal)


class LearningTaskStreamTest(parameterized.TestCase):
  def test_begins_with_the_configured_weights(self):
    self.assertEqual(_counts(_stream((1.0, 3.0)), 80), {"easy": 20, "hard": 60})

  def test_task_that_teaches_nothing_falls_to_the_floor_and_comes_back(self):
    stream = _stream(floor=0.25)
    _teach(stream, "easy", False, 1000)
    self.assertEqual(_counts(stream, 100), {"easy": 20, "hard": 80})
    _teach(stream, "easy", True, 1000)
    counts = _counts(stream, 100)
    self.assertBetween(counts["easy"], 49, 51)

  def test_weight_is_between_floor_and_one_by_the_share_of_signals(self):
    stream = _stream(floor=0.2, memory=0.0)
    self.assertAlmostEqual(stream.metrics()["tasks/share/easy"], 0.5)
    _teach(stream, "hard", False, 1)
    found = stream.metrics()
    self.assertEqual(found["tasks/signal/hard"], 0)
    self.assertAlmostEqual(found["tasks/share/hard"], 0.2 / 1.2)

  def test_memory_is_per_group_of_an_environment(self):
    stream = _stream(memory=0.5)
    _teach(stream, "easy", False, 2)
    _teach(stream, "hard", True, 100)
    self.assertAlmostEqual(stream.metrics()["tasks/signal/easy"], 0.25)

  def test_every_position_and_every_task_of_a_large_set_comes_once(self):
    stream = _stream()
    found = [next(stream) for _ in range(60)]
    self.assertEqual([position for position, _ in found], list(range(60)))
    easy = [task for _, task in found if task.name == "easy"]
    self.assertLen(set(easy), len(easy))

  def test_resumes_from_json(self):
    stream = _stream((1.0, 2.5))
    for n in range(37):
      _, task = next(stream)
      stream.learn(task, n % 3 == 0)
    again = _stream((1.0, 2.5))
    again.restore(json.loads(json.dumps(stream.state())))
    self.assertEqual(
      [next(again) for _ in range(50)], [next(stream) for _ in range(50)]
    )
    self.assertEqual(again.metrics(), stream.metrics())

  @parameterized.parameters(
    ({"rule": "sucess"}, "not one of fixed, signal"),
    ({"floor": 0.0}, "could never come back"),
    ({"floor": 1.5}, "at most 1"),
    ({"memory": 1.0}, "below 1"),
    ({"memory": -0.1}, "at least 0"),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      _stream(**changes)


if __name__ == "__main__":
  absltest.main()
