"""Lines of JSON, with the ids of what they are about."""

import asyncio
import io
import json
import logging
import os
import unittest
from unittest import mock

from agentrl_jax import logs
from agentrl_jax.controller.groups.group import RetryLimits, play_with_retries
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.records import EpisodeSpec, Task, Trajectory
from agentrl_jax.errors import ConfigError, EnvironmentFault


class Breaks:
  async def play(self, spec: EpisodeSpec) -> Trajectory:
    await asyncio.sleep(0)
    raise EnvironmentFault("its container\nis gone")


class LogsTest(unittest.TestCase):
  def setUp(self):
    self.written = io.StringIO()
    handler = logging.StreamHandler(self.written)
    handler.setFormatter(logs.JsonFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    self.addCleanup(root.removeHandler, handler)

  def lines(self):
    return [json.loads(line) for line in self.written.getvalue().splitlines()]

  def test_a_fault_names_its_episode_and_no_other(self):
    async def play():
      await asyncio.gather(
        *(
          play_with_retries(
            EpisodeSpec(
              task=Task("sums", "train", n),
              group_id=f"{n:08d}",
              attempt=n,
              seed=7,
            ),
            Breaks(),
            RetryLimits(max_retries=1, backoff_s=0.0),
            Monitor(),
          )
          for n in range(3)
        )
      )
      logging.getLogger().warning("of none")

    asyncio.run(play())
    *faults, last = self.lines()
    self.assertEqual(len(faults), 6)
    for line in faults:
      number = line["agentrl.task.index"]
      self.assertIn(f"index={number}", line["message"])
      self.assertEqual(line["gen_ai.conversation.id"], f"{number:08d}-{number}")
      self.assertEqual(line["severity"], "WARNING")
    self.assertEqual(
      sorted(f["agentrl.retry"] for f in faults), [0] * 3 + [1] * 3
    )
    self.assertNotIn("agentrl.group.id", last)

  def test_an_exception_is_one_line(self):
    try:
      raise ValueError("odd\nvalue")
    except ValueError:
      logging.getLogger("a.b").exception("it failed: %s", object)
    (line,) = self.lines()
    self.assertEqual(line["logger"], "a.b")
    self.assertEqual(line["exception.type"], "ValueError")
    self.assertEqual(line["exception.message"], "odd\nvalue")
    self.assertIn("Traceback", line["exception.stacktrace"])

  def test_facts_of_the_process_stand_in_every_line(self):
    with mock.patch.dict(logs._process_facts, clear=True):
      logging.getLogger().warning("y")
      logs.about_process({"agentrl.run": "a"})
      logging.getLogger().warning("x")
    before, after = self.lines()
    self.assertNotIn("agentrl.run", before)
    self.assertEqual(after["agentrl.run"], "a")

  def test_an_unknown_format_is_refused(self):
    with (
      mock.patch.dict(os.environ, {logs.FORMAT: "yaml"}),
      self.assertRaisesRegex(ConfigError, "AGENTRL_LOG=yaml.*text, json"),
    ):
      logs.set_up()
