"""A controller and its workers, in one process, over real HTTP and gRPC."""

import asyncio
import itertools
import unittest
from unittest import mock

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from agentrl_jax.bearer_token import bearer
from agentrl_jax.data.records import Message, Task
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.controller import dispatcher
from agentrl_jax.service.controller import main as service
from agentrl_jax.service.controller.access import ROLES, Access
from agentrl_jax.service.controller.capacity import MAX_WAITING
from agentrl_jax.service.controller.client import ControllerEnvironment
from agentrl_jax.service.controller.main import ServiceConfig
from agentrl_jax.service.controller.metrics import ControllerMetrics
from agentrl_jax.service.controller.registry import Timers
from agentrl_jax.service.worker import api, heartbeat
from agentrl_jax.service.worker import grpc as grpc_worker
from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import WorkerConfig
from agentrl_jax.service.worker.main import serve as serve_worker
from tests.clocks import Clock, until
from tests.env.moody import SAY, SHOUT, Moody, says
from tests.service.controller.fuzzing import TOKENS


def answer(words):
  return {"messages": says(words)}


async def until_logged(log, words=""):
  async with asyncio.timeout(10):
    # Nothing announces it.
    while not any(words in line for line in log.output):  # noqa: ASYNC110
      await asyncio.sleep(0.01)


class ServiceTestCase(unittest.IsolatedAsyncioTestCase):
  """A controller with workers of either kind, and a client's requests."""

  timers = Timers(queue_s=5.0)
  access = Access()
  max_waiting = MAX_WAITING

  async def asyncSetUp(self):
    self.enterContext(mock.patch.object(grpc_worker, "PAUSE_S", 0.02))
    self.enterContext(mock.patch.dict("os.environ", CLIENT=self.access.client))
    for module in (grpc_worker, heartbeat):
      self.enterContext(mock.patch.object(module, "PERIOD_S", 0.05))
    self.http = await self.enterAsyncContext(aiohttp.ClientSession())
    self.addresses = await self.enterAsyncContext(
      service.serve(
        ServiceConfig(
          port=0, grpc_port=0, access=self.access, max_waiting=self.max_waiting
        ),
        self.timers,
      )
    )

  async def worker(self, *, grpc=False, concurrency=4, **config):
    """Registers a worker; its environment, and its own URL."""
    moody = Moody()
    controller = self.addresses.grpc if grpc else self.addresses.http
    url = await self.enterAsyncContext(
      serve_worker(
        moody,
        WorkerConfig(port=0, controller=controller, **config),
        HostLimits(concurrency=concurrency),
      )
    )
    task = config.get("name", "moody")
    num_workers = len(await self.alive(task)) + 1

    async def is_registered():
      return len(await self.alive(task)) == num_workers

    await until(is_registered)
    return moody, url

  async def alive(self, task):
    _, tasks = await self.get("list_workers")
    workers = tasks.get(task, {"workers": {}})["workers"].values()
    return [w for w in workers if w["status"] == "ALIVE"]

  async def get(self, path):
    async with self.http.get(f"{self.addresses.http}/{path}") as response:
      return response.status, await response.json()

  async def post(self, path, body=None, *, session=None):
    headers = {} if session is None else {"session_id": str(session)}
    async with self.http.post(
      f"{self.addresses.http}/{path}", json=body, headers=headers
    ) as response:
      return response.status, await response.json()

  async def start(self, *, name="moody", index=0, **more):
    """Returns the session's id from the header, or status and message."""
    async with self.http.post(
      f"{self.addresses.http}/start_sample",
      json={"name": name, "index": index, **more},
    ) as response:
      if response.ok:
        return int(response.headers["session_id"])
      return response.status, (await response.json())["message"]

  async def sessions(self):
    return (await self.get("list_sessions"))[1]

  async def until_free(self, *environments):
    async def are_free():
      return not (
        any(e.num_open for e in environments) or await self.sessions()
      )

    await until(are_free)


