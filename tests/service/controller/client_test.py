"""`ControllerEnvironment` with our workers and AgentRL's, in real processes."""

import asyncio
import resource
import signal
import threading
import unittest

import aiohttp
import pytest
from aiohttp import test_utils, web

from agentrl_jax.controller.groups.group import RetryLimits, play_with_retries
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import ExpertTextPlayer
from agentrl_jax.data.records import (
  EpisodeSpec,
  Message,
  Status,
  Task,
  ToolCall,
)
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.loading import load_environment
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.controller.client import ControllerEnvironment
from agentrl_jax.service.protocol.link import WorkerLost, WorkerRefusal
from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import WorkerConfig, serve
from environments.arithmetic.environment import Arithmetic
from tests.clocks import until, wait_until
from tests.env.moody import Moody, says
from tests.service.processes import (
  ServiceProcess,
  agentrl_grpc_worker,
  agentrl_worker,
  our_worker,
  running,
)
from tests.settings import WAITS

OVER_HTTP, OVER_GRPC = "calculator-http", "calculator-grpc"


def call(name, arguments):
  return Message("assistant", tool_calls=(ToolCall(name, arguments, "c1"),))


async def play(environment):
  """Plays "How much is 2 and 3?", and returns every step."""
  task = Task(environment.name, "test", 0)
  async with environment.open(task, seed=0) as session:
    return [
      await session.reset(),
      await session.step(call("add", '{"a": 2, "b": 3}')),
      await session.step(call("submit", '{"answer": 5}')),
    ]


class ControllerEnvironmentContractTest(
  SessionContract, unittest.IsolatedAsyncioTestCase
):
  """The whole contract through a controller."""

  num_tasks = 3

  @classmethod
  def setUpClass(cls):
    cls.service = ServiceProcess().start()
    cls.addClassCleanup(cls.service.stop)
    for controller in (cls.service.url, cls.service.grpc):
      cls.enterClassContext(running(*our_worker(controller, num_tasks=1000)))
    cls.service.wait_for_workers(2, "arithmetic")

  def make_environment(self):
    return load_environment(
      "agentrl_jax.service.controller.client:ControllerEnvironment",
      {
        "controller": self.service.url,
        "name": "arithmetic",
        "expert": "environments.arithmetic.environment:Arithmetic",
        "expert_options": {"num_tasks": 1000},
      },
    )

  async def test_nothing_is_left_at_the_controller(self):
    environment = self.make_environment()
    await asyncio.gather(
      *(self._abandon(environment, task) for task in self._tasks(environment))
    )
    await asyncio.to_thread(
      wait_until, lambda: not self.service.get("list_sessions"), "no session"
    )


