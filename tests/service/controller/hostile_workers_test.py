"""Workers that send anything at all: others' sessions go on.

A worker has the right token and may still be broken: it may send frames that
are none, take the name, address or sessions of others, and answer nonsense.
"""

import asyncio
import contextlib
import gzip
import json
import threading
from unittest import mock

import grpc.aio
import pytest
from absl.testing import parameterized
from aiohttp import test_utils, web

from agentrl_jax.http_requests import SERVICE_LIMITS
from agentrl_jax.service.controller.registry import Timers
from agentrl_jax.service.protocol import grpc_wire, link
from tests.clocks import turns_of_the_loop, until
from tests.http_fuzz import STRANGE, Raw, Request, dump
from tests.service.controller.fuzzing import Rig

ME = {"name": "mine", "concurrency": 2, "indices": [0]}
FIRST = {"messages": [{"role": "user", "content": "Well?"}], "tools": []}
DEEP = Raw("[" * 5000 + "]" * 5000)
ODD_ANSWERS = (
  None,
  [],
  0,
  "text",
  {},
  {"messages": 5},
  {"messages": "text"},
  Raw(""),
  Raw("{"),
  Raw("NaN"),
  Raw('"\\ud800"'),
  DEEP,
  Raw("1" * 5000),
  *({"env_out": x} for x in (None, [], {}, 5, DEEP)),
  *(FIRST | {"status": x} for x in (None, [], {}, 7, "odd", "completed")),
  *(
    FIRST | {"status": "completed", "reward": x}
    for x in ("much", [], Raw("1" * 400), Raw("-1e400"), Raw("NaN"), True)
  ),
  *(FIRST | {"tools": x} for x in ("text", 5, {"a": DEEP}, [DEEP])),
  *(FIRST | {"metric": x} for x in ("text", 5, [1], DEEP)),
)
MOST = SERVICE_LIMITS.max_body
# With the first report, reports from which a client could not go on.
UNUSABLE = (
  *({"reward": x} for x in ("lots", Raw("NaN"), Raw("1e999"), [], {})),
  *({"status": x, "finish": True} for x in ("won", 7, None, ["completed"])),
  *({"status": "completed", "reward": x} for x in ("1", Raw("-1e400"))),
  *({"finish": x} for x in (True, 1, "yes")),
  *({"metric": x} for x in ({"a": Raw("NaN")}, {"a": {"b": Raw("1e999")}})),
  *({"messages": x} for x in (5, "text", [5], [{}], [{"content": "a"}])),
  {"messages": [{"role": "user", "content": "a"}] * 1025},
  {"messages": [{"role": "user", "content": {"a": 1}}]},
  {"messages": [{"role": "user", "content": ["a", {"type": "image"}]}]},
  *({"tools": x} for x in ("text", [5], [{}] * 1025)),
  {"messages": [], "status": "running"},
)
ODD_LISTS = (
  *({"1": x} for x in (None, {}, [], Raw("NaN"), DEEP, True)),
  [],
  "text",
  7,
  {"x": 0},
  {"-1": 0},
  {"9" * 5000: 0},
  {"": 0},
)


def bare(kind, id="", **body):
  """Returns an envelope with a body of a kind, or with none."""
  envelope = grpc_wire.Envelope(id=id)
  if kind:
    getattr(envelope, kind).SetInParent()
    for key, value in body.items():
      setattr(getattr(envelope, kind), key, value)
  return envelope


