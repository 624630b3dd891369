"""The learner's log-probabilities of tokens that a grammar constrained."""

import dataclasses

import jax
import numpy as np
import pytest
from absl.testing import absltest

from agentrl_jax.data.records import Group, Status, Task, Trajectory, Turn
from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.train.batch_builder import BatchBuilder
from agentrl_jax.train.objective import policy_objective
from agentrl_jax.train.weights.reference import Reference
from tests.rollout import small as engines
from tests.rollout import small_grammars
from tests.train import small

TEMPERATURE = 0.8
STEP = 10  # that the engine serves, and the learner has
TASK = Task("a", "train", 0)
TURNS = (("json", 12), ("", 9), ("choice", 5))  # grammar, size of observation


def play(driver, attempt: int, task: int, seed: int) -> Trajectory:
  """Answers of one attempt, each by a grammar of its own or by none."""
  stream, turns = np.empty(0, np.int32), []
  for number, (name, size) in enumerate(TURNS):
    observation = engines.prompt_of(7 * task + number, size)
    spec = SamplingParams(
      temperature=TEMPERATURE,
      max_tokens=16,
      stop_tokens=(small_grammars.STOP,),
      seed=31 * seed + number,
      grammar=small_grammars.GRAMMARS.get(name, ""),
    )
    prompt = np.concatenate([stream, observation])
    asked = driver.submit(prompt, spec)
    driver.run_until_idle()
    said = asked.result()
    turns.append(
      Turn(
        observation=observation,
        sampled=said.sampled,
        behavior_logprob=said.behavior_logprob,
        raw_logprob=said.raw_logprob,
        version=said.version,
        grammar=spec.grammar,
      )
    )
    stream = np.concatenate([prompt, said.sampled])
  return Trajectory(
    task=TASK,
    group_id="g",
    attempt=attempt,
    seed=attempt,
    turns=tuple(turns),
    status=Status.COMPLETED,
    reward=float(attempt % 2),
  )


def builder(make_grammars, sharing=1, **changes) -> BatchBuilder:
  policy = engines.policy()
  return BatchBuilder(
    policy,
    loss=small.loss_config(**changes),
    advantage=small.advantage_config(),
    batch=small.batch_config(
      micro_batch=4, row_length=engines.CONTEXT, sharing=sharing
    ),
    task_ids={TASK.name: 0},
    temperature=TEMPERATURE,
    reference=Reference(policy, engines.params(STEP), place="resident"),
    make_grammars=make_grammars,
  )


class ConstrainedTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    driver = LocalDriver(
      engines.engine_of((STEP,), grammars=small_grammars.grammars())
    )
    cls.addClassCleanup(driver.close)
    attempts = tuple(play(driver, n, task=n, seed=n) for n in range(8))
    cls.groups = [Group("g", TASK, attempts)]
    attempts = tuple(play(driver, n, task=0, seed=n // 2) for n in range(8))
    cls.sharing_groups = [Group("g", TASK, attempts)]

  def metrics(self, micro_batch, **changes):
    objective = policy_objective(
      engines.policy(), small.loss_config(**changes), temperature=TEMPERATURE
    )
    found = jax.jit(objective)(engines.params(STEP), micro_batch)[1]
    return {
      name: float(found[name].value())
      for name in found
      if hasattr(found[name], "value")
    }

  def batches(self, **changes):
    ready = builder(small_grammars.grammars, **changes)
    return ready.build(self.groups, engines.params(STEP))[0]

  @pytest.mark.slow
  def test_the_learner_agrees_with_the_engine(self):
    micro_batch = self.batches()[0]
    self.assertGreater((micro_batch.batch.allowed > 0).sum(), 50)
    self.assertLess(self.metrics(micro_batch)["policy/abs_log_ratio"], 1e-5)

  @pytest.mark.slow
  def test_learner_and_engine_agree_where_attempts_share_tokens(self):
    ready = builder(small_grammars.grammars, sharing=8)
    micro_batches, report = ready.build(
      self.sharing_groups, engines.params(STEP)
    )
    self.assertGreater(report["batch/shared"], 0.3)
    for micro_batch in micro_batches:
      self.assertGreater((micro_batch.batch.tree.allowed > 0).sum(), 20)
      self.assertLess(self.metrics(micro_batch)["policy/abs_log_ratio"], 1e-5)

  @pytest.mark.slow
  def test_without_masks_learner_and_engine_differ(self):
    micro_batch = self.batches()[0]
    batch = dataclasses.replace(micro_batch.batch, allowed=None, mask_MX=None)
    micro_batch = dataclasses.replace(micro_batch, batch=batch)
    self.assertGreater(self.metrics(micro_batch)["policy/abs_log_ratio"], 0.5)

  @pytest.mark.slow
  def test_other_policies_are_under_the_masks_too(self):
    changes = {
      "kl_coefficient": 0.1,
      "proximal": "recomputed",
      "importance": "truncated",
      "importance_high": 10.0,
    }
    found = self.metrics(self.batches(**changes)[0], **changes)
    self.assertAlmostEqual(found["policy/kl_to_reference"], 0, places=6)
    self.assertAlmostEqual(found["policy/importance_weight"], 1, places=4)

  @pytest.mark.slow
  def test_divergence_in_the_reward_is_under_the_masks_too(self):
    """The reference is who sampled, so nothing is taken off any reward."""
    changes = {"kl_coefficient": 10.0, "kl_place": "reward"}
    found = self.batches(kl_estimator="k1", **changes)[0]
    np.testing.assert_allclose(
      found.advantage, self.batches()[0].advantage, atol=1e-3
    )

  def test_all_micro_batches_share_one_table(self):
    batches = self.batches()
    self.assertGreater(len(batches), 1)
    for micro_batch in batches:
      self.assertIs(micro_batch.batch.mask_MX, batches[0].batch.mask_MX)

  def test_a_learner_that_cannot_read_grammars_says_so(self):
    with self.assertRaisesRegex(ConfigError, "given no `Grammars`"):
      builder(None).build(self.groups, None)
