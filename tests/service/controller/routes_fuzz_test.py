"""Every route of a controller and of a worker, with anything that may come.

A request that is not well formed is answered with a reason and breaks nothing:
others' sessions go on, and the next episode is played.
"""

import asyncio
import dataclasses
import itertools
import pathlib
import random
import re
from unittest import mock

import pytest
from absl.testing import parameterized

from agentrl_jax.bearer_token import bearer
from agentrl_jax.http_requests import SERVICE_LIMITS, HttpLimits
from agentrl_jax.service.controller.access import (
  ROLES,
  Access,
  Role,
  WorkerHosts,
)
from agentrl_jax.service.controller.routes import ControllerApi
from agentrl_jax.service.worker.api import GETTERS, WorkerApi
from agentrl_jax.service.worker.hosting import Host, HostLimits
from tests.clocks import turns_of_the_loop
from tests.env.moody import says
from tests.http_fuzz import Request, mutations
from tests.service.controller.fuzzing import TOKENS, Echo, Rig

PROTOCOL = pathlib.Path(__file__).parents[3] / "docs/protocol.md"


class Limits(HttpLimits):
  """Waits for a body only briefly; a process that stalls may finish a head."""

  def runner_options(self):
    return super().runner_options() | {"lingering_time": 0.5}


LIMITS = Limits(**dataclasses.asdict(SERVICE_LIMITS) | {"body_timeout_s": 0.3})
# Requests that each endpoint answers well. A session's id is filled in.
SESSION = {"session_id": "own"}
HEARTBEAT = {
  "name": "ghost",
  "address": "http://127.0.0.1:9/api",
  "concurrency": 2,
  "indices": [0, "one", 2],
}
CONTROLLER = {
  "list_workers": Request("GET", "/api/list_workers"),
  "list_sessions": Request("GET", "/api/list_sessions"),
  "overview": Request("GET", "/api/overview", query={"name": "target"}),
  "get_indices": Request("GET", "/api/get_indices", query={"name": "target"}),
  "describe": Request(
    "GET", "/api/describe", query={"name": "target", "split": "test"}
  ),
  "version": Request("GET", "/api/version"),
  "start_sample": Request(
    "POST",
    "/api/start_sample",
    body={"name": "target", "index": 0, "wait_s": 0, "split": "test"},
  ),
  "interact": Request(
    "POST", "/api/interact", {"messages": says("hm"), "turn": 1}, SESSION
  ),
  "cancel": Request("POST", "/api/cancel", headers=SESSION),
  "cancel_all": Request("POST", "/api/cancel_all", query={"name": "target"}),
  "cancel_notice": Request("POST", "/api/cancel_notice", headers=SESSION),
  "receive_heartbeat": Request(
    "POST", "/api/receive_heartbeat", body=HEARTBEAT
  ),
  "mark_stale": Request(
    "POST",
    "/api/mark_stale",
    body={"name": "target", "worker_id": 1, "stale": False},
  ),
  "clean_worker": Request("POST", "/api/clean_worker"),
  "clean_session": Request("POST", "/api/clean_session"),
  "sync_all": Request("POST", "/api/sync_all"),
}
FIELDS = ("turn", "seed", "split", "wait_s", "custom_task", "stale", "session")
OPEN = {"/", "/dashboard.css", "/dashboard.js", "/metrics"}
OWN = {"session_id": 7}
RESULTS = [{"status": "completed", "reward": 1.0}] * 2
WORKER = {
  "get_indices": Request("GET", "/api/get_indices"),
  "get_sessions": Request("GET", "/api/get_sessions"),
  "worker_status": Request("GET", "/api/worker_status"),
  "describe": Request("GET", "/api/describe", query={"split": "test"}),
  **{
    name: Request("POST", f"/api/{name}", body=body)
    for name, body in {
      "start_sample": {"session_id": 8, "index": 0, "seed": 3},
      "interact": OWN | {"messages": says("hm"), "turn": 1},
      "sample_status": OWN,
      "cancel": OWN,
      "cancel_with_notice": OWN,
      "calculate_overall": {"name": "target", "results": RESULTS},
    }.items()
  },
}
# These end the sessions of everybody, as they say.
OF_ALL = {"cancel_all", "cancel_all_with_notice"}


def routes_of_controller():
  api = ControllerApi(
    mock.Mock(**{"registry.tasks": {}}), LIMITS, Access(), WorkerHosts()
  )
  routes = api.application().router.routes()
  return {
    (r.method, r.resource.canonical) for r in routes if r.method != "HEAD"
  }


def endpoints_of_worker():
  api = WorkerApi(
    Host(Echo("target"), HostLimits()),
    split="test",
    indices=[0],
    tell_cancelled=None,
  )
  return set(api._handlers)


def changes(request, number):
  """Returns requests with something changed, always the same ones."""
  request = dataclasses.replace(request, others=FIELDS)
  return mutations(request, random.Random(request.path), number, raw=True)


