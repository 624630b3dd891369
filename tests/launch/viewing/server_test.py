import contextlib
import pathlib
import tempfile
import unittest
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from agentrl_jax.http_requests import listen
from launch.viewing.server import Viewer, application
from tests.launch.viewing.a_run import HOSTILE, add_update, make_run

_HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def served(root: pathlib.Path, port: int = 0) -> AsyncIterator[str]:
  """Serves the page of a run; yields its address."""
  runner = web.AppRunner(application(Viewer(root), _HOST), access_log=None)
  await runner.setup()
  try:
    port = await listen(runner, _HOST, port, flags="--port")
    yield f"http://{_HOST}:{port}"
  finally:
    await runner.cleanup()


class ServerTest(unittest.IsolatedAsyncioTestCase):
  @classmethod
  def setUpClass(cls):
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.folder = make_run(pathlib.Path(folder) / "a", updates=2)

  async def asyncSetUp(self):
    self.url = await self.enterAsyncContext(served(self.folder.root))
    self.http = await self.enterAsyncContext(aiohttp.ClientSession())

  async def ask(self, name: str, **options):
    async with self.http.get(f"{self.url}/api/{name}", **options) as answer:
      return answer.status, await answer.json()

  async def test_a_trajectory_has_its_messages_and_tokens(self):
    _, listing = await self.ask("trajectories")
    first = listing["trajectories"][0]
    status, whole = await self.ask(f"trajectories/{first['id']}")
    self.assertEqual(status, 200)
    self.assertEqual(len(whole["turns"]), first["num_turns"])
    sampled = sum(len(turn["sampled"]) for turn in whole["turns"])
    read = sum(len(turn["observation"]) for turn in whole["turns"])
    self.assertEqual(sampled, first["num_sampled"])
    self.assertEqual(sampled + read, first["num_tokens"])
    answers = [m["turn"] for m in whole["messages"] if m["turn"] is not None]
    self.assertEqual(answers, [0, 1, 2])
    self.assertFalse(whole["messages"][4]["calls"][0]["is_json"])
    self.assertIn(HOSTILE, whole["messages"][-1]["calls"][0]["arguments"])
    texts = [text for turn in whole["turns"] for text in turn["sampled"]]
    self.assertTrue(all(texts), texts)  # what has no text is a number

  async def test_trajectories_of_a_later_update_are_listed(self):
    _, before = await self.ask("trajectories")
    add_update(self.folder, 2)
    _, after = await self.ask("trajectories")
    self.assertEqual(
      len(after["trajectories"]), len(before["trajectories"]) + 6
    )
    status, _ = await self.ask("trajectories/000002.0.0")
    self.assertEqual(status, 200)

  async def test_a_list_that_has_not_changed_is_not_sent_again(self):
    async with self.http.get(f"{self.url}/api/trajectories") as answer:
      tag = answer.headers["ETag"]
    async with self.http.get(
      f"{self.url}/api/trajectories", headers={"If-None-Match": tag}
    ) as answer:
      self.assertEqual((answer.status, await answer.read()), (304, b""))

  async def test_says_what_the_run_has_come_to(self):
    _, now = await self.ask("now")
    self.assertEqual((now["name"], now["update"], now["updates"]), ("a", 2, 40))
    self.assertFalse(now["is_finished"])
    self.assertIn("queue filled", now["figures"])
    self.assertEqual(now["stopped"], [])

  async def test_curves_are_drawn(self):
    _, curves = await self.ask("curves")
    self.assertIn("Success by task", [drawing["title"] for drawing in curves])
    self.assertTrue(all(d["svg"].startswith("<svg") for d in curves))

  async def test_an_unknown_trajectory_is_a_sentence(self):
    for id in ("nothing", "..%2Fconfig.0.0", "000001.0.99"):
      status, body = await self.ask(f"trajectories/{id}")
      self.assertEqual(status, 404)
      self.assertIn("message", body)

  async def test_only_the_pages_own_files_are_served(self):
    for path in ("/config.yaml", "/../config.yaml", "/viewer.py", "/page/"):
      async with self.http.get(self.url + path) as answer:
        self.assertEqual(answer.status, 404, path)
    for path in ("/", "/viewer.js"):
      async with self.http.get(self.url + path) as answer:
        self.assertEqual(answer.status, 200, path)
        policy = answer.headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("script-src 'self' 'unsafe", policy)

  async def test_a_page_elsewhere_that_was_pointed_here_is_refused(self):
    status, body = await self.ask("now", headers={"Host": "evil.example"})
    self.assertEqual(status, 403)
    self.assertIn("evil.example", body["message"])
    for host in ("localhost:1", "127.0.0.1", "[::1]:80"):
      status, _ = await self.ask("now", headers={"Host": host})
      self.assertEqual(status, 200, host)

  async def test_nothing_can_be_changed(self):
    for method in ("post", "put", "delete", "patch"):
      async with getattr(self.http, method)(f"{self.url}/api/now") as answer:
        self.assertEqual(answer.status, 405)
