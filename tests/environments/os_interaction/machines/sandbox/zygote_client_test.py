"""Messages to the zygote wait while it is busy, and fail once it has ended."""

import asyncio
import os
import socket
import unittest

from agentrl_jax.errors import EnvironmentFault
from environments.os_interaction.machines.sandbox.zygote_client import (
  MessageSocket,
)


class MessageSocketTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    self.addCleanup(self.theirs.close)
    self.socket = MessageSocket(ours)
    self.addCleanup(self.socket.close)
    self.fd = os.open(os.devnull, os.O_RDONLY)
    self.addCleanup(os.close, self.fd)

  def fill_buffer(self):
    while True:
      try:
        self.socket.send({"text": "x" * 1000})
      except EnvironmentFault:
        return

  async def test_sending_waits_while_the_buffer_is_full(self):
    self.fill_buffer()
    waiting = asyncio.create_task(
      self.socket.send_and_wait({"n": 7}, [self.fd])
    )
    await asyncio.sleep(0)
    self.assertFalse(waiting.done())
    last = b""
    while b'"n": 7' not in last:
      await asyncio.sleep(0)
      self.theirs.setblocking(False)
      try:
        last, fds, _, _ = socket.recv_fds(self.theirs, 1 << 16, 2)
      except BlockingIOError:
        await asyncio.sleep(0.01)
        continue
      for fd in fds:
        os.close(fd)
    await waiting

  async def test_sending_to_an_ended_process_is_a_fault(self):
    self.theirs.close()
    with self.assertRaisesRegex(EnvironmentFault, "no sandbox can be forked"):
      await self.socket.send_and_wait({"n": 7}, [self.fd])