class ControllerApiTest(ServiceTestCase):
  async def test_an_episode_word_for_word(self):
    for grpc in (False, True):
      name = f"moody-{grpc}"
      with self.subTest(grpc=grpc):
        moody, _ = await self.worker(grpc=grpc, name=name)
        request = {"name": name, "index": 0}
        status, body = await self.post("start_sample", request)
        self.assertEqual(status, 200)
        (session,) = map(int, await self.sessions())
        self.assertEqual(
          body["messages"], [{"role": "user", "content": "Well?"}]
        )
        self.assertEqual(body["tools"][0]["function"]["name"], "say")
        shown = (await self.sessions())[str(session)]
        self.assertEqual(
          {key: shown[key] for key in ("name", "index", "worker_id")},
          {"name": name, "index": 0, "worker_id": 1},
        )
        running = {"finish": False, "reward": 0, "status": "running"}
        running["messages"] = [{"role": "user", "content": "You say hm."}]
        ended = {"finish": True, "reward": 1.0, "status": "completed"}
        for words, expected in (
          ("hm", running | {"metrics": {}}),
          ("end", ended | {"messages": [], "metrics": {"words": 2.0}}),
        ):
          reply = await self.post("interact", answer(words), session=session)
          self.assertEqual(reply, (200, expected))
        self.assertEqual(await self.sessions(), {})
        status, _ = await self.post("interact", answer("hm"), session=session)
        self.assertEqual(status, 400)

  async def test_tools_that_come_on_the_way_are_told_of_once(self):
    await self.worker()
    session = await self.start()
    tool_names = []
    for word in ("hm", "more", "hm"):
      _, body = await self.post("interact", answer(word), session=session)
      tool_names.append([t["function"]["name"] for t in body.get("tools", ())])
    self.assertEqual(tool_names, [[], ["say", "shout"], []])
    environment = ControllerEnvironment(
      controller=self.addresses.http, name="moody"
    )
    async with environment.open(Task("moody", "test", 0), seed=0) as session:
      await session.reset()
      await session.step(Message("assistant", "more"))
      self.assertEqual(session.tools, (SAY, SHOUT))

  async def test_says_what_there_is(self):
    await self.worker(num_indices=2)
    _, tasks = await self.get("list_workers")
    shown = tasks["moody"]["workers"]["1"]
    self.assertEqual(tasks["moody"]["indices"], [0, 1])
    self.assertEqual(
      {key: shown[key] for key in ("id", "capacity", "current", "status")},
      {"id": 1, "capacity": 4, "current": 0, "status": "ALIVE"},
    )
    self.assertFalse(shown["stale"] or shown["locked"])
    self.assertEqual(await self.get("get_indices?name=moody"), (200, [0, 1]))
    train = {"name": "moody", "split": "train", "indices": {"list": [7]}}
    for path, expected in (
      ("describe?name=moody&split=train", train),
      ("version", {"variant": "nova", "version": 1}),
    ):
      self.assertEqual(await self.get(path), (200, expected))
    for path in ("get_indices?name=x", "describe?name=x&split=test"):
      status, body = await self.get(path)
      self.assertEqual(status, 400)
      self.assertEqual(body["message"], "task x does not exist")

  async def test_bad_requests_are_explained(self):
    await self.worker(num_indices=2)
    session = await self.start()
    start = {"name": "moody", "index": 0}
    unknown = {"name": "x", "index": 0, "wait_s": 0}
    for path, body, id, words in (
      ("start_sample", {"index": 0}, None, "name must be a text"),
      ("start_sample", {"name": "moody"}, None, "index must be"),
      ("start_sample", start | {"index": 99}, None, "not support index 99"),
      ("start_sample", start | {"index": -1}, None, "no custom task provided"),
      ("start_sample", unknown, None, "task x does not exist"),
      ("start_sample", start | {"split": "dev"}, None, "no split 'dev'"),
      ("start_sample", start | {"wait_s": -1}, None, "a number of seconds"),
      ("interact", answer("hm"), 99, "session 99 not found"),
      ("interact", answer("hm"), None, "invalid session id"),
      ("interact", {"messages": []}, session, "assistant message"),
      ("interact", [], session, "must be a JSON object"),
      ("cancel", None, 99, "session 99 not found"),
      ("mark_stale", {"name": "moody", "worker_id": 9}, None, "does not exist"),
      ("receive_heartbeat", {}, None, "needs a task's name"),
    ):
      with self.subTest(path=path, body=body):
        status, reply = await self.post(path, body, session=id)
        self.assertEqual(status, 400)
        self.assertIn(words, reply["message"])
    status, _ = await self.post("interact", answer("hm"), session=session)
    self.assertEqual(status, 200)

  async def test_splits_and_seeds_reach_our_workers(self):
    moody, _ = await self.worker(grpc=True)
    await self.start(index=7, split="train", seed=3)
    session = await self.start()
    self.assertEqual(moody.seeds, [3, session])

  async def test_a_custom_task_with_an_index_is_left_out(self):
    await self.worker()
    self.assertIsInstance(await self.start(custom_task={"a": 1}), int)

  async def test_a_worker_that_knows_no_notices_is_asked_to_cancel(self):
    for n, refusal in enumerate((ValueError("no"), EnvironmentFault("no"))):
      with (
        self.subTest(refusal=refusal),
        mock.patch.object(
          api.WorkerApi, "_cancel_with_notice", side_effect=refusal
        ),
      ):
        moody, _ = await self.worker(concurrency=1, name=f"moody-{n}")
        session = await self.start(name=f"moody-{n}")
        await self.post("cancel", session=session)
        await self.until_free(moody)

  async def test_a_failed_cancellation_is_repeated(self):
    moody, _ = await self.worker()
    session = await self.start()
    with (
      mock.patch.object(
        api.WorkerApi, "_read_session", side_effect=EnvironmentFault("not now")
      ),
      self.assertLogs(
        "agentrl_jax.service.controller.reconciler", "WARNING"
      ) as log,
    ):
      await self.post("cancel", session=session)
      await until_logged(log)
    self.assertIn(f"session {session} may not be free", log.output[0])
    self.assertEqual(moody.num_open, 1)
    await self.post("sync_all")
    await self.until_free(moody)

  async def test_a_session_that_only_its_worker_holds_is_freed(self):
    moody, url = await self.worker()
    session = await self.start()
    await self.post("interact", answer("end"), session=session)
    body = {"session_id": session, "index": 0}
    async with self.http.post(f"{url}/start_sample", json=body) as response:
      self.assertEqual(response.status, 200)
    with self.assertLogs(
      "agentrl_jax.service.controller.reconciler", "WARNING"
    ) as log:
      await self.post("sync_all")
      await self.until_free(moody)
    self.assertIn(f"still holds session {session}", log.output[0])

  async def test_cancelling_all_asks_which(self):
    one, _ = await self.worker(name="one")
    two, _ = await self.worker(name="two", grpc=True)
    for name in ("one", "one", "two", "two"):
      await self.start(name=name)
    self.assertEqual((await self.post("cancel_all"))[0], 403)
    self.assertEqual((one.num_open, two.num_open), (2, 2))
    self.assertEqual((await self.post("cancel_all?name=one"))[0], 200)
    await until(lambda: not one.num_open)
    self.assertEqual(two.num_open, 2)
    self.assertEqual((await self.post("cancel_all?force=true"))[0], 200)
    await self.until_free(one, two)

  async def test_a_client_that_hangs_up_leaves_no_session_behind(self):
    moody, _ = await self.worker()

    async def play(index):
      session = await self.start(index=index)
      await self.post("interact", answer("hang"), session=session)

    for index in (4, 0):  # as it starts; as it plays
      playing = asyncio.create_task(play(index))
      await until(lambda: moody.num_hanging)
      playing.cancel()
      with self.assertRaises(asyncio.CancelledError):
        await playing
      await self.until_free(moody)

  async def test_only_one_answer_at_a_time(self):
    moody, _ = await self.worker()
    session = await self.start()
    slow = asyncio.create_task(
      self.post("interact", answer("hang"), session=session)
    )

    async def is_busy():
      return (await self.sessions())[str(session)]["locked"]

    await until(is_busy)
    status, body = await self.post("interact", answer("hm"), session=session)
    self.assertEqual(status, 400)
    self.assertIn("already interacting", body["message"])
    moody.release.set()
    self.assertEqual((await slow)[0], 200)

  async def test_a_broken_environment_is_reported_as_what_it_was(self):
    moody, _ = await self.worker()
    session = await self.start()
    with self.assertLogs("agentrl_jax.service.worker.hosting", "ERROR"):
      _, body = await self.post("interact", answer("break"), session=session)
    self.assertEqual((body["finish"], body["status"]), (True, "task error"))
    self.assertIn("ZeroDivisionError: of mine", body["error"])
    with self.assertLogs("agentrl_jax.service.worker.hosting", "ERROR"):
      status, message = await self.start(index=1)
    self.assertEqual(status, 500)
    self.assertIn("the disk is full", message)
    await self.until_free(moody)

  async def test_a_worker_that_others_fill_is_tried_again(self):
    self.enterContext(mock.patch.object(dispatcher, "FULL_S", 0.05))
    moody, url = await self.worker(concurrency=1)
    body = {"session_id": 5, "index": 0}
    async with self.http.post(f"{url}/start_sample", json=body) as response:
      self.assertEqual(response.status, 200)
    waiting = asyncio.create_task(self.start(wait_s=60))
    await until(self.sessions)  # the other's session has been seen
    async with self.http.post(
      f"{url}/cancel", json={"session_id": 5}
    ) as response:
      self.assertEqual(response.status, 200)
    await self.post("sync_all")
    self.assertIsInstance(await waiting, int)
    self.assertEqual(moody.num_open, 1)


