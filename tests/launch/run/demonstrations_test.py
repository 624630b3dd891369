"""Demonstrations are a function of the config, however they are made."""

import asyncio
import contextlib
import copy
import itertools
import json
import pathlib
import tempfile
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest

from agentrl_jax.data.records import Message, Task
from agentrl_jax.errors import CheckpointError, ConfigError
from configs import base, quickstart
from environments.arithmetic.environment import Arithmetic
from launch.config.chat import codec_of
from launch.config.settings import (
  EnvironmentSettings,
  PlaceSettings,
  read_settings,
)
from launch.run import demonstrations
from launch.run.environments import loaded_environments
from tests.data.chat import families
from tests.launch import tiny

HERE = PlaceSettings()


class Bound(Arithmetic):
  """Notes in which loops it is used."""

  needs_one_loop = True
  loops: ClassVar[list[asyncio.AbstractEventLoop]] = []

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    self.loops.append(asyncio.get_running_loop())
    async with super().open(task, seed=seed) as session:
      yield session

  async def close(self):
    self.loops.append(asyncio.get_running_loop())


class Waiting(Arithmetic):
  """Replies to later tasks before earlier ones; task 2 always breaks."""

  log: ClassVar[list[int]] = []  # 1: a session is opened; -1: it is closed

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    self.log.append(1)
    try:
      for _ in range(100 - 4 * task.index):
        await asyncio.sleep(0)
      if task.index == 2:
        raise OSError("gone")
      async with super().open(task, seed=seed) as session:
        yield session
    finally:
      self.log.append(-1)


class LoadedEnvironmentsTest(absltest.TestCase):
  def test_what_needs_one_loop_has_one(self):
    settings = {
      "bound": EnvironmentSettings(
        target=f"{__name__}:Bound",
        options={},
        mistakes={},
        weight=1.0,
        place=HERE,
      )
    }
    Bound.loops.clear()
    with loaded_environments(settings) as environments:
      for _ in range(2):
        asyncio.run(self.play(environments["bound"]))
    self.assertLen(Bound.loops, 3)
    self.assertLen(set(Bound.loops), 1)

  async def play(self, environment):
    async with environment.open(Task("bound", "train", 0), seed=0) as session:
      await session.reset()


class MistakesTest(absltest.TestCase):
  def test_unknown_ones_are_refused_before_anything_is_played(self):
    for name, mistakes in (
      ("sums", {"wrong_sun": 0.5}),
      ("add", {"no_cast": 0.0}),
    ):
      settings = {
        name: EnvironmentSettings(
          target="environments.arithmetic.environment:Arithmetic",
          options={},
          mistakes=mistakes,
          weight=1.0,
          place=HERE,
        )
      }
      with (
        self.assertRaisesRegex(
          ConfigError, rf"environments\.{name}\.mistakes: .*wrong_sum"
        ),
        loaded_environments(settings),
      ):
        self.fail("it was loaded")


class EveryEnvironmentTest(absltest.TestCase):
  def test_experts_play_in_the_process(self):
    """All that need nothing but the process; os_interaction needs a kernel."""
    config = base.get_config()
    config.tasks.names = ("alfworld", "dbbench", "knowledgegraph", "webshop")
    settings = read_settings(config)
    options = {"whole_tokens": (), "whole_lines": 0}
    tokenizer = demonstrations.make_tokenizer(
      settings, num_texts=16, vocab_size=700, **options
    )
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "tokenizer.json"
      tokenizer.save(str(path))
      rows = demonstrations._pack_chunk(settings, path.parent, 0, 12, 4)
    self.assertGreater(
      rows.mask.sum(), 12 * 10, "hardly a word is learned from"
    )


class ConcurrencyTest(absltest.TestCase):
  def test_the_same_demonstrations_however_many_at_once(self):
    config = tiny.get_config()
    config.environments.arithmetic.target = f"{__name__}:Waiting"
    config.retry.update(max_retries=1, backoff_s=0.0)
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    tokenizers, demonstrated, seen = [], [], []
    for concurrency in (1, 8):
      config.evaluation.concurrency = concurrency
      settings = read_settings(config)
      seen.clear()
      tokenizer = demonstrations.make_tokenizer(
        settings, **config.tokenizer.to_dict(), on_progress=seen.append
      )
      self.assertEqual(seen, [*range(1, 41)])
      self.require_played(40, concurrency)
      tokenizers.append(tokenizer.to_str())
      tokenizer.save(str(folder / "tokenizer.json"))
      rows = demonstrations._pack_chunk(settings, folder, 0, 20, concurrency)
      self.require_played(20, concurrency)
      demonstrated.append({n: x.tolist() for n, x in rows.arrays().items()})
    self.assertEqual(*tokenizers)
    self.assertEqual(*demonstrated)

  def require_played(self, number, most_open):
    # One retry; the tools of the tokenizer's texts are those of one session.
    self.assertIn(Waiting.log.count(1) - number, (1, 2))
    self.assertEqual(max(itertools.accumulate(Waiting.log)), most_open)
    Waiting.log.clear()