@pytest.mark.slow
class AgentRLWorkersTest(unittest.IsolatedAsyncioTestCase):
  """Workers of the package `agentrl-worker`, unchanged."""

  @classmethod
  def setUpClass(cls):
    cls.service = ServiceProcess().start()
    cls.addClassCleanup(cls.service.stop)
    over_http = agentrl_worker(cls.service.url, name=OVER_HTTP)
    over_grpc = agentrl_grpc_worker(cls.service.grpc, name=OVER_GRPC)
    for arguments in (over_http, over_grpc):
      cls.enterClassContext(running(*arguments))
    for name in (OVER_HTTP, OVER_GRPC):
      cls.service.wait_for_workers(1, name)

  def make(self, task, **options):
    return ControllerEnvironment(
      controller=self.service.url,
      name="calculator",
      tasks={"test": task},
      **options,
    )

  def open(self, task):
    """Opens a session of the task's first index."""
    return self.make(task).open(Task("c", "test", 0), seed=0)

  def until_free(self):
    wait_until(lambda: not self.service.get("list_sessions"), "no session")

  async def test_an_episode(self):
    for task in (OVER_HTTP, OVER_GRPC):
      with self.subTest(task=task):
        first, second, last = await play(self.make(task))
        (question,), (reply,) = first.messages, second.messages
        self.assertEqual(question, Message("user", "How much is 2 and 3?"))
        self.assertEqual(reply, Message("tool", "5", tool_call_id="c1"))
        self.assertEqual((last.status, last.reward), (Status.COMPLETED, 1.0))
        self.assertEqual(last.metrics, {"rounds": 1.0})

  async def test_indices_are_numbers_or_positions(self):
    for task in (OVER_HTTP, OVER_GRPC):
      with self.subTest(task=task):
        indices = await asyncio.to_thread(self.make(task).indices, "test")
        self.assertEqual(indices, (0, 1, 2))
    shown = self.service.get(f"get_indices?name={OVER_GRPC}")
    self.assertEqual(shown, ["sum", "big", "minus"])

  async def test_text_indices_and_custom_tasks_through_the_api(self):
    custom = {"custom_task": {"a": 7, "b": 8}}
    for name, request, words in (
      (OVER_GRPC, {"index": "minus"}, "How much is -4 and 1?"),
      (OVER_GRPC, {"index": 1}, "How much is 40 and 2?"),
      (OVER_HTTP, {"index": -1} | custom, "How much is 7 and 8?"),
      (OVER_HTTP, {"index": 0} | custom, "How much is 2 and 3?"),
    ):
      with self.subTest(request=request):
        status, body, session = await asyncio.to_thread(
          self.service.post, "start_sample", {"name": name} | request
        )
        self.assertEqual(status, 200)
        self.assertEqual(body["messages"][0]["content"], words)
        self.assertEqual(len(body["tools"]), 2)
        reply = self.service.post("cancel", session=session)
        self.assertEqual(reply[:2], (200, None))
    self.until_free()

  async def test_leaving_early_frees_the_session(self):
    for task in (OVER_HTTP, OVER_GRPC):
      with self.subTest(task=task):
        for _ in range(6):  # three times as many as there are places
          async with self.open(task) as session:
            await session.reset()
        self.until_free()

  async def test_a_broken_environment_is_a_fault(self):
    for task in (OVER_HTTP, OVER_GRPC):
      with (
        self.subTest(task=task),
        self.assertRaisesRegex(EnvironmentFault, "'task error'"),
      ):
        async with self.open(task) as session:
          await session.step(call("add", '{"boom": 1}'))
    self.until_free()

  async def test_no_free_place_in_time_is_a_fault(self):
    for task in (OVER_HTTP, OVER_GRPC):
      hasty = self.make(task, place_s=0.3)
      with self.subTest(task=task):
        async with self.open(task), self.open(task):
          with self.assertRaisesRegex(WorkerRefusal, "no workers available"):
            await play(hasty)

  async def test_splits_are_asked_of_our_workers_only(self):
    environment = ControllerEnvironment(
      controller=self.service.url, name=OVER_HTTP, ready_s=0
    )
    with self.assertRaisesRegex(ConfigError, "tasks={split: task}"):
      await asyncio.to_thread(environment.indices, "test")
    with self.assertRaises(EnvironmentFault):
      await play(environment)
    with self.assertRaisesRegex(ConfigError, "no split 'train'"):
      self.make(OVER_HTTP).indices("train")


