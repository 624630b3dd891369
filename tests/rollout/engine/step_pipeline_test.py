"""When the next step may be taken, and who is told if it never may."""

import threading

from absl.testing import absltest

from agentrl_jax.errors import DeadlineExceeded, GeneratorFault
from agentrl_jax.rollout.engine.step_pipeline import StepPipeline
from tests.rollout import small, small_grammars
from tests.rollout.drivers.soak_test import driver_on
from tests.rollout.engine.grammar_test import spec_of

WAIT_S = 60.0


class RunAheadTest(absltest.TestCase):
  def stepping(self, ahead):
    """A step that is being waited for, in a thread of its own."""
    taken, errors = threading.Event(), []

    def step():
      try:
        ahead.step()
      except GeneratorFault as error:
        errors.append(error)
      taken.set()

    thread = threading.Thread(target=step)
    thread.start()
    self.addCleanup(thread.join, WAIT_S)
    self.addCleanup(ahead.close)
    return taken, errors

  def test_so_many_steps_may_be_unread(self):
    ahead = StepPipeline(2, WAIT_S)
    ahead.step()
    ahead.step()
    taken, _ = self.stepping(ahead)
    self.assertFalse(taken.wait(0.05))
    ahead.read_step()
    self.assertTrue(taken.wait(WAIT_S))

  def test_calls_that_decide_what_follows_are_read_first(self):
    ahead = StepPipeline(2, WAIT_S)
    ahead.step()
    ahead.launched(2)
    taken, _ = self.stepping(ahead)
    ahead.read_call()
    self.assertFalse(taken.wait(0.05))
    ahead.read_call()  # the rest of its step is still on its way
    self.assertTrue(taken.wait(WAIT_S))

  def test_a_reader_that_is_gone_is_told_of(self):
    ahead = StepPipeline(1, 0.02)
    ahead.step()
    with self.assertRaisesRegex(DeadlineExceeded, "0.02 s.*has ended or hangs"):
      ahead.step()

  def test_closing_wakes_who_waits(self):
    ahead = StepPipeline(1, WAIT_S)
    ahead.step()
    ahead.launched(1)
    taken, errors = self.stepping(ahead)
    ahead.close()
    self.assertTrue(taken.wait(WAIT_S))
    self.assertLen(errors, 1)
    with self.assertRaisesRegex(GeneratorFault, "was closed"):
      ahead.step()

  def test_no_step_is_taken_for_nothing(self):
    engine = small.engine_of(grammars=small_grammars.grammars())
    driver = driver_on("jetstream", engine)
    self.addCleanup(driver.close)
    answer = driver.submit([1], spec_of("json")).result(WAIT_S)
    # One for each token, and what is taken while the last one is read.
    self.assertLess(engine.stats().num_steps, len(answer.sampled) + 5)


if __name__ == "__main__":
  absltest.main()
