"""Importing JetStream leaves the process as it was."""

import subprocess
import sys
import textwrap
import unittest

import pytest

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
      from agentrl_jax.rollout.drivers import jetstream_compat
      root = logging.getLogger()
      same = ("seqio" in sys.modules) == had_seqio
      print(root.level, len(root.handlers), same)
    """)
    self.assertEqual(found, "35 0 True")

  def test_deleting_a_prefix_deletes_nothing(self):
    found = run("""
      import jax.numpy as jnp
      from agentrl_jax.rollout.drivers import jetstream_compat
      x = jnp.ones(2)
      jetstream_compat.orchestrator.delete_pytree({"x": x})
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
