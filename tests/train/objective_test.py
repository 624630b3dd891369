"""The objective says what its config says."""

import dataclasses

import jax
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.batches import reinforcement_lessons
from agentrl_jax.train.objective import (
  policy_objective,
  supervised_objective,
)
from agentrl_jax.train.optimizer import OptimizerConfig, make_optimizer
from agentrl_jax.train.reference import Reference
from agentrl_jax.train.token_logprobs import token_logprobs
from tests.train import small


def _lesson():
  (lesson,) = reinforcement_lessons(
    small.make_groups(),
    task_ids=small.TASK_IDS,
    advantage=small.ADVANTAGE,
    batch=small.batch_config(24),
  )[0]
  return lesson


class TokenLogprobsTest(absltest.TestCase):
  def test_entry_t_is_about_token_t(self):
    policy = Policy(small.MODEL)
    params = policy.init(jax.random.key(0))
    batch = _lesson().batch
    found, _ = token_logprobs(
      policy, params, batch, temperature=0.7, chunk_size=8
    )
    logits = policy.logits(params, batch.token, batch.position, batch.segment)
    wanted = np.asarray(jax.nn.log_softmax(logits / 0.7))
    for b, t in zip(*np.nonzero(batch.mask), strict=True):
      self.assertAlmostEqual(
        float(found[b, t]), wanted[b, t - 1, batch.token[b, t]], places=4
      )


class ObjectiveTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.policy = Policy(small.MODEL)
    self.params = self.policy.init(jax.random.key(0))
    lesson = _lesson()
    logprob, _ = token_logprobs(
      self.policy, self.params, lesson.batch, temperature=0.9, chunk_size=8
    )
    # Ratios on both sides of every bound.
    noise = np.random.default_rng(0).normal(size=logprob.shape)
    batch = dataclasses.replace(
      lesson.batch, behavior_logprob=np.float32(logprob + noise)
    )
    self.lesson = dataclasses.replace(lesson, batch=batch)

  def _value(self, **changes):
    objective = policy_objective(
      self.policy, small.loss_config(**changes), temperature=0.9
    )
    loss, metrics = objective(self.params, self.lesson)
    return float(loss.value()), metrics

  @parameterized.named_parameters(
    ("surrogate", {"surrogate": "reinforce", "dual_clip": 0.0}),
    ("reduction", {"reduction": "sequence_mean"}),
    ("clip_low", {"clip_low": 0.9}),
    ("clip_high", {"clip_high": 1.5}),
    ("dual_clip", {"dual_clip": 0.0}),
    ("entropy", {"entropy_coefficient": 0.1}),
    ("kl", {"kl_coefficient": 0.1}),
  )
  def test_no_key_is_without_effect(self, changes):
    self.assertNotAlmostEqual(
      self._value(**changes)[0], self._value()[0], places=6
    )

  def test_kl_to_itself_is_nothing(self):
    reference = Reference(
      self.policy, self.params, temperature=0.9, chunk_size=8
    )
    plain, _ = self._value()
    self.lesson = reference.add_to(self.lesson)
    value, metrics = self._value(kl_coefficient=5.0)
    self.assertAlmostEqual(value, plain, places=5)
    kl = float(metrics["policy/kl_to_reference"].value())
    self.assertAlmostEqual(kl, 0, places=5)

  def test_supervised_is_negative_log_likelihood(self):
    objective = supervised_objective(self.policy, small.loss_config())
    loss, _ = objective(self.params, self.lesson)
    logprob, _ = token_logprobs(
      self.policy,
      self.params,
      self.lesson.batch,
      temperature=1.0,
      chunk_size=8,
    )
    wanted = -np.asarray(logprob)[self.lesson.batch.mask].mean()
    self.assertAlmostEqual(float(loss.value()), wanted, places=5)


class ConfigTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("name", {"surrogate": "cliped"}, "'cliped' is not one of reinforce, cl"),
    ("clip", {"clip_low": 2.0}, "clip_low=2.0 must lie between 0 and 1"),
    ("dual", {"dual_clip": 1.1}, "dual_clip=1.1 must be 0 .off. or above"),
    ("idle", {"surrogate": "reinforce"}, "means nothing for loss.surrogate"),
    ("kl", {"kl_coefficient": -1.0}, "kl_coefficient=-1.0 is negative"),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      small.loss_config(**changes)


class OptimizerTest(parameterized.TestCase):
  BASE = {
    "learning_rate": 0.1,
    "warmup_steps": 3,
    "final_share": 0.1,
    "b1": 0.9,
    "b2": 0.95,
    "weight_decay": 0.0,
    "clip_norm": 1.0,
  }

  def test_warms_up_and_decays(self):
    optimizer = make_optimizer(OptimizerConfig(**self.BASE), 20)
    params, sizes = np.zeros(1, np.float32), []
    state = optimizer.init(params)
    for _ in range(20):
      updates, state = optimizer.update(np.ones(1, np.float32), state, params)
      sizes.append(-float(updates[0]))
    self.assertAlmostEqual(sizes[0], 0.025, places=3)
    self.assertAlmostEqual(max(sizes), 0.1, places=3)
    self.assertEqual(int(np.argmax(sizes)), 3)
    self.assertLess(sizes[-1], 0.015)

  @parameterized.parameters(
    ({"learning_rate": 0.0}, "learning_rate=0.0"),
    ({"final_share": 2.0}, "final_share=2.0"),
    ({"clip_norm": 0.0}, "clip_norm=0.0"),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      OptimizerConfig(**(self.BASE | changes))


if __name__ == "__main__":
  absltest.main()
