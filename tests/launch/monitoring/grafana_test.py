"""The dashboard of Grafana asks for what our servers tell.

The second test needs Prometheus: apt-get install prometheus.
"""

import asyncio
import contextlib
import itertools
import json
import pathlib
import re
import shutil
import tempfile
import unittest

import prometheus_client
import pytest
import yaml
from aiohttp import web

from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.server.metrics import ServerMetrics
from tests.clocks import until
from tests.service.controller.main_test import ServiceTestCase, answer
from tests.service.processes import free_port

ROOM = pathlib.Path(__file__).parents[3] / "launch/monitoring"
PROMETHEUS = shutil.which("prometheus")
INTERVAL = {"$__rate_interval": "10s"}


def panels():
  body = json.loads((ROOM / "grafana.json").read_text())
  return [panel for panel in body["panels"] if panel["type"] != "row"]


def rollout_metrics() -> ServerMetrics:
  """Metrics of a server that has answered a call, a stream and a mistake."""
  served = (wire.ServedPolicySlot(version=3, publication=1), None)
  metrics = ServerMetrics(
    lambda: wire.ServerStatus(policy_slots=served, num_inside=2, num_waiting=1),
    slots=lambda: [2, 0],
  )
  metrics.answered(prompt=9, reused=4, sampled=5, is_constrained=False)
  metrics.first_token(0.1)
  return metrics


class DashboardTest(unittest.TestCase):
  def test_panels_have_places_of_their_own(self):
    body = json.loads((ROOM / "grafana.json").read_text())
    ids = [panel["id"] for panel in body["panels"]]
    self.assertEqual(len(set(ids)), len(ids))
    taken = [
      (x, y)
      for panel in body["panels"]
      for at in [panel["gridPos"]]
      for x, y in itertools.product(
        range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
      )
    ]
    self.assertEqual(len(set(taken)), len(taken))
    self.assertLessEqual(max(x for x, _ in taken), 23)

  def test_every_panel_explains_itself_and_asks_the_chosen_prometheus(self):
    for panel in panels():
      with self.subTest(panel["title"]):
        self.assertTrue(panel["description"].endswith("."))
        for each in (panel, *panel["targets"]):
          self.assertEqual(
            each["datasource"], {"type": "prometheus", "uid": "${source}"}
          )
        refs = [target["refId"] for target in panel["targets"]]
        self.assertEqual(len(set(refs)), len(refs))


@pytest.mark.slow
@unittest.skipIf(
  PROMETHEUS is None, "needs Prometheus; apt-get install prometheus"
)
class PrometheusTest(ServiceTestCase):
  """A real Prometheus reads a controller and metrics of a rollout server."""

  async def asyncSetUp(self):
    await super().asyncSetUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)
    self.metrics = rollout_metrics()
    self.rollout = await self.enterAsyncContext(self._rollout_server())
    self.port = await self.enterAsyncContext(self._prometheus())

  @contextlib.asynccontextmanager
  async def _rollout_server(self):
    async def page(request):
      del request
      return web.Response(
        body=self.metrics.page(),
        headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST},
      )

    async def call(request):
      return web.Response(status=int(request.match_info["status"]))

    app = web.Application(middlewares=[self.metrics.counting])
    app.router.add_get("/metrics", page)
    app.router.add_post("/v1/{status}", call)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
      yield "{}:{}".format(*runner.addresses[0])
    finally:
      await runner.cleanup()

  @contextlib.asynccontextmanager
  async def _prometheus(self):
    """Starts Prometheus with our own file, but for the addresses."""
    config = yaml.safe_load((ROOM / "prometheus.yml").read_text())
    config["global"]["scrape_interval"] = "1s"
    controller = self.addresses.http.removeprefix("http://").removesuffix(
      "/api"
    )
    for job in config["scrape_configs"]:
      address = {"controller": controller, "rollout": self.rollout}[
        job["job_name"]
      ]
      job["static_configs"] = [{"targets": [address]}]
    file = self.folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    log = self.enterContext((self.folder / "log").open("wb"))
    process = await asyncio.create_subprocess_exec(
      PROMETHEUS,
      f"--config.file={file}",
      f"--storage.tsdb.path={self.folder / 'data'}",
      f"--web.listen-address=127.0.0.1:{port}",
      stdout=asyncio.subprocess.DEVNULL,
      stderr=log,
    )
    try:
      yield port
    finally:
      process.terminate()
      await asyncio.wait_for(process.wait(), 20)

  async def ask(self, expression):
    """Returns the series of an expression; raises if it is not PromQL."""
    for name, value in INTERVAL.items():
      expression = expression.replace(name, value)
    async with self.http.get(
      f"http://127.0.0.1:{self.port}/api/v1/query", params={"query": expression}
    ) as response:
      body = await response.json()
      self.assertEqual(body["status"], "success", body)
      return body["data"]["result"]

  async def until_read(self):
    """Waits until both servers were read twice since now."""
    count = "min(count_over_time(up[1h]))"

    async def reads():
      with contextlib.suppress(OSError):
        found = await self.ask(count)
        return float(found[0]["value"][1]) if found else 0.0
      return 0.0

    before = await reads()

    async def has_read():
      return await reads() >= before + 2

    await until(has_read, within_s=60)
    self.assertEqual({r["value"][1] for r in await self.ask("up")}, {"1"})

  async def test_every_panel_has_data(self):
    await self.worker()
    await self.until_read()
    # What went before the first reading has no rate.
    for number in range(3):
      session = await self.start()
      for words in ("hm", "end") if number else ("hm",):
        await self.post("interact", answer(words), session=session)
      await self.start(name="nobody")
      for status in (200, 429):
        url = f"http://{self.rollout}/v1/{status}"
        async with self.http.post(url):
          pass
      self.metrics.answered(prompt=9, reused=4, sampled=5, is_constrained=False)
      self.metrics.first_token(0.1)
      await self.until_read()
    for panel in panels():
      for target in panel["targets"]:
        with self.subTest(panel["title"], expression=target["expr"]):
          found = await self.ask(target["expr"])
          self.assertTrue(found)
          labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
          for series in found:
            self.assertLessEqual(labels, set(series["metric"]))
          self.assertTrue(any(float(s["value"][1]) >= 0 for s in found), found)
