"""What an engine draws under a grammar, a learner trains on as it was drawn."""

import dataclasses

import jax
import numpy as np
from absl.testing import absltest

from agentrl_jax.data.trajectory import Group, Status, Task, Trajectory, Turn
from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.drivers.local import LocalDriver
from agentrl_jax.train.batch_builder import BatchBuilder
from agentrl_jax.train.objective import policy_objective
from agentrl_jax.train.weights.reference import Reference
from tests.rollout import following
from tests.rollout import small as engines
from tests.train import small

TEMPERATURE = 0.8
STEP = 10  # that the engine serves, and the learner has
TASK = Task("a", "train", 0)
TURNS = (("json", 12), ("", 9), ("choice", 5))  # grammar, size of observation


def play(driver, attempt: int) -> Trajectory:
  """Answers of one attempt, each by a grammar of its own or by none."""
  stream, turns = np.empty(0, np.int32), []
  for number, (name, size) in enumerate(TURNS):
    observation = engines.prompt_of(7 * attempt + number, size)
    spec = SamplingSpec(
      temperature=TEMPERATURE,
      max_tokens=16,
      stop_tokens=(following.STOP,),
      seed=31 * attempt + number,
      grammar=following.GRAMMARS.get(name, ""),
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


def preparation(make_grammars, **changes) -> BatchBuilder:
  policy = engines.policy()
  return BatchBuilder(
    policy,
    loss=small.loss_config(**changes),
    advantage=small.advantage_config(),
    batch=small.batch_config(micro_batch=4, row_length=engines.CONTEXT),
    task_ids={TASK.name: 0},
    temperature=TEMPERATURE,
    reference=Reference(policy, engines.params(STEP)),
    make_grammars=make_grammars,
  )


class ConstrainedTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    driver = LocalDriver(
      engines.engine_of((STEP,), grammars=following.grammars())
    )
    cls.addClassCleanup(driver.close)
    attempts = tuple(play(driver, attempt) for attempt in range(8))
    cls.groups = [Group("g", TASK, attempts)]

  def metrics(self, lesson, **changes):
    objective = policy_objective(
      engines.policy(), small.loss_config(**changes), temperature=TEMPERATURE
    )
    found = jax.jit(objective)(engines.params(STEP), lesson)[1]
    return {
      name: float(found[name].value())
      for name in found
      if hasattr(found[name], "value")
    }

  def lessons(self, **changes):
    ready = preparation(following.grammars, **changes)
    return ready.build(self.groups, engines.params(STEP))[0]

  def test_the_learner_agrees_with_the_engine(self):
    lesson = self.lessons()[0]
    self.assertGreater((lesson.batch.allowed > 0).sum(), 50)
    self.assertLess(self.metrics(lesson)["policy/abs_log_ratio"], 1e-5)

  def test_without_the_masks_it_would_not(self):
    lesson = self.lessons()[0]
    batch = dataclasses.replace(lesson.batch, allowed=None, mask_MX=None)
    lesson = dataclasses.replace(lesson, batch=batch)
    self.assertGreater(self.metrics(lesson)["policy/abs_log_ratio"], 0.5)

  def test_other_policies_are_under_the_masks_too(self):
    changes = {
      "kl_coefficient": 0.1,
      "proximal": "recomputed",
      "importance": "truncated",
      "importance_high": 10.0,
    }
    found = self.metrics(self.lessons(**changes)[0], **changes)
    self.assertAlmostEqual(found["policy/kl_to_reference"], 0, places=6)
    self.assertAlmostEqual(found["policy/importance_weight"], 1, places=4)

  def test_divergence_in_the_reward_is_under_the_masks_too(self):
    """The reference is who sampled, so nothing is taken off any reward."""
    changes = {"kl_coefficient": 10.0, "kl_place": "reward"}
    found = self.lessons(kl_estimator="k1", **changes)[0]
    np.testing.assert_allclose(
      found.advantage, self.lessons()[0].advantage, atol=1e-3
    )

  def test_all_lessons_share_one_table(self):
    lessons = self.lessons()
    self.assertGreater(len(lessons), 1)
    for lesson in lessons:
      self.assertIs(lesson.batch.mask_MX, lessons[0].batch.mask_MX)

  def test_a_learner_that_cannot_read_grammars_says_so(self):
    with self.assertRaisesRegex(ConfigError, "given no `Grammars`"):
      preparation(None).build(self.groups, None)


if __name__ == "__main__":
  absltest.main()