class MetricsTest(ServiceTestCase):
  async def sample(self, name, **labels):
    url = self.addresses.http.removesuffix("/api") + "/metrics"
    async with self.http.get(url) as response:
      families = text_string_to_metric_families(await response.text())
    return {
      tuple(sample.labels[key] for key in sorted(sample.labels)): sample.value
      for family in families
      for sample in family.samples
      if sample.name == f"agentrl_controller_{name}"
      and labels.items() <= sample.labels.items()
    }

  async def test_shows_what_runs_now(self):
    self.assertEqual(await self.sample("load"), {})  # 0 would mean idle
    await self.worker(concurrency=2)
    await self.worker(name="idle", concurrency=4)
    for _ in range(2):
      await self.start()
    waiting = asyncio.create_task(self.start(wait_s=60))

    async def is_waiting():
      return await self.sample("waiting") == {("moody",): 1, ("idle",): 0}

    await until(is_waiting)
    self.assertEqual(await self.sample("places"), {("moody",): 2, ("idle",): 4})
    self.assertEqual(
      await self.sample("sessions"), {("moody",): 2, ("idle",): 0}
    )
    self.assertEqual(
      await self.sample("workers"),
      {("ALIVE", "moody"): 1, ("ALIVE", "idle"): 1},
    )
    self.assertEqual(await self.sample("load"), {(): 3 / 2})
    await self.post(
      "mark_stale", {"name": "moody", "worker_id": 1, "stale": True}
    )
    self.assertEqual(await self.sample("places"), {("moody",): 0, ("idle",): 4})
    self.assertEqual(
      await self.sample("workers"),
      {("STALE", "moody"): 1, ("ALIVE", "idle"): 1},
    )
    self.assertEqual(await self.sample("load"), {(): 0})
    waiting.cancel()
    await asyncio.wait([waiting])
    counts = await self.sample("requests_total", endpoint="start_sample")
    self.assertEqual(counts[("start_sample", "200")], 2)

  async def test_counts_how_sessions_end(self):
    await self.worker()
    for _ in range(2):
      session = await self.start()
      await self.post("interact", answer("end"), session=session)
    await self.start(index=3)  # is over as it begins
    self.assertEqual(
      await self.sample("sessions_ended_total"),
      {("completed", "moody"): 2, ("task limit reached", "moody"): 1},
    )
    self.assertEqual(await self.sample("reward_total"), {("moody",): 2})

  async def test_no_request_makes_a_new_label(self):
    await self.worker()
    for n in range(30):
      async with self.http.get(f"{self.addresses.http}/list_{n}") as response:
        self.assertEqual(response.status, 404)
      await self.start(name=f"task-{n}", wait_s=0)
    endpoints = {key[0] for key in await self.sample("requests_total")}
    self.assertLessEqual(endpoints, set(ROLES))
    self.assertEqual(set(await self.sample("sessions")), {("moody",)})


