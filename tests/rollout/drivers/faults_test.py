"""Exceptions anywhere in a driver fail the right requests, with their cause."""

import threading

import pytest
from absl.testing import parameterized

from agentrl_jax.errors import GeneratorFault
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import ServedWeights
from tests.rollout import small
from tests.rollout.drivers.contract import (
  DRIVERS,
  SHORT,
  WAIT_S,
  DriverTestCase,
  driver_on,
)

# Calls of the engine that raise; the local driver admits in its caller's
# thread.
STAGES = [
  (kind, stage)
  for kind in DRIVERS
  for stage in ("admit", "step", "read", "versions.get")
  if (kind, stage) != ("local", "admit")
]
JETSTREAM_THREADS = ("prefill", "insert", "generate")


class DriverFaultsTest(DriverTestCase):
  def open(self, kind, **options):
    before = set(threading.enumerate())
    driver = driver_on(kind, small.engine_of(), **options)
    self.addCleanup(self.check_ended, driver, before)
    return driver

  def check_ended(self, driver, before):
    driver.close()
    self.assertEqual(set(threading.enumerate()), before)

  def run_into(self, driver, broken):
    """Runs into the error, if the driver has no threads."""
    if isinstance(driver, LocalDriver):
      with self.assertRaises(type(broken)):
        driver.run_until_idle()

  def check_failed(self, driver, futures, broken):
    for future in futures:
      error = future.exception(WAIT_S)
      self.assertIsInstance(error, GeneratorFault)
      self.assertIs(error.__cause__, broken)
    for ask in (lambda: driver.submit([1], SHORT), driver.require_running):
      with self.assertRaisesRegex(GeneratorFault, "on purpose"):
        ask()
    self.assertEqual((driver.num_inside, driver.num_waiting), ((0, 0), (0, 0)))

  @parameterized.product(where=STAGES, error=(ZeroDivisionError, SystemExit))
  def test_an_exception_fails_all_requests_with_its_cause(self, where, error):
    kind, stage = where
    driver, broken = self.open(kind), error("on purpose")
    driver.require_running()
    first = driver.submit([1], SHORT)
    if kind == "local":
      driver.step()
    submitted = threading.Event()
    *path, name = stage.split(".")
    owner = driver.engine
    for part in path:
      owner = getattr(owner, part)

    def fail(*args):
      submitted.wait(WAIT_S)
      raise broken

    setattr(owner, name, fail)
    futures = [driver.submit([i], SHORT) for i in range(12)]
    submitted.set()
    self.run_into(driver, broken)
    self.check_failed(driver, futures, broken)
    self.assertTrue(first.done())

  @parameterized.parameters(*JETSTREAM_THREADS)
  def test_an_exception_in_each_thread_of_jetstream(self, name):
    pytest.importorskip("jetstream", reason="google-jetstream is missing")
    from agentrl_jax.rollout.drivers import jetstream

    broken, submitted = ZeroDivisionError("on purpose"), threading.Event()

    def fail(*args, **named):
      submitted.wait(WAIT_S)
      raise broken

    original = getattr(jetstream.JetStreamEngine, name)
    setattr(jetstream.JetStreamEngine, name, fail)
    try:
      driver = self.open("jetstream")
      futures = [driver.submit([i], SHORT) for i in range(12)]
      submitted.set()
      self.check_failed(driver, futures, broken)
    finally:
      setattr(jetstream.JetStreamEngine, name, original)

  @parameterized.parameters(*DRIVERS)
  def test_a_listener_that_raises_fails_its_own_request(self, kind):
    driver, broken = self.open(kind), ZeroDivisionError("on purpose")

    def listen(piece):
      raise broken

    bad = driver.submit([1], SamplingParams(max_tokens=60), listen)
    good = [driver.submit([i], SHORT) for i in range(6)]
    self.settle(driver, good)
    error = bad.exception(WAIT_S)
    self.assertIsInstance(error, GeneratorFault)
    self.assertIs(error.__cause__, broken)
    self.assertLen(self.settle(driver, [driver.submit([1], SHORT)]), 1)
    self.check_empty(driver)
    self.assertEqual(driver.engine.stats().num_cancelled, 1)

  def test_closing_during_a_step_settles_each_request_once(self):
    """Answers of the step come after closing has failed their requests."""
    driver = self.open("local")
    futures = [
      driver.submit([i], SamplingParams(max_tokens=2)) for i in range(4)
    ]
    engine, read = driver.engine, driver.engine.read

    def read_after_close(result):
      engine.read = read
      answered = read(result)
      futures[0].cancel()
      driver.close()
      return answered

    engine.read = read_after_close
    with self.assertNoLogs("concurrent.futures", "ERROR"):
      driver.step()
    self.assertTrue(futures[0].cancelled())
    for future in futures[1:]:
      self.assertIsInstance(future.exception(0), GeneratorFault)

  @parameterized.parameters(*DRIVERS)
  @pytest.mark.slow
  def test_a_callback_that_raises_or_submits_again(self, kind):
    driver, more = self.open(kind), []

    def submit_again(future):
      more.append(driver.submit([7], SHORT))
      raise ZeroDivisionError("on purpose")

    with self.assertLogs("concurrent.futures", "ERROR"):
      first = driver.submit([1], SHORT)
      first.add_done_callback(submit_again)
      doomed = driver.submit([2], SamplingParams(max_tokens=60))
      doomed.add_done_callback(submit_again)
      doomed.cancel()
      others = [driver.submit([i], SHORT) for i in range(20)]
      self.assertLen(self.settle(driver, [first, *others]), 21)
      self.assertLen(self.settle(driver, list(more)), 2)
    self.check_empty(driver)

  @parameterized.parameters(*DRIVERS)
  @pytest.mark.slow
  def test_a_policy_slot_without_weights_fails_its_own_requests(self, kind):
    store = ServedWeights(2)
    engine = small.engine_of((10,), store=store, slots=(2, 2))
    driver = driver_on(kind, engine)
    self.addCleanup(driver.close)
    good = driver.submit([1], SHORT)
    with self.assertRaisesRegex(
      GeneratorFault, "policy slot 1.*before anything"
    ):
      driver.submit([1], SamplingParams(policy_slot=1, max_tokens=4))
    self.assertLen(self.settle(driver, [good]), 1)
    self.check_empty(driver)
