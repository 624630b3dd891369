"""Counts, refusals and waits of the engine without a driver."""

import threading
import unittest

from absl.testing import absltest

from agentrl_jax.errors import ConfigError, DeadlineExceeded, GeneratorFault
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.engine.engine import (
  RolloutEngine,
  ServedWeights,
  StepPipeline,
)
from tests.clocks import wait_until
from tests.rollout import small, small_grammars
from tests.rollout.drivers.contract import driver_on
from tests.rollout.engine.grammar_test import spec_of
from tests.settings import engine_config


def finish(engine):
  answers = {}
  while not engine.is_idle:
    result = engine.step()
    for request, answer in engine.read(result):
      answers[request.serial] = answer
  return answers


class RolloutEngineTest(unittest.TestCase):
  def test_policy_slots_of_weights_and_config_must_agree(self):
    config = engine_config(slots=(1, 1), context=8)
    with self.assertRaisesRegex(ConfigError, "2 policy slots.*have 3"):
      RolloutEngine(small.policy(), config, ServedWeights(3))

  def test_counts_tokens_and_steps(self):
    engine = small.engine_of()
    self.assertTrue(engine.is_idle)
    prompt = small.prompt_of(1, 20)
    for policy_slot, size in ((0, 5), (0, 7), (1, 3)):
      spec = SamplingParams(policy_slot=policy_slot, max_tokens=size)
      engine.admit(engine.check(prompt, spec))
    self.assertFalse(engine.is_idle)
    self.assertEqual(engine.stats().num_steps, 0)
    answers = finish(engine)
    stats = engine.stats()
    self.assertEqual(stats.num_sampled, (12, 3))
    self.assertEqual(stats.num_prefilled, (19, 19))
    self.assertEqual((stats.num_reused, stats.num_copied), ((19, 0), (3, 0)))
    self.assertEqual((stats.num_active, stats.num_pending), ((0, 0), (0, 0)))
    self.assertEqual([len(a.sampled) for a in answers.values()], [3, 5, 7])
    self.assertGreater(stats.prefill_s, 0)

  def test_prefill_does_not_stall_decoding(self):
    engine = small.engine_of(prefill_tokens=16, prefill_slots=1)
    engine.admit(engine.check([1], SamplingParams(max_tokens=30)))
    engine.read(engine.step())
    engine.admit(
      engine.check(small.prompt_of(2, 65), SamplingParams(max_tokens=9))
    )
    for step in range(1, 4):
      engine.read(engine.step())
      stats = engine.stats()
      self.assertEqual(stats.num_prefilled[0], 16 * step)
      self.assertEqual(stats.num_sampled[0], 3 + 3 * step)

  def test_waiting_for_unread_results_has_a_deadline(self):
    store = ServedWeights(1)
    store.publish(small.params(10), 10)
    engine = RolloutEngine(
      small.policy(),
      engine_config(slots=(1,), context=8),
      store,
      max_unread=1,
      unread_deadline_s=0.01,
    )
    result = engine.step()
    with self.assertRaisesRegex(DeadlineExceeded, "RolloutEngine.read"):
      engine.step()
    engine.read(result)
    engine.step()

  def test_a_closed_engine_takes_no_step(self):
    engine = small.engine_of()
    engine.close()
    with self.assertRaisesRegex(GeneratorFault, "closed"):
      engine.step()


WAIT_S = 60.0


class StepPipelineTest(absltest.TestCase):
  def stepping(self, pipeline):
    """Waits for a step in another thread."""
    taken, errors = threading.Event(), []

    def step():
      try:
        pipeline.begin_step()
      except GeneratorFault as error:
        errors.append(error)
      taken.set()

    thread = threading.Thread(target=step)
    thread.start()
    self.addCleanup(thread.join, WAIT_S)
    self.addCleanup(pipeline.close)
    return taken, errors

  def test_steps_ahead_of_the_reader_are_limited(self):
    pipeline = StepPipeline(2, WAIT_S)
    pipeline.begin_step()
    pipeline.begin_step()
    taken, _ = self.stepping(pipeline)
    wait_until(lambda: pipeline._changed._waiters)
    self.assertFalse(taken.is_set())
    pipeline.end_step()
    self.assertTrue(taken.wait(WAIT_S))

  def test_constrained_calls_are_read_before_the_next_step(self):
    pipeline = StepPipeline(2, WAIT_S)
    pipeline.begin_step()
    pipeline.add_constrained(2)
    taken, _ = self.stepping(pipeline)
    pipeline.end_constrained()
    wait_until(lambda: pipeline._changed._waiters)
    self.assertFalse(taken.is_set())
    pipeline.end_constrained()  # the rest of the step is not read yet
    self.assertTrue(taken.wait(WAIT_S))

  def test_closing_wakes_a_waiting_step(self):
    pipeline = StepPipeline(1, WAIT_S)
    pipeline.begin_step()
    pipeline.add_constrained(1)
    taken, errors = self.stepping(pipeline)
    pipeline.close()
    self.assertTrue(taken.wait(WAIT_S))
    self.assertLen(errors, 1)
    with self.assertRaisesRegex(GeneratorFault, "was closed"):
      pipeline.begin_step()

  def test_constrained_slots_cause_no_empty_steps(self):
    engine = small.engine_of(grammars=small_grammars.grammars())
    driver = driver_on("jetstream", engine)
    self.addCleanup(driver.close)
    answer = driver.submit([1], spec_of("json")).result(WAIT_S)
    # One step per token, and those launched while the last one is read.
    self.assertLess(engine.stats().num_steps, len(answer.sampled) + 5)