class OverloadTest(ServiceTestCase):
  max_waiting = 2

  async def test_requests_above_max_waiting_are_refused_at_once(self):
    await self.worker(concurrency=1)
    await self.start()
    waiting = [asyncio.create_task(self.start(wait_s=60)) for _ in range(3)]
    (refused,), others = await asyncio.wait(
      waiting, return_when=asyncio.FIRST_COMPLETED
    )
    status, message = refused.result()
    self.assertEqual(status, 429)
    self.assertIn("no workers available for task moody: 2 requests", message)
    for task in others:
      task.cancel()


class ExpiryTest(ServiceTestCase):
  timers = Timers(expire_s=60.0, ask_s=600.0, tend_s=0.05)

  async def test_sessions_that_nobody_asks_for_expire(self):
    moody, _ = await self.worker()
    with self.assertLogs(
      "agentrl_jax.service.controller.dispatcher", "WARNING"
    ) as log:
      await self.start()
      await Clock().forward(61.0)
      await self.until_free(moody)
    self.assertIn("expired", log.output[0])

  async def test_a_place_that_is_never_freed_is_said_to_be_lost(self):
    await self.worker(grpc=True)
    with (
      mock.patch.object(
        api.WorkerApi, "_cancel_later", side_effect=lambda ids: None
      ),
      self.assertLogs(
        "agentrl_jax.service.controller.dispatcher", "ERROR"
      ) as log,
    ):
      session = await self.start()
      await self.post("cancel", session=session)
      self.assertFalse(log.output)
      await Clock().forward(61.0)
      await until_logged(log)
    self.assertIn(f"free session {session}, and still holds it", log.output[0])
    self.assertTrue((await self.sessions())[str(session)]["cancelling"])


