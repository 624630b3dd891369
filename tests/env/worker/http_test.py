"""Tests that malformed requests to a worker are refused."""

import unittest

from agentrl_jax.env.worker.hosting import HostLimits
from agentrl_jax.env.worker.main import WorkerConfig, serve
from environments.arithmetic.environment import Arithmetic
from tests import http_fuzz
from tests.http_fuzz import Route

SAID = [{"role": "assistant", "content": "5", "tool_calls": []}]
ROUTES = [
  Route(
    "POST",
    "/start_sample",
    {"session_id": 7, "index": 0},
    others=("seed", "split", "custom_task"),
  ),
  Route("POST", "/interact", {"session_id": 3, "messages": SAID}),
  *(
    Route("POST", f"/{name}", {"session_id": 3})
    for name in ("sample_status", "cancel", "cancel_with_notice")
  ),
  Route("POST", "/cancel_all", {}),
  Route("POST", "/cancel_all_with_notice", {}),
  Route(
    "POST",
    "/calculate_overall",
    {"results": [{"status": "completed", "reward": 1}]},
  ),
  Route("POST", "/no_such_endpoint", {}),
  *(
    Route("GET", f"/{name}")
    for name in (
      "get_indices",
      "get_sessions",
      "worker_status",
      "describe",
      "describe?split=%ff",
      "describe?split=" + "9" * 400,
    )
  ),
]


class HttpWorkerTest(unittest.IsolatedAsyncioTestCase):
  async def test_malformed_requests_are_refused(self):
    http = await self.enterAsyncContext(http_fuzz.session())
    url = await self.enterAsyncContext(
      serve(
        Arithmetic(num_tasks=10),
        WorkerConfig(port=0),
        HostLimits(concurrency=1000),
      )
    )
    faults = await http_fuzz.faults(http, url, ROUTES, seed=1, each=60)
    self.assertFalse(faults, "\n".join(faults[:20]))
    async with http.get(f"{url}/worker_status") as response:
      self.assertEqual(response.status, 200)


if __name__ == "__main__":
  unittest.main()
