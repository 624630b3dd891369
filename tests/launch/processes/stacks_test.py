"""Stacks of a process that stands still."""

import asyncio
import contextlib
import pathlib
import re
import tempfile
import threading
import unittest

import pytest

from launch.processes.stacks import FILE, write_stacks
from tests import programs


async def waits_for(event):
  await event.wait()


@contextlib.asynccontextmanager
async def held(event):
  await waits_for(event)
  yield


async def outermost(event):
  async with held(event):
    pass


class StacksTest(unittest.TestCase):
  def setUp(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / FILE

  def test_threads_and_tasks_of_another_loop(self):
    loop, event = asyncio.new_event_loop(), asyncio.Event()
    waiting = threading.Event()

    async def begin():
      tasks = [asyncio.create_task(outermost(event)) for _ in range(3)]
      await asyncio.sleep(0)
      await asyncio.sleep(0)
      waiting.set()
      await asyncio.gather(*tasks)

    thread = threading.Thread(target=loop.run_until_complete, args=[begin()])
    thread.start()
    try:
      self.assertTrue(waiting.wait(30))
      text = write_stacks(self.path, loop).read_text()
    finally:
      loop.call_soon_threadsafe(event.set)
      thread.join(30)
      loop.close()
    self.assertIn("test_threads_and_tasks_of_another_loop", text)
    self.assertIn("run_forever", text)  # the other thread
    _, _, tasks = text.partition("\n3 asyncio tasks")
    names = [line.rpartition(" in ")[2] for line in tasks.splitlines()[1:6]]
    self.assertEqual(
      names[: names.index("wait") + 1],
      ["outermost", "__aenter__", "held", "waits_for", "wait"],
    )

  def test_more_threads_than_a_dump_of_the_interpreter_shows(self):
    loop, end = asyncio.new_event_loop(), threading.Event()
    self.addCleanup(loop.close)
    threads = [threading.Thread(target=end.wait, args=[30]) for _ in range(120)]
    for thread in threads:
      thread.start()
    try:
      text = write_stacks(self.path, loop).read_text()
    finally:
      end.set()
      for thread in threads:
        thread.join(30)
    numbers = re.findall(r"^(\d+) threads", text, re.M)
    self.assertGreater(sum(map(int, numbers)), len(threads))
    self.assertIn("test_more_threads_than_a_dump", text)  # this thread

  def test_a_loop_that_is_stuck(self):
    loop = asyncio.new_event_loop()
    self.addCleanup(loop.close)
    go_on, stuck = threading.Event(), threading.Event()

    async def block():
      stuck.set()
      go_on.wait(30)

    thread = threading.Thread(target=loop.run_until_complete, args=[block()])
    thread.start()
    self.addCleanup(thread.join)
    self.addCleanup(go_on.set)
    self.assertTrue(stuck.wait(30))
    text = write_stacks(self.path, loop).read_text()
    self.assertIn("in block", text)

  @pytest.mark.slow
  def test_a_run_without_groups_says_where_it_waited(self):
    folder = self.path.parent
    ended = programs.run(
      "launch.train",
      "--config=tests/launch/tiny.py",
      f"--config.workdir={folder}",
      "--config.train.batch_timeout_s=0.01",
      deadline_s=400,
    )
    self.assertEqual(ended.returncode, 1, ended.stderr)
    self.assertIn(f"waited is in {folder}/tiny/{FILE}", ended.stderr)
    text = (folder / "tiny" / FILE).read_text()
    self.assertIn("asyncio tasks", text)
    self.assertIn("play_with_retries", text)