def role_for(endpoint):
  """Returns the role with the most rights that may call an endpoint."""
  return sorted(role.value for role in ROLES[endpoint])[-1]


class FuzzTestCase(parameterized.TestCase):
  """A target to send anything to, and a session of somebody else."""

  access = Access()
  limits = LIMITS

  def setUp(self):
    self.rig = Rig(self.access, http=self.limits)
    self.addCleanup(self.rig.close)
    self.bystanders, _, _ = self.rig.worker("bystander", grpc=True)
    self.bystander, _ = self.rig.start("bystander")
    self.target, self.url, _ = self.rig.worker("target")
    self.own = None

  def check_explained(self, reply, request, key="message"):
    """An error is JSON with a sentence, and never the server's own fault."""
    shown = f"{request} got {reply.status} {reply.content[:300]!r}"
    self.assertEqual(self.rig.troubles(), [], shown)
    self.assertIsNotNone(reply.status, shown)
    self.assertLess(reply.status, 500, shown)
    if request.method == "HEAD" or reply.status < 300:
      return
    is_text = reply.headers["Content-Type"].startswith("text/plain")
    if is_text and reply.status in (400, 417):
      return  # of the HTTP parser, for which it is no request at all
    self.assertIn("application/json", reply.headers["Content-Type"], shown)
    self.assertEqual(list(reply.json), [key], shown)
    message = reply.json[key]
    self.assertIsInstance(message, str, shown)
    self.assertBetween(len(message), 12, 1500, shown)
    self.assertIn(" ", message, shown)

  def check_others_go_on(self):
    reply = self.rig.say(self.bystander, "hm")
    self.assertEqual(reply.status, 200, reply)
    plays = self.bystanders.plays[self.bystander]
    self.assertEqual(set(plays), {"hm"})
    self.assertEqual(reply.json["messages"][0]["content"], f"{len(plays)}: hm")

  def check_an_episode_is_played(self, name="target"):
    stale = {"name": name, "worker_id": 1, "stale": False}
    self.rig.post("mark_stale", stale)
    session, reply = self.rig.start(name, wait_s=10)
    self.assertIsNotNone(session, reply)
    reply = self.rig.say(session, "end", turn=1)
    self.assertEqual(reply.json["reward"], 1.0, reply)

  def own_session(self):
    if self.own is None or str(self.own) not in self.rig.get("list_sessions"):
      self.own, reply = self.rig.start("target", wait_s=10)
      self.assertIsNotNone(self.own, reply)
    return self.own

  def with_session(self, request):
    if request.headers.get("session_id") != "own":
      return request
    own = {"session_id": str(self.own_session())}
    return dataclasses.replace(request, headers=request.headers | own)


class ControllerRoutesTest(FuzzTestCase):
  def test_every_route_has_a_request(self):
    known = {(r.method, r.path) for r in CONTROLLER.values()}
    known |= {("GET", path) for path in OPEN}
    self.assertEqual(routes_of_controller(), known)

  def test_a_few(self):
    for name in CONTROLLER:
      with self.subTest(name):
        self.fuzz(name, 5)

  @parameterized.named_parameters((name, name) for name in CONTROLLER)
  @pytest.mark.slow
  def test_many(self, name):
    self.fuzz(name, 400)

  def fuzz(self, name, number):
    role = role_for(name)

    for request in changes(CONTROLLER[name], number):
      reply = self.rig.send(self.with_session(request), role=role)
      self.check_explained(reply, request)
      if reply.status == 200 and name == "interact":
        # A request that is wrong costs no session its environment.
        self.assertNotEqual(reply.json.get("status"), "task error", request)
    self.check_others_go_on()
    self.check_an_episode_is_played()


class SlowSenderTest(FuzzTestCase):
  limits = dataclasses.replace(LIMITS, head_timeout_s=1.0)

  def test_slow_and_large_requests_are_refused_with_a_reason(self):
    head = b"POST /api/start_sample HTTP/1.1\r\nHost: x\r\n"
    large = f"Content-Length: {LIMITS.max_body + 1}\r\n\r\n".encode()
    slow = b'Content-Length: 99\r\n\r\n{"name":'
    chunked = b"Transfer-Encoding: chunked\r\n\r\n5\r\n"
    # A head that never ends is not answered: the connection is closed.
    cases = [(head + large, 413), (head + slow, 408), (head + chunked, 408)]
    cases += [(b"", None), (b"POST /api/start_sa", None), (head, None)]

    async def send_all(url):
      sent = (self.rig.exchange(content, url=url) for content, _ in cases)
      return await asyncio.gather(*sent)

    for url in (self.rig.addresses.http, self.url):
      replies = self.rig.run(send_all(url))
      for (_, status), reply in zip(cases, replies, strict=True):
        self.assertEqual(reply.status, status, reply)
        if status is not None:
          key = "detail" if url == self.url else "message"
          self.check_explained(reply, CONTROLLER["start_sample"], key)
    self.check_others_go_on()

  def test_a_client_that_hangs_up_leaves_no_traceback(self):
    content = dataclasses.replace(
      CONTROLLER["start_sample"], headers={"Content-Length": "9999"}
    ).encode()
    for url in (self.rig.addresses.http, self.url):
      for length in (10, len(content) - 5, len(content)):
        self.rig.run(self.rig.hang_up(content[:length], url=url))
        self.rig.run(turns_of_the_loop())
    self.assertEqual(self.rig.troubles(), [])
    self.check_others_go_on()


