"""A fleet under AgentRL's own controller, as its answers are written.

That controller is a program in another language; here a server of a few lines
answers in its words: it has no queue, no splits, and keeps two fields of a
first report.
"""

import asyncio
import unittest

from aiohttp import web

from agentrl_jax.controller.service.client import ControllerEnvironment
from agentrl_jax.data.messages import Message
from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.errors import ConfigError, EnvironmentFault

REFUSALS = 2  # before there is a place


class AgentRLsController:
  def __init__(self):
    self.asked = []

  def application(self):
    application = web.Application()
    application.router.add_get("/api/get_indices", self.get_indices)
    application.router.add_post("/api/start_sample", self.start_sample)
    application.router.add_post("/api/interact", self.interact)
    application.router.add_post("/api/cancel", self.cancel)
    return application

  async def get_indices(self, request):
    if request.query["name"] != "os-std":
      message = f"task {request.query['name']} does not exist"
      return web.json_response({"message": message}, status=400)
    return web.json_response(["a/1", "a/2", -1])

  async def start_sample(self, request):
    self.asked.append(await request.json())
    if len(self.asked) <= REFUSALS:
      message = "no workers available for task os-std"
      return web.json_response({"message": message}, status=400)
    return web.json_response(
      {"messages": [{"role": "user", "content": "Well?"}], "tools": None},
      headers={"Session_id": "7"},
    )

  async def interact(self, request):
    body = await request.json()
    self.asked.append((request.headers["session_id"], body))
    if body["messages"][0]["content"] == "break":
      message = "failed to interact with session"
      return web.json_response({"message": message}, status=500)
    return web.json_response(
      {
        "finish": True,
        "reward": 0.5,
        "status": "task limit reached",
        "messages": None,
        "metrics": None,
      }
    )

  async def cancel(self, request):
    self.asked.append(("cancel", request.headers["session_id"]))
    return web.json_response(None)


class FleetElsewhereTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.controller = AgentRLsController()
    runner = web.AppRunner(self.controller.application())
    await runner.setup()
    self.addAsyncCleanup(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api"
    self.fleet = self.make(tasks={"test": "os-std"})

  def make(self, **options):
    return ControllerEnvironment(
      controller=self.url, name="os", ready_s=0, **options
    )

  async def test_an_attempt(self):
    self.assertEqual(
      await asyncio.to_thread(self.fleet.indices, "test"), (0, 1)
    )
    async with self.fleet.open(Task("os", "test", 1), seed=3) as session:
      self.assertEqual(session.tools, ())
      first = await session.reset()
      last = await session.step(Message("assistant", "hm"))
    self.assertEqual(first.messages, (Message("user", "Well?"),))
    self.assertIs(first.status, Status.RUNNING)
    self.assertIs(last.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual((last.messages, last.reward, last.metrics), ((), 0.5, {}))
    *starts, played = self.controller.asked
    self.assertEqual(len(starts), REFUSALS + 1)  # it was asked again
    self.assertEqual((starts[0]["name"], starts[0]["index"]), ("os-std", 1))
    self.assertNotIn("split", starts[0])
    answer = {"role": "assistant", "content": "hm"}
    self.assertEqual(played, ("7", {"messages": [answer]}))

  async def test_what_breaks_is_a_fault_and_is_cancelled(self):
    with self.assertRaisesRegex(EnvironmentFault, "failed to interact"):
      async with self.fleet.open(Task("os", "test", 0), seed=0) as session:
        await session.step(Message("assistant", "break"))
    self.assertEqual(self.controller.asked[-1], ("cancel", "7"))

  async def test_nobody_serves_it(self):
    with self.assertRaisesRegex(ConfigError, "does not exist"):
      fleet = self.make(tasks={"test": "db-std"})
      await asyncio.to_thread(fleet.indices, "test")
    with self.assertRaisesRegex(ConfigError, "tasks={split: task}"):
      await asyncio.to_thread(self.make().indices, "test")


if __name__ == "__main__":
  unittest.main()
