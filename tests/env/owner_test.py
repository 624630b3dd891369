"""A process is known as gone when it is, and no other is taken for it."""

import socket
import subprocess
import sys
import unittest

from agentrl_jax.env.owner import current_owner, is_gone


class OwnerTest(unittest.TestCase):
  def test_this_process_is_there(self):
    self.assertFalse(is_gone(current_owner()))

  def test_an_ended_process_is_gone(self):
    program = "from agentrl_jax.env import owner; print(owner.current_owner())"
    ended = subprocess.run(
      [sys.executable, "-c", program],
      capture_output=True,
      text=True,
      check=True,
    )
    self.assertTrue(is_gone(ended.stdout.strip()))

  def test_a_later_process_of_the_same_number_is_another(self):
    host, pid, _ = current_owner().split("/", 2)
    self.assertTrue(is_gone(f"{host}/{pid}/earlier"))

  def test_other_hosts_are_not_judged(self):
    self.assertNotEqual(socket.gethostname(), "another")
    self.assertFalse(is_gone("another/1/earlier"))


if __name__ == "__main__":
  unittest.main()