class ControllerWithTokensTest(ControllerRoutesTest):
  access = TOKENS


class OtherPathsTest(FuzzTestCase):
  def test_unknown_paths_are_refused_with_a_reason(self):
    for method, path, is_worker in itertools.product(
      ("GET", "POST", "PUT"),
      ("/nothing", "/api", "/api/", "/api/nothing", "/api/%ff", "/api/a/b"),
      (False, True),
    ):
      request = Request(method, path, body={})
      reply = self.rig.send(request, url=self.url if is_worker else None)
      self.assertIn(reply.status, (404, 405), reply)
      self.check_explained(reply, request, "detail" if is_worker else "message")


class WorkerRoutesTest(FuzzTestCase):
  def test_every_endpoint_has_a_request(self):
    self.assertEqual(endpoints_of_worker(), set(WORKER) | OF_ALL)
    getters = {name for name, r in WORKER.items() if r.method == "GET"}
    self.assertEqual(getters, GETTERS)

  def test_a_few(self):
    for name in WORKER:
      with self.subTest(name):
        self.fuzz(name, 5)

  @parameterized.named_parameters((name, name) for name in WORKER)
  @pytest.mark.slow
  def test_many(self, name):
    self.fuzz(name, 400)

  def fuzz(self, name, number):
    for request in changes(WORKER[name], number):
      for endpoint in ("cancel", "start_sample"):
        body = {"session_id": 7, "index": 0}
        self.rig.send(Request("POST", f"/api/{endpoint}", body), url=self.url)
      reply = self.rig.send(request, url=self.url)
      self.check_explained(reply, request, "detail")
      if reply.status == 200 and name == "interact":
        status = reply.json["env_out"]["status"]
        self.assertNotEqual(status, "task error", request)
    self.check_others_go_on()
    self.check_an_episode_is_played()


def documented_roles():
  """Returns the endpoints of each role, as the protocol's table has them."""
  text = PROTOCOL.read_text("utf-8")
  table = re.findall(r"^\| (client|worker|operator) \| (.+?) \|", text, re.M)
  named = {role: set(re.findall(r"`(\w+)`", cell)) for role, cell in table}
  cells = dict(table)
  if "what a client may" in cells["operator"]:
    named["operator"] |= named["client"]
  if "the lists" in cells["operator"]:
    named["operator"] |= {name for name in CONTROLLER if name[:5] == "list_"}
  return named


class RolesTest(FuzzTestCase):
  access = TOKENS

  def test_the_protocol_names_what_each_role_may_do(self):
    allowed = {
      role.value: {name for name, roles in ROLES.items() if role in roles}
      for role in Role
    }
    self.assertEqual(documented_roles(), allowed)

  def test_a_role_does_its_own_work_and_no_other(self):
    documented = documented_roles()
    for name, role in itertools.product(CONTROLLER, Role):
      with self.subTest(name, role=role):
        request = self.with_session(CONTROLLER[name])
        reply = self.rig.send(request, role=role.value)
        is_allowed = name in documented[role.value]
        self.assertEqual(reply.status, 200 if is_allowed else 401)
        if not is_allowed:
          self.check_explained(reply, request)
    self.check_others_go_on()

  def test_a_wrong_token_opens_nothing(self):
    right = bearer(TOKENS.operator)["Authorization"]
    for wrong, name in itertools.product(
      (
        "",
        "Bearer",
        "Bearer \udcff",
        "\u0662",
        right[:-1],
        right + "x",
        right[7:],
      ),
      CONTROLLER,
    ):
      headers = CONTROLLER[name].headers | {"Authorization": wrong}
      request = dataclasses.replace(CONTROLLER[name], headers=headers)
      reply = self.rig.send(request)
      self.assertIn(reply.status, (400, 401), (request, reply))
      self.check_explained(reply, request)
    self.assertEqual(list(self.rig.get("list_sessions")), [str(self.bystander)])

  def test_a_worker_requires_its_token(self):
    for request in WORKER.values():
      for role in (None, "client", "operator"):
        reply = self.rig.send(request, url=self.url, role=role)
        self.assertEqual(reply.status, 401)
        self.check_explained(reply, request, "detail")
