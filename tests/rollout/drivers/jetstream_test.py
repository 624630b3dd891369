"""JetStream's orchestrator keeps every driver's promises, and its own."""

import subprocess
import sys
import textwrap
import threading
import unittest

import numpy as np
import pytest

from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.drivers import jetstream as jetstream_driver  # noqa: E402 (after the skip)
from tests.rollout import small
from tests.rollout.drivers.contract import (
  PREFIX_CACHE,
  SHORT,
  WAIT_S,
  DriverContract,
  mixed_requests,
)

pytest.importorskip(
  "jetstream",
  reason="google-jetstream is missing: pip install --no-deps "
  "'google-jetstream>=0.2.2,<0.4' and grpcio protobuf prometheus-client "
  "tiktoken shortuuid",
)


class JetStreamDriverTest(DriverContract, unittest.TestCase):
  def driver_on(self, engine, **options):
    return jetstream_driver.JetStreamDriver(engine, **options)

  def settle(self, driver, futures):
    return [future.result(WAIT_S) for future in futures]

  def test_a_swap_while_decoding_stamps_both_versions(self):
    prompt, spec = small.prompt_of(8, 30), SamplingSpec(max_tokens=60)
    driver = self.open(steps_per_sync=2)
    read, versions = driver.engine.read, driver.engine.versions

    def read_and_swap(result):
      # Between two steps of the request, however fast they are.
      answered = read(result)
      if (
        driver.engine.stats().num_sampled[0] >= 5 and versions.get(0).step == 10
      ):
        versions.publish(0, small.params(30), 30)
      return answered

    driver.engine.read = read_and_swap
    answer = driver.submit(prompt, spec).result(WAIT_S)
    self.assertEqual(set(answer.version), {10, 30})
    self.assertTrue(np.all(np.diff(answer.version) >= 0))
    following = small.conversation(prompt, answer, [1, 2])
    (again,) = self.ask(driver, [(following, SamplingSpec(max_tokens=1))])
    self.assertEqual(again.num_reused, 0)

  def test_cancelling_frees_slot_and_seat(self):
    driver = self.open(slots=(1, 1))
    spec = SamplingSpec(max_tokens=90)
    for _ in range(3):  # more often than there are seats
      futures = [driver.submit([1], spec) for _ in range(4)]
      for future in futures[:-1]:
        future.cancel()
      futures[-1].result(WAIT_S)
    self.ask(driver, [([1], SHORT)])
    self.assert_empty(driver)

  def test_hundreds_of_requests_cancels_and_swaps_leave_nothing(self):
    rng = np.random.default_rng(12)
    threads = threading.active_count()
    driver = self.open(driver_options=dict(max_waiting=400))
    futures = []
    for i, (prompt, spec) in enumerate(mixed_requests(300)):
      futures.append(driver.submit(prompt, spec))
      if rng.random() < 0.3:
        futures[int(rng.integers(len(futures)))].cancel()
      if rng.random() < 0.1:
        driver.engine.versions.publish(
          int(rng.integers(2)), small.params(int(rng.integers(3))), i
        )
    for future in futures:
      if not future.cancelled():
        future.result(WAIT_S)
    # Every seat is free again if as many requests as there are seats get one.
    self.ask(driver, [([1], SHORT)] * 8)
    self.ask(driver, [([1], SamplingSpec(policy_slot=1, max_tokens=2))] * 8)
    self.assert_empty(driver)
    driver.close()
    self.assertEqual(threading.active_count(), threads)


class JetStreamDriverWithStoreTest(JetStreamDriverTest):
  settings = PREFIX_CACHE

  def assert_empty(self, driver):
    super().assert_empty(driver)
    driver.engine.check_invariants()


pytest.importorskip(
  "jetstream",
  reason="google-jetstream is missing: pip install --no-deps "
  "'google-jetstream>=0.2.2,<0.4'",
)


def run(script: str) -> str:
  """What a fresh interpreter prints."""
  return subprocess.run(
    [sys.executable, "-c", textwrap.dedent(script)],
    check=True,
    capture_output=True,
    text=True,
    timeout=120,
  ).stdout.strip()


class JetStreamCompatTest(unittest.TestCase):
  def test_root_logger_and_modules_stay(self):
    found = run("""
      import logging, sys
      logging.getLogger().setLevel(35)
      had_seqio = "seqio" in sys.modules
      from agentrl_jax.rollout.drivers import jetstream
      root = logging.getLogger()
      same = ("seqio" in sys.modules) == had_seqio
      print(root.level, len(root.handlers), same)
    """)
    self.assertEqual(found, "35 0 True")

  def test_deleting_a_prefix_deletes_nothing(self):
    found = run("""
      import jax.numpy as jnp
      from agentrl_jax.rollout.drivers import jetstream
      x = jnp.ones(2)
      jetstream.orchestrator.delete_pytree({"x": x})
      print(x.is_deleted())
    """)
    self.assertEqual(found, "False")

  def test_no_one_else_needs_jetstream(self):
    found = run("""
      import sys
      sys.modules["jetstream"] = None  # as if it were not installed
      from agentrl_jax.rollout.drivers import generator
      from agentrl_jax.rollout.drivers import local as local_driver
      try:
        from agentrl_jax.rollout.drivers import jetstream as jetstream_driver
      except ImportError as error:
        print(error)
    """)
    self.assertIn("pip install --no-deps", found)
    self.assertIn("engine.driver=local", found)


if __name__ == "__main__":
  unittest.main()