@pytest.mark.slow
class ReattachTest(unittest.IsolatedAsyncioTestCase):
  """A controller that is killed costs no episode."""

  async def asyncSetUp(self):
    self.service = ServiceProcess().start()
    self.addCleanup(self.service.stop)
    self.moody = Moody()

  async def serve(self, grpc):
    controller = self.service.grpc if grpc else self.service.url
    name = f"moody-{grpc}"
    await self.enterAsyncContext(
      serve(self.moody, WorkerConfig(port=0, controller=controller, name=name))
    )
    await asyncio.to_thread(self.service.wait_for_workers, 1, name)
    return ControllerEnvironment(controller=self.service.url, name=name)

  async def ended_while_it_plays(self, playing, sign=signal.SIGKILL):
    """Ends the controller in the middle of a turn, which then ends."""
    await until(lambda: self.moody.num_hanging)
    await asyncio.to_thread(self.service.process.stop, sign)
    self.moody.is_open.set()
    await until(lambda: not self.moody.num_hanging)
    await asyncio.to_thread(self.service.start)
    return await playing

  async def test_an_episode_goes_on_as_if_nothing_had_been(self):
    for grpc in (False, True):
      with self.subTest(grpc=grpc):
        environment = await self.serve(grpc)
        self.moody.answers.clear()
        task = Task(environment.name, "test", 0)
        async with environment.open(task, seed=0) as session:
          await session.step(Message("assistant", "one"))
          self.service.process.kill()  # between two turns
          step = asyncio.create_task(session.step(Message("assistant", "two")))
          await asyncio.sleep(0.2)
          await asyncio.to_thread(self.service.start)
          self.assertIn("You say two.", (await step).messages[0].content)
          for last in ("three", "end"):  # during a turn, also the last one
            self.moody.is_open.clear()
            playing = asyncio.create_task(
              session.step(Message("assistant", last))
            )
            step = await self.ended_while_it_plays(playing)
          self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1.0))
        self.assertEqual(self.moody.answers, ["one", "two", "three", "end"])
        self.assertEqual(self.service.get("list_sessions"), {})

  async def test_a_controller_that_is_told_to_end_drops_no_session(self):
    environment = await self.serve(grpc=False)
    task = Task(environment.name, "test", 0)
    async with environment.open(task, seed=0) as session:
      for words in ("one", "end"):
        self.moody.is_open.clear()
        playing = asyncio.create_task(session.step(Message("assistant", words)))
        step = await self.ended_while_it_plays(playing, signal.SIGTERM)
    self.assertEqual(step.status, Status.COMPLETED)
    self.assertEqual(self.moody.answers, ["one", "end"])

  async def test_an_episode_that_begins_meanwhile_waits(self):
    environment = await self.serve(grpc=True)
    self.service.process.kill()

    async def play():
      task = Task(environment.name, "test", 0)
      async with environment.open(task, seed=0) as session:
        return await session.step(Message("assistant", "end"))

    playing = asyncio.create_task(play())
    await asyncio.sleep(0.2)
    await asyncio.to_thread(self.service.start)
    self.assertEqual((await playing).reward, 1.0)

  async def test_a_controller_that_stays_away_is_given_up(self):
    environment = await self.serve(grpc=True)
    impatient = ControllerEnvironment(
      controller=self.service.url, name=environment.name, reattach_s=0.3
    )
    task = Task(environment.name, "test", 0)
    with self.assertRaisesRegex(WorkerLost, "cannot be asked for"):
      async with impatient.open(task, seed=0) as session:
        self.service.process.kill()
        await session.step(Message("assistant", "one"))
    with self.assertRaisesRegex(WorkerLost, "cannot be asked for start_s"):
      async with impatient.open(task, seed=0):
        self.fail("opened")