class ImpatientTest(ServiceTestCase):
  timers = Timers(interaction_s=60.0, remove_s=60.0, tend_s=0.05)

  async def test_an_environment_that_hangs_costs_its_session(self):
    moody, _ = await self.worker(grpc=True)
    session = await self.start()
    playing = asyncio.create_task(
      self.post("interact", answer("hang"), session=session)
    )
    await until(lambda: moody.num_hanging)
    await Clock().forward(61.0)
    status, body = await playing
    self.assertEqual(status, 500)
    self.assertIn("not answered interact within 60 s", body["message"])
    await self.until_free(moody)

  async def test_a_worker_that_is_forgotten_takes_its_sessions_along(self):
    config = WorkerConfig(port=0, controller=self.addresses.http)
    async with serve_worker(Moody(), config):
      await until(lambda: self.alive("moody"))
      await self.start()
    await Clock().forward(61.0)
    await self.until_free()
    self.assertEqual(await self.get("list_workers"), (200, {}))


class TokensTest(ServiceTestCase):
  access = TOKENS

  async def asyncSetUp(self):
    await super().asyncSetUp()
    self.http = await self.as_role("operator")  # who reads the lists

  async def as_role(self, role):
    return await self.enterAsyncContext(
      aiohttp.ClientSession(headers=bearer(getattr(self.access, role)))
    )

  async def test_sessions_are_played_with_the_right_tokens(self):
    for grpc in (False, True):
      with self.subTest(grpc=grpc):
        name = f"moody-{grpc}"
        moody, url = await self.worker(
          grpc=grpc, token=self.access.worker, name=name
        )
        environment = ControllerEnvironment(
          controller=self.addresses.http, name=name, token_file="env:CLIENT"
        )
        indices = await asyncio.to_thread(environment.indices, "train")
        task = Task(name, "train", indices[0])
        async with environment.open(task, seed=0) as session:
          await session.reset()
          await session.step(Message("assistant", "hm"))
        await self.until_free(moody)
        # The worker's own port is no way around the controller.
        async with (
          aiohttp.ClientSession() as nobody,
          nobody.get(f"{url}/get_sessions") as response,
        ):
          self.assertEqual(response.status, 401)
          self.assertIn("needs its token", await response.text())

  async def test_a_worker_without_the_token_gets_no_sessions(self):
    for grpc, token in ((False, ""), (True, ""), (True, self.access.client)):
      with self.subTest(grpc=grpc, token=token):
        place = "agentrl_jax.service.worker." + (
          "grpc" if grpc else "heartbeat"
        )
        with self.assertLogs(place, "WARNING") as log:
          config = WorkerConfig(
            port=0,
            controller=self.addresses.grpc if grpc else self.addresses.http,
            token=token,
          )
          async with serve_worker(Moody(), config):
            # gRPC may tell of the refusal as an error of its own, and then the
            # worker dials again.
            await until_logged(log, "needs the token of worker")
    self.assertEqual(await self.get("list_workers"), (200, {}))


