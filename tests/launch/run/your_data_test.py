"""The program of docs/your_data.md scores answers, and trains."""

import contextlib
import json
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import unittest

import pytest

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.env.loading import load_environment
from configs import finetune, gsm8k, sft
from launch.config.chat import codec_of, save_chat
from launch.config.settings import read_settings
from launch.reports.metrics_file import read_metrics
from launch.run import demonstrations
from launch.run.training import train
from tests import programs
from tests.launch.export_test import write_model
from tests.launch.run.finetune_test import SMALL

TASK = Task("questions", "test", 0)
PAGE = pathlib.Path(__file__).parents[3] / "docs" / "your_data.md"


class YourDataTest(unittest.IsolatedAsyncioTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    text = PAGE.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    line, cls.chat = re.findall(r"^\{.*\}$", text, re.MULTILINE)
    (cls.command,) = re.findall(r"python -m .*finetune\.py[^`]*", text)
    cls.flags = dict(
      word.removeprefix("--config.").split("=", 1)
      for word in shlex.split(cls.command)
      if "options" in word
    )
    cls.item = json.loads(line)
    (cls.root / "my_reward.py").write_text(program)
    for name in ("train", "test"):
      rows = [line.replace("the capital", f"{name} {n}") for n in range(4)]
      (cls.root / f"{name}.jsonl").write_text("\n".join(rows))
    cls.enterClassContext(contextlib.chdir(cls.root))
    sys.path.insert(0, str(cls.root))
    cls.addClassCleanup(sys.path.remove, str(cls.root))
    cls.addClassCleanup(sys.modules.pop, "my_reward", None)
    write_model(cls.root / "model")

  async def play(self, config, text):
    """The question, and the end of an episode with this answer."""
    settings = read_settings(config).environments["questions"]
    environment = load_environment(settings.target, settings.options)
    async with environment.open(TASK, seed=0) as session:
      first = await session.reset()
      last = await session.step(Message("assistant", text))
    return first.messages[-1].content, last

  async def test_the_answer_is_rewarded(self):
    config = finetune.get_config(str(self.root / "model"))
    config.tasks.names = ("questions",)
    config.update_from_flattened_dict(self.flags)
    for text, reward in (("It is Paris.", 1.0), ("Lyon", 0.0), ("", 0.0)):
      question, last = await self.play(config, text)
      self.assertIn("of France?", question)
      self.assertEqual((last.reward, last.status), (reward, Status.COMPLETED))

  async def test_gsm8k_is_read_as_it_is_published(self):
    folder = self.root / "grade_school_math"
    folder.mkdir()
    for name, count in (("train", 48), ("test", 6)):
      row = {
        "question": f"Natalia sold {count} clips in April, and half in May?",
        "answer": f"She sold {count}/2 = <<{count}/2={count // 2}>> in May.\n"
        f"#### {count // 2}",
      }
      (folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    config = gsm8k.get_config(str(self.root / "model"))
    config.environments.questions.options.source = str(folder)
    question, last = await self.play(config, "6/2 = 3\n#### 3")
    self.assertEqual(last.reward, 1.0)
    self.assertIn("6 clips in April, and half in May?\nThink", question)

  def test_the_chat_is_learned_from(self):
    path = self.root / "chats.jsonl"
    path.write_text(self.chat)
    config = sft.get_config(str(self.root / "model"))
    config.warm_start.chats = str(path)
    settings = read_settings(config)
    save_chat(self.root / "sft", config.pretrained.path, settings.chat)
    rows, sentence = demonstrations.read_chats(
      settings, self.root / "sft", path, 9, lambda done: None
    )
    codec = codec_of(self.root / "sft", settings.chat)
    self.assertIn("1 of 1 conversations", sentence)
    self.assertEqual(codec.decode(rows.token[rows.mask]), "Hello.<|im_end|>")

  @pytest.mark.slow
  def test_the_command_trains_in_the_folder_of_the_files(self):
    small = {k: v for k, v in SMALL.items() if "options" not in k}
    (self.root / "started").mkdir()
    for name in ("train.jsonl", "test.jsonl", "my_reward.py"):
      shutil.copy(self.root / name, self.root / "started")
    module, config, *words = shlex.split(self.command.replace("\\\n", ""))[2:]
    more = small | {"train.steps": 1}
    done = programs.run(
      module,
      f"{config.partition(':')[0]}:../model",
      *words,
      *[f"--config.{key}={value}" for key, value in more.items()],
      cwd=self.root / "started",
      deadline_s=280,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    metrics = read_metrics(self.root / "started/runs/model/metrics.jsonl")
    rows = [row for row in metrics if row.stage == "rl"]
    self.assertIn("success/questions", rows[-1].values)

  def chats(self, name):
    """A config of chats that teach one answer, without a task."""
    path = self.root / f"{name}.jsonl"
    chats = [self.chat.replace("Hi", f"Hi {n}") for n in range(100)]
    path.write_text("\n".join(chats))
    config = sft.get_config(str(self.root / "model"))
    config.update_from_flattened_dict(
      {
        "compile_cache": "",
        "name": name,
        "workdir": "runs",
        "warm_start.chats": path.name,
        "warm_start.epochs": 30,
        "warm_start.learning_rate": 1e-2,
        "compute.dtype": "float32",
        "train.row_length": 512,
        "episode.max_tokens": 512,
        "engine.context": 512,
        "engine.lengths": (),
      }
    )
    return config

  @pytest.mark.slow
  def test_chats_alone_teach_the_answer(self):
    config = self.chats("alone")
    train(config)
    rows = read_metrics(self.root / "runs/alone/metrics.jsonl")
    found = [row for row in rows if row.stage == "warm_start"]
    for name in ("loss", "loss/held_out"):  # the second before updates, too
      losses = [r.values[name] for r in found if name in r.values]
      self.assertLess(losses[-1], 0.5 * losses[0])
    self.assertEqual((found[0].step, [*found[0].values]), (0, [name]))
    page = (self.root / "runs/alone/report.html").read_text()
    self.assertIn("loss of chats that were held out went from", page)
    train(config)  # all is done

  @pytest.mark.slow
  def test_reinforcement_follows(self):
    config = self.chats("both")
    config.tasks.names = ("questions",)
    small = {k: v for k, v in SMALL.items() if "options" not in k}
    config.update_from_flattened_dict(small | self.flags | {"train.steps": 1})
    train(config)
    rows = read_metrics(self.root / "runs/both/metrics.jsonl")
    self.assertLessEqual({"warm_start", "rl"}, {row.stage for row in rows})