@pytest.mark.slow
class ManyStartsTest(unittest.IsolatedAsyncioTestCase):
  async def started(self, number, *, open_files):
    """Starts sessions at once; returns the statuses of the replies.

    `open_files` are the limits of the controller, soft and hard.
    """
    service = ServiceProcess().start(open_files)
    self.addCleanup(service.stop)
    config = WorkerConfig(port=0, controller=service.url)
    async with (
      serve(Moody(), config, HostLimits(concurrency=number)),
      aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
      await asyncio.to_thread(service.wait_for_workers, 1, "moody")

      async def start():
        body = {"name": "moody", "index": 0}
        async with http.post(f"{service.url}/start_sample", json=body) as got:
          return got.status

      return set(await asyncio.gather(*(start() for _ in range(number))))

  async def test_a_low_limit_of_open_files_is_raised(self):
    """Many systems begin with 1,024, where they allow a million."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.assertEqual(await self.started(300, open_files=(100, hard)), {200})

  async def test_where_files_are_few_requests_wait_for_connections(self):
    """Each session is a file for its client, and one for its worker."""
    self.assertEqual(await self.started(260, open_files=(500, 500)), {200})


class Saboteur(Expert):
  """Plays like another expert, but does something first."""

  def __init__(self, expert, sabotage):
    self._expert, self._sabotage = expert, sabotage

  def answer(self, messages):
    self._sabotage()
    return self._expert.answer(messages)


TASK = Task("arithmetic", "test", 0)


class BreakdownTest(unittest.IsolatedAsyncioTestCase):
  """Processes that are killed during an episode."""

  @pytest.mark.slow
  async def test_an_episode_is_made_again_on_another_worker(self):
    self.service = ServiceProcess("--reconnect-s=1", "--interaction-s=30")
    self.service.start()
    self.addCleanup(self.service.stop)
    environment = ControllerEnvironment(
      controller=self.service.url, name="arithmetic"
    )
    expert = Arithmetic(num_tasks=50).expert
    environment.expert = lambda *arguments, **options: Saboteur(
      expert(*arguments, **options), self.kill_the_worker
    )
    with (
      running(*our_worker(self.service.url)) as first,
      running(*our_worker(self.service.grpc)) as second,
    ):
      await asyncio.to_thread(self.service.wait_for_workers, 2, "arithmetic")
      self.workers = {"http": first, "grpc": second}
      self.num_kills = 0
      monitor = Monitor()
      trajectory = await play_with_retries(
        EpisodeSpec(task=TASK, group_id="g", attempt=0, seed=1),
        ExpertTextPlayer(
          environments={"arithmetic": environment},
          max_turns=20,
          mistakes={},
          waits=WAITS,
        ),
        RetryLimits(max_retries=2, backoff_s=0.01),
        monitor,
      )
    self.assertEqual(self.num_kills, 1)
    self.assertEqual(trajectory.reward, 1.0)
    self.assertEqual(monitor.tasks["arithmetic"].retried, 1)

  def kill_the_worker(self):
    """Kills the worker of the only session, once."""
    if not self.num_kills:
      self.num_kills = 1
      (session,) = self.service.get("list_sessions").values()
      workers = self.service.get("list_workers")["arithmetic"]["workers"]
      address = workers[str(session["worker_id"])]["address"]
      self.workers[address.partition(":")[0]].kill()

  @pytest.mark.slow
  async def test_indices_wait_for_a_controller_that_starts(self):
    late = ServiceProcess()
    environment = ControllerEnvironment(controller=late.url, name="arithmetic")
    starting = threading.Thread(target=late.start)
    with running(*our_worker(late.url)):
      starting.start()
      indices = await asyncio.to_thread(environment.indices, "test")
      starting.join()
      self.addCleanup(late.stop)
      self.assertEqual(indices, range(50))

  async def test_a_missing_controller_is_an_error(self):
    nobody = ServiceProcess()
    environment = ControllerEnvironment(
      controller=nobody.url, name="arithmetic", ready_s=0.2, reattach_s=0.2
    )
    with self.assertRaisesRegex(ConfigError, "whether controller and workers"):
      await asyncio.to_thread(environment.indices, "test")
    with self.assertRaises(EnvironmentFault):
      await play(environment)


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
    ended = {"finish": True, "reward": 0.5, "status": "task limit reached"}
    return web.json_response(ended | {"messages": None, "metrics": None})

  async def cancel(self, request):
    self.asked.append(("cancel", request.headers["session_id"]))
    return web.json_response(None)


class OtherControllerTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.controller = AgentRLsController()
    server = await self.enterAsyncContext(
      test_utils.TestServer(self.controller.application())
    )
    self.url = str(server.make_url("/api"))
    self.environment = self.make(tasks={"test": "os-std"})

  def make(self, **options):
    return ControllerEnvironment(
      controller=self.url, name="os", ready_s=0, **options
    )

  async def test_an_episode(self):
    indices = await asyncio.to_thread(self.environment.indices, "test")
    self.assertEqual(indices, (0, 1))
    async with self.environment.open(Task("os", "test", 1), seed=3) as session:
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
    self.assertEqual(played, ("7", {"messages": says("hm")}))

  async def test_a_broken_session_is_a_fault_and_is_cancelled(self):
    with self.assertRaisesRegex(EnvironmentFault, "failed to interact"):
      task = Task("os", "test", 0)
      async with self.environment.open(task, seed=0) as session:
        await session.step(Message("assistant", "break"))
    self.assertEqual(self.controller.asked[-1], ("cancel", "7"))

  async def test_a_task_without_workers_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "does not exist"):
      environment = self.make(tasks={"test": "db-std"})
      await asyncio.to_thread(environment.indices, "test")
    with self.assertRaisesRegex(ConfigError, "tasks={split: task}"):
      await asyncio.to_thread(self.make().indices, "test")