class StatusTest(unittest.TestCase):
  def test_a_workers_own_statuses_share_one_label(self):
    metrics = ControllerMetrics(mock.Mock(**{"registry.tasks": {}}))
    for n in range(50):
      metrics.count_report("sums", {"status": f"odd {n}", "reward": "much"})
      metrics.count_report("sums", {"status": [n]})
    page = metrics.page().decode()
    self.assertIn('status="(other)",task="sums"} 100.0', page)
    self.assertNotIn("odd", page)


class HeartbeatTest(ServiceTestCase):
  async def test_a_controller_calls_no_address_that_a_stranger_names(self):
    body = {"name": "moody", "concurrency": 1, "indices": [0]}
    for address, words in (
      ("http://169.254.169.254/api", "169.254.169.254"),
      ("http://no-such-host.invalid/api", "no-such-host.invalid"),
      ("grpc://me", "grpc://me"),
    ):
      status, reply = await self.post(
        "receive_heartbeat", body | {"address": address}
      )
      self.assertEqual(status, 400)
      self.assertIn(words, reply["message"])
    self.assertEqual(await self.get("list_workers"), (200, {}))

  async def test_ids_of_sessions_cannot_be_counted_up(self):
    await self.worker(concurrency=8)
    ids = sorted([await self.start() for _ in range(8)])
    gaps = [b - a for a, b in itertools.pairwise(ids)]
    self.assertGreater(min(gaps), 2**20)
    self.assertLess(max(ids), 2**53)


class ConfigTest(unittest.IsolatedAsyncioTestCase):
  async def test_taken_ports_are_said(self):
    config = ServiceConfig(port=0, grpc_port=0)
    async with service.serve(config) as addresses:
      http = int(addresses.http.split(":")[2].split("/")[0])
      for taken in ({"port": http}, {"port": 0, "grpc_port": http}):
        with self.subTest(taken=taken), self.assertRaises(ConfigError):
          async with service.serve(ServiceConfig(**taken)):
            self.fail("listening")

  def test_settings_are_checked(self):
    for setting in ({"port": -1}, {"grpc_port": 1 << 16}):
      with self.subTest(setting=setting), self.assertRaises(ConfigError):
        ServiceConfig(**setting)
