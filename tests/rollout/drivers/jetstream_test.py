"""The driver on JetStream keeps the contract; its import changes nothing."""

import queue
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import numpy as np
import pytest

from agentrl_jax.rollout.api import SamplingParams
from tests.rollout import small
from tests.rollout.drivers.contract import (
  SHORT,
  WAIT_S,
  DriverContract,
  DriverTestCase,
)

pytest.importorskip(
  "jetstream",
  reason="google-jetstream is missing: pip install --no-deps "
  "'google-jetstream>=0.2.2,<0.4' and grpcio protobuf prometheus-client "
  "tiktoken shortuuid",
)


class JetStreamDriverTest(DriverContract, DriverTestCase):
  kind = "jetstream"
  # It is the engine that makes it so, which `local_test` tests.
  test_samples_depend_only_on_the_request = pytest.mark.slow(
    DriverContract.test_samples_depend_only_on_the_request
  )

  def test_a_swap_while_decoding_stamps_both_versions(self):
    prompt, spec = small.prompt_of(8, 30), SamplingParams(max_tokens=60)
    driver = self.open()
    read, versions = driver.engine.read, driver.engine.versions

    def read_and_swap(result):
      # Between two steps of the request, however fast they are.
      answered = read(result)
      if (
        driver.engine.stats().num_sampled[0] >= 5
        and versions.get(0).version == 10
      ):
        versions.publish(small.params(30), 30)
      return answered

    driver.engine.read = read_and_swap
    answer = driver.submit(prompt, spec).result(WAIT_S)
    self.assertEqual(set(answer.version), {10, 30})
    self.assertTrue(np.all(np.diff(answer.version) >= 0))
    next_prompt = small.conversation(prompt, answer, [1, 2])
    (again,) = self.ask(driver, [(next_prompt, SamplingParams(max_tokens=1))])
    self.assertEqual(again.num_reused, 0)

  def test_cancelling_frees_both_slots(self):
    driver = self.open()
    spec = SamplingParams(max_tokens=90)
    for _ in range(4):  # more often than JetStream has slots
      futures = [driver.submit([1], spec) for _ in range(4)]
      for future in futures[:-1]:
        future.cancel()
      futures[-1].result(WAIT_S)
    self.ask(driver, [([1], SHORT)])
    self.assert_empty(driver)

  def test_a_slot_may_become_free_while_jetstream_counts_them(self):
    driver = self.open()
    backlog = driver._threads._generate_backlogs[0]
    get, left = backlog.get, threading.Event()

    def get_late(block=True, timeout=None):
      """Finds no request, and says so after the one inside has left."""
      try:
        return get(block=block, timeout=timeout)
      except queue.Empty:
        num_looks = 0 if block else 100  # it may need another step to leave
        for _ in range(num_looks):
          if not sum(driver.num_inside):
            left.set()
            break
          time.sleep(0.001)
        raise

    backlog.get = get_late
    for _ in range(3):
      left.clear()
      self.ask(driver, [([1], SamplingParams(max_tokens=1))])
      self.assertTrue(left.wait(WAIT_S), "no slot became free meanwhile")
    self.assert_empty(driver)


def run(script: str) -> str:
  """Returns the output of a fresh interpreter."""
  return subprocess.run(
    [sys.executable, "-c", textwrap.dedent(script)],
    check=True,
    capture_output=True,
    text=True,
    timeout=120,
  ).stdout.strip()


class JetStreamImportTest(unittest.TestCase):
  @pytest.mark.slow
  def test_root_logger_and_modules_are_kept(self):
    output = run("""
      import logging, sys
      logging.getLogger().setLevel(35)
      had_seqio = "seqio" in sys.modules
      from agentrl_jax.rollout.drivers import jetstream
      root = logging.getLogger()
      same = ("seqio" in sys.modules) == had_seqio
      print(root.level, len(root.handlers), same)
    """)
    self.assertEqual(output, "35 0 True")

  @pytest.mark.slow
  def test_deleting_a_prefix_deletes_nothing(self):
    output = run("""
      import jax.numpy as jnp
      from agentrl_jax.rollout.drivers import jetstream
      x = jnp.ones(2)
      jetstream.orchestrator.delete_pytree({"x": x})
      print(x.is_deleted())
    """)
    self.assertEqual(output, "False")

  @pytest.mark.slow
  def test_other_modules_do_not_need_jetstream(self):
    output = run("""
      import sys
      sys.modules["jetstream"] = None  # as if it were not installed
      from agentrl_jax.rollout.drivers import driver
      try:
        from agentrl_jax.rollout.drivers import jetstream
      except ImportError as error:
        print(error)
    """)
    self.assertIn("pip install --no-deps", output)
    self.assertIn("engine.driver=local", output)