class ChatsTest(absltest.TestCase):
  CHAT: ClassVar = {
    "messages": [
      {"role": "user", "content": "2 + 2?"},
      {"role": "assistant", "content": "4"},
    ]
  }

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (self.folder / "chat").mkdir()
    source = (families.HERE / "qwen25.jinja").read_text()
    families.write_folder(self.folder / "chat", families.QWEN, source)
    self.settings = read_settings(tiny.get_config())

  def read(self, *rows, most=100):
    path = self.folder / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return demonstrations.read_chats(
      self.settings, self.folder, path, most, lambda done: None
    )

  def test_what_is_left_out_is_told_in_a_sentence(self):
    long = {"messages": [{"role": "user", "content": "2 " * 999}]}
    long["messages"] += self.CHAT["messages"][1:]
    silent = {"messages": self.CHAT["messages"][:1]}
    rows, sentence = self.read(self.CHAT, long, silent, 7, silent, self.CHAT)
    self.assertRegex(
      sentence,
      r"chats.jsonl: 2 of 6 conversations are demonstrations; 2 without an "
      r"assistant's turn, first \S+, line 3: .*; 1 too long for "
      r"train.row_length=320, first \S+, line 2: .*; 1 unreadable, "
      r"first \S+, line 4: no JSON "
      "object: 7$",
    )
    codec = codec_of(self.folder, self.settings.chat)
    learned = rows.token[rows.mask]
    np.testing.assert_array_equal(
      learned, np.tile(codec.write(Message("assistant", "4")), 2)
    )

  def test_conversations_of_the_test_are_left_out(self):
    of_test, of_train = (
      self.CHAT | {"task": {"name": "sums", "split": split, "index": 0}}
      for split in ("test", "train")
    )
    _, sentence = self.read(of_test, of_train)
    self.assertIn("1 of 2 conversations are demonstrations", sentence)
    self.assertIn("1 of the test", sentence)

  def test_a_part_of_the_file_is_said_to_be_one(self):
    _, sentence = self.read(*[self.CHAT] * 5, most=3)
    self.assertIn("3 of 3 conversations", sentence)
    self.assertIn("only the first warm_start.num_demonstrations=3", sentence)

  def test_a_share_is_held_out_by_its_prompts(self):
    rows = [copy.deepcopy(self.CHAT) for _ in range(100)]
    for n, row in enumerate(rows):
      row["messages"][0]["content"] = f"{n // 2}?"  # two samples of a task
    found, sentence = self.read(*rows)
    again, _ = self.read(*rows[::-1])
    held, others = (
      sorted(x.token[x.policy_slot == demonstrations.HELD_OUT])
      for x in (found, again)
    )
    self.assertNotEmpty(held)
    self.assertEqual(held, others)
    self.assertRegex(sentence, r"9. of 100 conversations .*; [2468] held out")
    self.assertNotIn("held out", self.read(*rows[:99])[1])

  def test_nothing_to_learn_is_refused(self):
    for rows in ((), ({},)):
      with self.assertRaisesRegex(ConfigError, "nothing to learn from"):
        self.read(*rows)

  @pytest.mark.slow
  def test_processes_change_nothing(self):
    rows = [copy.deepcopy(self.CHAT) for _ in range(5)]
    for n, row in enumerate(rows):
      row["messages"][1]["content"] = "4" * (n + 1)
    alone, sentence = self.read(*rows)
    with mock.patch.object(demonstrations, "CHATS_CHUNK", 2):
      shared, same = self.read(*rows)
    self.assertEqual(same, sentence)
    learned = [each.token[each.mask] for each in (alone, shared)]
    self.assertCountEqual(learned[0].tolist(), learned[1].tolist())


class DemonstrationsTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    config = quickstart.get_config()
    cls.settings = read_settings(config)
    cls.folder = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    options = config.tokenizer.to_dict() | {"num_texts": 200}
    demonstrations.make_tokenizer(cls.settings, **options).save(
      str(cls.folder / "tokenizer.json")
    )

  @pytest.mark.slow
  def test_processes_share_the_work_and_change_nothing(self):
    seen = []
    number = demonstrations.CHUNK + 20
    rows = demonstrations.demonstrate(
      self.settings, self.folder, number, seen.append
    )
    alone = [
      demonstrations._pack_chunk(self.settings, self.folder, start, size, 1)
      for start, size in ((0, demonstrations.CHUNK), (demonstrations.CHUNK, 20))
    ]
    for name, array in rows.arrays().items():
      np.testing.assert_array_equal(
        array, np.concatenate([part.arrays()[name] for part in alone])
      )
    self.assertEqual(seen[-1], number)
    self.assertEqual(seen, sorted(seen))
    path = self.folder / "rows.npz"
    demonstrations.save_rows(path, rows)
    found = demonstrations.load_rows(path)
    np.testing.assert_array_equal(found.token, rows.token)
    path.write_bytes(path.read_bytes()[:5000])
    with self.assertRaisesRegex(CheckpointError, "Remove it"):
      demonstrations.load_rows(path)

  @pytest.mark.slow
  def test_every_row_once_per_epoch(self):
    rows = demonstrations._pack_chunk(self.settings, self.folder, 0, 8, 8)
    epochs = list(demonstrations.shuffled(rows, seed=3, epochs=2))
    for order in epochs:
      np.testing.assert_array_equal(np.sort(order), np.arange(len(rows.token)))
    again = list(demonstrations.shuffled(rows, seed=3, epochs=2))
    np.testing.assert_array_equal(epochs, again)