class HostileTestCase(parameterized.TestCase):
  """An honest worker of each kind, each with a session."""

  def setUp(self):
    # The evil worker sends one heartbeat, and has to outlive all its answers.
    self.rig = Rig(timers=Timers(queue_s=0.2, coma_s=120.0))
    self.addCleanup(self.rig.close)
    self.sessions = {}
    for name in ("http", "grpc"):
      echo, _, _ = self.rig.worker(name, grpc=name == "grpc", concurrency=2)
      session, reply = self.rig.start(name)
      self.assertIsNotNone(session, reply)
      self.sessions[name] = (session, echo)

  def check_others_go_on(self):
    for name, (session, echo) in self.sessions.items():
      reply = self.rig.say(session, "hm")
      self.assertEqual(reply.status, 200, (name, reply))
      self.assertEqual(set(echo.plays[session]), {"hm"})
      another, reply = self.rig.start(name, wait_s=10)
      self.assertIsNotNone(another, reply)
      self.assertEqual(self.rig.say(another, "end").json["reward"], 1.0)
    for path in ("list_workers", "list_sessions", "overview"):
      self.rig.get(path)
    reply = self.rig.send(Request("GET", "/metrics"))
    self.assertEqual(reply.status, 200)
    self.assertEqual(self.rig.troubles(), [])

  async def stream(self, *frames, reads=False):
    """Opens a stream, writes frames, each an envelope or bytes, and ends it."""
    address = self.rig.addresses.grpc.removeprefix("grpc://")
    async with grpc.aio.insecure_channel(address) as channel:
      call = channel.stream_stream(
        f"/{grpc_wire.SERVICE}/{grpc_wire.METHOD}",
        request_serializer=lambda frame: (
          frame if isinstance(frame, bytes) else frame.SerializeToString()
        ),
        response_deserializer=grpc_wire.Envelope.FromString,
      )()
      with contextlib.suppress(*grpc_wire.BROKEN):
        for frame in frames:
          await call.write(frame)
        if reads:
          async with asyncio.timeout(0.5):
            return await call.read()
        await call.done_writing()
        async with asyncio.timeout(5):
          async for _ in call:
            pass
    return None

  def heartbeat(self, **changes):
    body = ME | {"address": "http://127.0.0.1:9/api"} | changes
    return self.rig.post("receive_heartbeat", body)


class HeartbeatTest(HostileTestCase):
  def test_the_address_of_a_live_worker_is_refused(self):
    for name in ("http", "grpc"):
      tasks = self.rig.get("list_workers")
      (address,) = [w["address"] for w in tasks[name]["workers"].values()]
      reply = self.heartbeat(address=address)
      self.assertEqual(reply.status, 400, reply)
    self.check_others_go_on()
    self.assertNotIn("mine", self.rig.get("list_workers"))

  def test_odd_names_are_shown_as_they_are(self):
    for n, name in enumerate(("<b>", 'a"b\\', "__proto__", "x" * 100)):
      address = f"http://127.0.0.1:{n + 1}/api"
      self.assertEqual(self.heartbeat(name=name, address=address).status, 200)
      self.assertIn(name, self.rig.get("list_workers"))
    self.check_others_go_on()


class NoticeTest(HostileTestCase):
  def open_sessions(self):
    return set(map(int, self.rig.get("list_sessions")))

  def test_a_notice_ends_no_session_of_another_worker(self):
    mine = {session for session, _ in self.sessions.values()}
    for session, _ in self.sessions.values():
      reply = self.rig.post("cancel_notice", session=session)
      self.assertEqual(reply.status, 200)
      notice = grpc_wire.cancel_notice(session)
      self.rig.run(self.stream(notice))
      self.rig.run(self.stream(grpc_wire.heartbeat("me", ME), notice))
    self.assertEqual(self.open_sessions(), mine)
    self.check_others_go_on()


class FrameTest(HostileTestCase):
  ODD = (
    ("empty", bare("")),
    ("no_protobuf", b"\xff\xff\xff"),
    ("no_text", b"\x0a\x02\xff\xff"),
    ("cut", grpc_wire.heartbeat("me", ME).SerializeToString()[:-3]),
    ("heartbeat_without_anything", bare("heartbeat")),
    ("heartbeat_without_id", grpc_wire.heartbeat("", ME)),
    (
      "heartbeat_without_indices",
      grpc_wire.heartbeat("x", ME | {"indices": []}),
    ),
    (
      "heartbeat_with_nothing",
      grpc_wire.heartbeat("x", ME | {"concurrency": 0}),
    ),
    ("answer_never_asked_for", bare("response", "no-such-id", code=200)),
    ("answer_without_id", bare("response")),
    ("request_of_the_controllers", bare("request", "x", endpoint="cancel_all")),
    ("notice_of_nothing", bare("cancel_notice")),
    ("notice_below_zero", bare("cancel_notice", session_id=-(2**63))),
  )

  def test_a_frame_that_no_worker_sends(self):
    for name, frame in self.ODD:
      with self.subTest(name):
        self.rig.run(self.stream(frame, frame))
        self.rig.run(self.stream(grpc_wire.heartbeat("me", ME), frame, frame))
        tasks = self.rig.get("list_workers")
        self.assertLessEqual(set(tasks), {"http", "grpc", "mine"})
        for worker in tasks.get("mine", {"workers": {}})["workers"].values():
          self.assertEqual(worker["address"], "grpc://me")
        self.check_others_go_on()

  def test_a_stream_is_one_worker(self):
    with self.assertLogs("agentrl_jax.service.controller", "WARNING") as log:
      self.rig.run(
        self.stream(
          *(grpc_wire.heartbeat(f"me-{n}", ME) for n in range(20)), reads=True
        )
      )
    self.assertIn("me-1", "\n".join(log.output))
    workers = self.rig.get("list_workers")["mine"]["workers"].values()
    self.assertEqual({w["address"] for w in workers}, {"grpc://me-0"})
    self.check_others_go_on()


