"""Episodes by flags: tokens to prefill, and flags that cannot be."""

import dataclasses

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from launch.planning.roofline import Attempts
from launch.planning.system.workload import Workload, read_workload
from tests.launch.planning.models import pod_settings

ATTEMPTS = Attempts(prompt=1000, turns=900, num=8)
GIVEN = {
  "num_answers": 5.0,
  "answer_tokens": 100.0,
  "environment_s": 1.0,
  "spread": 0.5,
}


def _read(attempts=ATTEMPTS, **changes) -> Workload:
  return read_workload(pod_settings(), attempts, **GIVEN | changes)


class WorkloadTest(parameterized.TestCase):
  def test_it_is_what_the_flags_say(self):
    workload = _read()
    self.assertEqual(workload.sampled_tokens, 500)
    self.assertEqual(workload.group_size, 8)

  def test_reuse_prefills_each_token_once(self):
    self.assertEqual(
      _read().prefilled_tokens(reuse=True), 1000 / 8 + (900 - 500)
    )
    alone = dataclasses.replace(ATTEMPTS, num=1)
    self.assertEqual(
      _read(alone).prefilled_tokens(reuse=True), 1000 + (900 - 500)
    )

  def test_without_reuse_every_answer_prefills_what_stands_before_it(self):
    """Five answers of 100 tokens and five replies of 80."""
    before = [1000 + k * (900 / 5) for k in range(5)]
    self.assertAlmostEqual(_read().prefilled_tokens(reuse=False), sum(before))

  def test_what_is_missing_is_named(self):
    with self.assertRaisesRegex(
      ConfigError, "needs --turns, --answer_tokens: "
    ):
      _read(attempts=None, answer_tokens=None)

  @parameterized.parameters(
    ({"num_answers": 0.5}, "--num_answers=0.5 must be 1 to 20"),
    ({"num_answers": 21}, "to 20, since episode.max_turns is 20"),
    ({"answer_tokens": 0}, "--answer_tokens=0 must be 1 to 1024"),
    ({"answer_tokens": 2000}, "since episode.max_answer_tokens is 1024"),
    ({"environment_s": -1}, "--environment_s=-1 must be 0 or more"),
    ({"environment_s": float("inf")}, "must be 0 or more"),
    ({"environment_s": float("nan")}, "must be 0 or more"),
    ({"spread": -0.1}, "--spread=-0.1 must be 0 to 10"),
    ({"answer_tokens": 181}, "are 905 tokens, and --turns=900"),
  )
  def test_impossible_ones_are_sentences(self, changes, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      _read(**changes)
