"""The line to the process that sandboxes are forked from."""

import asyncio
import os
import socket
import unittest

from agentrl_jax.errors import EnvironmentFault
from environments.os_interaction.machines.sandbox.zygote_client import Line


class LineTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    self.addCleanup(self.theirs.close)
    self.line = Line(ours)
    self.addCleanup(self.line.close)
    self.file = os.open(os.devnull, os.O_RDONLY)
    self.addCleanup(os.close, self.file)

  def fill(self):
    """Sends what nobody reads, until no more is taken."""
    while True:
      try:
        self.line.send({"text": "x" * 1000})
      except EnvironmentFault:
        return

  async def test_many_at_once_wait_for_their_turn(self):
    self.fill()
    waiting = asyncio.create_task(self.line.send_in_turn({"n": 7}, [self.file]))
    await asyncio.sleep(0)
    self.assertFalse(waiting.done())
    last = b""
    while b'"n": 7' not in last:
      await asyncio.sleep(0)
      self.theirs.setblocking(False)
      try:
        last, files, _, _ = socket.recv_fds(self.theirs, 1 << 16, 2)
      except BlockingIOError:
        await asyncio.sleep(0.01)
        continue
      for file in files:
        os.close(file)
    await waiting

  async def test_nobody_there_is_a_fault(self):
    self.theirs.close()
    with self.assertRaisesRegex(EnvironmentFault, "no sandbox can be forked"):
      await self.line.send_in_turn({"n": 7}, [self.file])


if __name__ == "__main__":
  unittest.main()