class AnswerTest(HostileTestCase):
  """A worker that registers well, and answers what it likes."""

  def setUp(self):
    super().setUp()
    self.held = {}  # its answer to get_sessions
    self.answer = dump({})
    self.code, self.kind = 200, "application/json"
    self.location = "http://127.0.0.1:9/api"
    self.coding = ""

  async def serve_http(self):
    async def answer(request):
      content, code, headers = self.next_answer(request.match_info["endpoint"])
      headers |= {"Content-Type": self.kind}
      return web.Response(body=content, status=code, headers=headers)

    application = web.Application()
    application.router.add_route("*", "/api/{endpoint}", answer)
    server = test_utils.TestServer(application)
    await self.rig._stack.enter_async_context(server)
    return str(server.make_url("/api"))

  def test_a_worker_redirects_the_controller_nowhere(self):
    self.register()
    called = []

    async def serve_secret():
      async def answer(request):
        called.append(request.path)
        return web.json_response({"secret": 1})

      server = test_utils.RawTestServer(answer)
      await self.rig._stack.enter_async_context(server)
      return str(server.make_url("/secret"))

    self.location = self.rig.run(serve_secret())
    for self.code in (301, 302, 303, 307, 308):
      _, reply = self.rig.start("evil-http")
      self.assertEqual(reply.status, 500)
      self.assertIn(f"HTTP {self.code}", reply.json["message"])
    self.assertEqual(called, [])

  def next_answer(self, endpoint):
    if endpoint == "get_sessions":
      return dump(self.held), 200, {}
    if endpoint.startswith("cancel"):
      return b"{}", 200, {}
    headers = {"Location": self.location}
    if self.coding:
      headers["Content-Encoding"] = self.coding
    return self.answer, self.code, headers

  async def answer_stream(self, call):
    async for envelope in call:
      content, code, _ = self.next_answer(envelope.request.endpoint)
      reply = grpc_wire.response(envelope.id, code, None)
      reply.response.json = content
      await call.write(reply)

  async def serve_grpc(self):
    channel = grpc_wire.channel(self.rig.addresses.grpc.removeprefix("grpc://"))
    call = grpc_wire.dial(channel)
    await call.write(
      grpc_wire.heartbeat("me", ME | {"name": "evil-grpc", "concurrency": 9999})
    )
    task = asyncio.create_task(self.answer_stream(call))

    async def close():
      task.cancel()
      await asyncio.gather(task, return_exceptions=True)
      await channel.close()

    self.rig._stack.push_async_callback(close)

  def register(self):
    url = self.rig.run(self.serve_http())
    self.rig.run(self.serve_grpc())
    reply = self.heartbeat(name="evil-http", address=url, concurrency=9999)
    self.assertEqual(reply.status, 200)

    async def are_alive():
      alive = {task for task, _ in await self.rig._alive()}
      return {"evil-http", "evil-grpc"} <= alive

    self.rig.run(until(are_alive))

  def ask_each(self, kinds=("evil-http", "evil-grpc"), wait_s=0):
    """Starts and plays at both; checks that each answer is explained."""
    for name in kinds:
      good, self.answer = self.answer, dump(FIRST)
      code, self.code = self.code, 200
      session, reply = self.rig.start(name, wait_s=10)
      self.assertIsNotNone(session, reply)
      self.answer, self.code = good, code
      for reply in (
        self.rig.say(session, "hm"),
        self.rig.start(name, wait_s=wait_s)[1],
        self.rig.send(
          Request("GET", "/api/describe", query={"name": name, "split": "test"})
        ),
      ):
        self.assertIn(reply.status, (200, 400, 500), reply)
        value = json.loads(reply.content)
        if reply.status != 200:
          self.assertEqual(list(value), ["message"])
          self.assertLess(len(value["message"]), 2000)
      self.assertEqual(self.rig.troubles(), [])

  def test_an_odd_answer(self):
    self.register()
    for answer in ODD_ANSWERS:
      with self.subTest(answer=str(answer)[:80]):
        self.answer = dump(answer)
        self.ask_each()
        self.check_others_go_on()

  def test_a_report_that_no_client_can_use_ends_its_session(self):
    """Both as the first report and as a later one, at both doors."""
    self.register()
    for changes in UNUSABLE:
      for name in ("evil-http", "evil-grpc"):
        self.answer = dump(FIRST)
        session, reply = self.rig.start(name, wait_s=10)
        self.assertIsNotNone(session, reply)
        report = FIRST | changes
        self.answer = dump(report | {"env_out": report})
        for reply in (self.rig.say(session, "hm"), self.rig.start(name)[1]):
          with self.subTest(str(changes)[:60], name=name):
            self.assertEqual(reply.status, 500, reply)
            self.assertIn("worker", reply.json["message"])

    for entry in self.rig.get("list_sessions").values():
      self.assertTrue(entry["cancelling"] or entry["name"] in ("http", "grpc"))
    self.check_others_go_on()

  def test_an_answer_has_a_maximum_size_after_decompression(self):
    self.register()
    large = dump(
      FIRST | {"messages": [{"role": "user", "content": "a" * MOST}]}
    )
    for name, self.answer, self.coding in (
      ("evil-http", large, ""),
      ("evil-http", gzip.compress(large), "gzip"),
      ("evil-http", large, "br"),
      ("evil-grpc", large, ""),
    ):
      _, reply = self.rig.start(name, wait_s=10)
      self.assertEqual(reply.status, 500, reply)
      self.assertIn("worker", reply.json["message"])
    self.answer, self.coding = gzip.compress(dump(FIRST)), "gzip"
    session, reply = self.rig.start("evil-http", wait_s=10)
    self.assertIsNotNone(session, reply)
    self.check_others_go_on()

  def test_a_long_answer_is_parsed_beside_the_event_loop(self):
    self.register()
    threads = []
    parse = link.parse_answer

    def noted(content):
      threads.append((len(content) > 1 << 16, threading.current_thread()))
      return parse(content)

    with mock.patch.object(link, "parse_answer", noted):
      for content in ("a", "a" * (1 << 17)):
        message = {"role": "user", "content": content}
        self.answer = dump(FIRST | {"messages": [message]})
        for name in ("evil-http", "evil-grpc"):
          session, reply = self.rig.start(name, wait_s=10)
          self.assertIsNotNone(session, reply)
          self.assertEqual(reply.json["messages"], [message])
    beside = [(is_long, t.name.startswith("asyncio")) for is_long, t in threads]
    self.assertGreater(sum(is_long for is_long, _ in beside), 1)
    self.assertTrue(all(is_long == thread for is_long, thread in beside))

  @parameterized.parameters(
    *(
      (code, b"{}" if code != 204 else b"", "application/json")
      for code in (201, 204, 302, 307, 400, 404, 418, 500, 503, 599)
    ),
    (500, b"\xff" * 99, "text/html; charset=hex"),
    (500, b"\xff" * 99, "text/plain; charset=punycode"),
    (500, b"\xff" * 99, "x"),
    (500, b"\xff" * 99, "a;charset="),
  )
  def test_an_odd_status_or_type(self, code, answer, kind):
    self.register()
    self.code, self.answer, self.kind = code, answer, kind
    self.ask_each()
    self.check_others_go_on()

  def test_an_odd_list_of_sessions(self):
    self.register()
    for self.held in ODD_LISTS:
      with self.subTest(held=str(self.held)[:80]):
        self.rig.post("sync_all")
        self.rig.run(turns_of_the_loop(500))
        self.check_others_go_on()

  def test_another_workers_sessions_are_not_taken_over(self):
    self.register()
    self.held = {str(session): 0 for session, _ in self.sessions.values()}
    self.rig.post("sync_all")
    self.rig.run(turns_of_the_loop(500))
    listed = self.rig.get("list_sessions")
    for name, (session, _) in self.sessions.items():
      self.assertEqual(listed[str(session)]["name"], name)
    self.check_others_go_on()

  @pytest.mark.slow
  def test_many_odd_answers(self):
    self.register()
    for strange in STRANGE:
      for key in ("env_out", "messages", "status", "reward", "tools", ""):
        report = FIRST | {key: strange} if key else strange
        self.answer = dump({**report, "env_out": report} if key else report)
        self.ask_each()
    self.check_others_go_on()
