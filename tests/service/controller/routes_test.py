"""Malformed requests to a controller are refused, and break nothing."""

import unittest

import pytest

from agentrl_jax.service.controller import main as service
from agentrl_jax.service.controller.main import ServiceConfig
from agentrl_jax.service.controller.registry import Timers
from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import WorkerConfig, serve
from environments.arithmetic.environment import Arithmetic
from tests import http_fuzz
from tests.http_fuzz import Route

SAID = [{"role": "assistant", "content": "5", "tool_calls": []}]
HEARTBEAT = {
  "name": "other",
  "address": "http://127.0.0.1:9/api",
  "concurrency": 2,
  "indices": [0, "one", 2],
}
SESSION = {"session_id": "1"}
ROUTES = [
  Route(
    "POST",
    "/start_sample",
    {"name": "arithmetic", "index": 0, "wait_s": 0},
    others=("seed", "split", "custom_task"),
  ),
  Route("POST", "/interact", {"messages": SAID}, SESSION),
  Route("POST", "/receive_heartbeat", HEARTBEAT),
  Route(
    "POST",
    "/mark_stale",
    {"name": "arithmetic", "worker_id": 1, "stale": False},
  ),
  Route("POST", "/cancel", None, SESSION),
  Route("POST", "/cancel_notice", None, SESSION),
  *(
    Route("POST", f"/{name}")
    for name in ("clean_worker", "clean_session", "cancel_all?name=%ff")
  ),
  *(
    Route("GET", f"/{name}")
    for name in (
      "list_workers",
      "list_sessions",
      "overview?name=%ff",
      "get_indices?name=%ff",
      "describe?name=arithmetic&split=%ff",
      "version",
    )
  ),
]


class ControllerApiTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_nothing_that_comes_is_the_controllers_fault(self):
    enter = self.enterAsyncContext
    http = await enter(http_fuzz.session())
    timers = Timers(queue_s=0.1)
    addresses = await enter(service.serve(ServiceConfig(port=0), timers))
    await enter(
      serve(
        Arithmetic(num_tasks=10),
        WorkerConfig(port=0, controller=addresses.http),
        HostLimits(concurrency=1000),
      )
    )
    faults = await http_fuzz.faults(
      http, addresses.http, ROUTES, seed=1, each=60
    )
    self.assertFalse(faults, "\n".join(faults[:20]))
    async with http.get(f"{addresses.http}/version") as response:
      self.assertEqual(response.status, 200)
