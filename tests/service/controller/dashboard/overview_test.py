"""The operators' overview, and pages of others that call a controller."""

from unittest import mock

from agentrl_jax.bearer_token import bearer
from agentrl_jax.service.controller.dashboard import overview
from tests.service.controller.fuzzing import TOKENS
from tests.service.controller.main_test import ServiceTestCase, answer


class OverviewTest(ServiceTestCase):
  async def test_says_what_goes_on(self):
    await self.worker(concurrency=3)
    await self.worker(name="other", concurrency=2)
    await self.start(name="other")
    first, second = await self.start(), await self.start()
    await self.post("interact", answer("hm"), session=first)
    for _ in range(2):
      await self.post("interact", answer("end"), session=first)
    _, found = await self.get("overview")
    moody, other = found["tasks"]
    self.assertEqual((moody["name"], moody["waiting"]), ("moody", 0))
    self.assertEqual(moody["ended"], {"completed": 1})
    self.assertEqual(other["ended"], {})
    (worker,) = moody["workers"]
    self.assertEqual((worker["sessions"], worker["capacity"]), (1, 3))
    self.assertEqual(
      (worker["health"], worker["is_draining"]), ("alive", False)
    )
    self.assertEqual((found["turns"], found["refused"]), (2, 1))
    self.assertEqual(found["num_sessions"], 2)
    _, found = await self.get("overview?name=moody")
    (session,) = found["sessions"]
    self.assertEqual((session["id"], session["task"]), (second, "moody"))
    self.assertFalse(session["is_busy"] or session["is_cancelling"])
    self.assertEqual(len(found["tasks"]), 2)

  async def test_of_many_sessions_the_quiet_ones_are_listed(self):
    self.enterContext(mock.patch.object(overview, "MOST_SESSIONS", 2))
    await self.worker(concurrency=4)
    sessions = [await self.start() for _ in range(4)]
    await self.post("interact", answer("hm"), session=sessions[0])
    _, found = await self.get("overview")
    self.assertEqual(found["num_sessions"], 4)
    self.assertEqual([s["id"] for s in found["sessions"]], sessions[1:3])


class ForeignPagesTest(ServiceTestCase):
  """A browser on the operator's machine, that shows a page of somebody else."""

  async def status(self, method, path, **headers):
    address = self.addresses.http.removesuffix("/api")
    async with self.http.request(
      method, f"{address}{path}", headers=headers
    ) as response:
      return response.status

  async def test_may_not_call_a_controller(self):
    await self.worker()
    await self.start()
    cancel = "/api/cancel_all?force=true"
    host = self.addresses.http.removeprefix("http://").removesuffix("/api")
    port = host.rpartition(":")[2]
    renamed = f"evil.example:{port}"
    for headers in (
      {"Origin": "http://evil.example"},
      {"Origin": "null"},  # of a file or a sandboxed frame
      {"Origin": f"http://127.0.0.1:{int(port) + 1}"},
      {"Origin": f"http://{host}.evil.example"},
      {"Sec-Fetch-Site": "cross-site"},
      {"Sec-Fetch-Site": "same-site"},
      # A page whose own name was made to point to this machine.
      {"Host": renamed, "Origin": f"http://{renamed}"},
      {"Host": renamed, "Sec-Fetch-Site": "same-origin"},
    ):
      for method, path in (("POST", cancel), ("GET", "/api/list_sessions")):
        status = await self.status(method, path, **headers)
        self.assertEqual(status, 403, (headers, path))
    self.assertEqual(len(await self.sessions()), 1)

  async def test_its_own_page_and_programs_may(self):
    host = self.addresses.http.removeprefix("http://").removesuffix("/api")
    for headers in (
      {},
      {"Host": "learner-0.internal:5020"},  # a program, by any name
      {"Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"},
      {"Sec-Fetch-Site": "none"},  # typed by the reader
    ):
      self.assertEqual(await self.status("GET", "/", **headers), 200)
      self.assertEqual(
        await self.status("GET", "/api/overview", **headers), 200
      )


class TokenTest(ServiceTestCase):
  access = TOKENS

  async def test_the_page_has_no_secret_and_the_overview_needs_the_token(self):
    address = self.addresses.http
    async with self.http.get(address.removesuffix("api")) as response:
      self.assertEqual(response.status, 200)
      self.assertIn(
        "script-src 'self'", response.headers["Content-Security-Policy"]
      )
    async with self.http.get(f"{address}/overview") as response:
      self.assertEqual(response.status, 401)

  async def test_a_proxy_may_give_it_a_name(self):
    async with self.http.get(
      f"{self.addresses.http}/overview",
      headers={
        "Host": "controller.example",
        "Origin": "https://controller.example",
        **bearer(TOKENS.operator),
      },
    ) as response:
      self.assertEqual(response.status, 200)
