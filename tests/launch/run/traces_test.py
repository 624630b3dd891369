"""Spans of a run's groups, as lines that OpenTelemetry's tools can read."""

import asyncio
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

from agentrl_jax.controller.groups.group import run_group
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError
from launch.run.traces import FILE, traced
from tests.controller.stage import (
  GROUP,
  RETRIES,
  Brittle,
  ScriptedEngine,
  a_player,
)


class TracesTest(unittest.TestCase):
  def setUp(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)

  def play(self, *, share=1.0, num_groups=1, **brittle):
    """Plays groups, traced; returns the spans."""

    async def run():
      player = a_player(Brittle(**brittle), ScriptedEngine())
      for n in range(num_groups):
        task = Task("arithmetic", "train", n)
        await run_group(
          task, player, GROUP, RETRIES, Monitor(), group_id=f"{n}", seed=n
        )

    with traced(self.folder, "a-run", share=share):
      asyncio.run(run())
    path = self.folder / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]

  def test_a_group_has_its_episodes_and_they_have_their_turns(self):
    spans = self.play()
    by_id = {span["context"]["span_id"]: span for span in spans}

    def names_to_root(span):
      names = [span["name"]]
      while span["parent_id"]:
        span = by_id[span["parent_id"]]
        names.append(span["name"])
      return names

    episode = ["invoke_agent arithmetic", "group arithmetic"]
    chats = [span for span in spans if span["name"] == "chat"]
    self.assertEqual(len(chats), GROUP.size * 2)  # a call, and the answer
    for chat in chats:
      self.assertEqual(names_to_root(chat), ["chat", *episode])
      self.assertGreater(chat["attributes"]["gen_ai.usage.input_tokens"], 0)
      self.assertGreater(chat["attributes"]["gen_ai.usage.output_tokens"], 0)
    episodes = [s for s in spans if s["name"].startswith("invoke_agent")]
    self.assertEqual(
      sorted(s["attributes"]["gen_ai.conversation.id"] for s in episodes),
      [f"0-{n}" for n in range(GROUP.size)],
    )
    for span in episodes:
      self.assertEqual(span["attributes"]["agentrl.reward"], 1.0)
      self.assertEqual(span["attributes"]["agentrl.status"], "completed")
      self.assertEqual(span["status"]["status_code"], "UNSET")
      self.assertEqual(
        span["resource"]["attributes"]["service.instance.id"], "a-run"
      )
    self.assertNotIn("What is", json.dumps(spans))  # the task's text

  def test_a_fault_is_in_the_span_that_it_broke(self):
    spans = self.play(fault_rate=0.3, seed=4)
    broken = [s for s in spans if s["status"]["status_code"] == "ERROR"]
    self.assertTrue(broken)
    tries = [s for s in broken if s["name"].startswith("invoke_agent")]
    self.assertTrue(tries)
    for span in tries:
      (event,) = span["events"]
      self.assertIn("EnvironmentFault", event["attributes"]["exception.type"])
    retried = [s for s in spans if s["attributes"].get("agentrl.retry")]
    self.assertTrue(retried)

  def test_a_group_is_traced_whole_or_not_at_all(self):
    spans = self.play(share=0.5, num_groups=40)
    groups = [span for span in spans if span["name"].startswith("group")]
    self.assertGreater(len(groups), 5)
    self.assertLess(len(groups), 35)
    for kind in ("invoke_agent", "open environment"):
      found = [span for span in spans if span["name"].startswith(kind)]
      self.assertEqual(len(found), GROUP.size * len(groups), kind)

  def test_nothing_is_written_unless_asked_for(self):
    self.assertEqual(self.play(share=0.0), [])
    self.assertEqual(list(self.folder.iterdir()), [])

  def test_a_run_that_goes_on_adds_to_the_file(self):
    (self.folder / FILE).write_text('{"name": "whole"}\n{"name": "cut o')
    spans = self.play()
    self.assertEqual(spans[0], {"name": "whole"})
    self.assertGreater(len(spans), 10)

  def test_what_cannot_be_is_refused(self):
    for share in (-0.1, 1.5, float("nan")):
      with self.assertRaisesRegex(ConfigError, "report.trace_share is"):
        self.play(share=share)
    with (
      mock.patch.dict(sys.modules, {"opentelemetry.sdk": None}),
      self.assertRaisesRegex(ConfigError, r"agentrl_jax\[trace\]"),
    ):
      self.play()
    with (
      mock.patch.dict("os.environ", OTEL_EXPORTER_OTLP_ENDPOINT="http://x:1"),
      mock.patch.dict(sys.modules, {"opentelemetry.exporter": None}),
      self.assertRaisesRegex(ConfigError, "opentelemetry-exporter-otlp"),
    ):
      self.play()
