"""Tests that the client reports what a faulty server answers."""

import unittest

import aiohttp
from aiohttp import test_utils, web

from agentrl_jax.data.records import Message
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.protocol.client import ClientDeadlines, WorkerClient
from agentrl_jax.service.protocol.link import WorkerFull, WorkerRefusal


class WorkerClientTest(unittest.IsolatedAsyncioTestCase):
  """Asks a real HTTP server, whose replies each test sets."""

  async def asyncSetUp(self):
    application = web.Application()
    application.router.add_route("*", "/api/{path}", self.answer)
    server = await self.enterAsyncContext(test_utils.TestServer(application))
    self.http = await self.enterAsyncContext(aiohttp.ClientSession())
    self.client = WorkerClient(
      self.http, str(server.make_url("/api/")), ClientDeadlines()
    )

  async def answer(self, request):
    status, text = self.says
    return web.Response(status=status, text=text)

  def interact(self):
    return self.client.interact(7, Message("assistant", "hm"))

  async def test_faults_show_replies_outside_the_protocol(self):
    for text, words in (
      ("<html>", "cannot be asked"),
      ("null", "None, which is not AgentRL's"),
      ("{}", "{}, which is not AgentRL's"),
      ('{"env_out": {"messages": [], "status": "odd"}}', "odd.*not AgentRL's"),
      ('{"env_out": {"messages": [{"role": "x"}]}}', "not AgentRL's"),
      ('{"env_out": {"messages": 3}}', "not AgentRL's"),
    ):
      with (
        self.subTest(text=text),
        self.assertRaisesRegex(EnvironmentFault, words),
      ):
        self.says = (200, text)
        await self.interact()

  async def test_refusals_are_told_apart(self):
    for status, kind in (
      (406, WorkerFull),
      (400, WorkerRefusal),
      (404, WorkerRefusal),
      (500, EnvironmentFault),
    ):
      with self.subTest(status=status):
        self.says = (status, '{"detail": "the reason"}')
        with self.assertRaisesRegex(EnvironmentFault, "the reason") as caught:
          await self.interact()
        self.assertIs(type(caught.exception), kind)

  async def test_an_unexplained_task_error_says_where_to_look(self):
    self.says = (200, '{"env_out": {"messages": [], "status": "task error"}}')
    with self.assertRaisesRegex(EnvironmentFault, "'task error'.*see its log"):
      await self.interact()

  async def test_a_closed_connection_pool_is_a_fault(self):
    await self.http.close()
    with self.assertRaisesRegex(EnvironmentFault, "given up"):
      await self.interact()
