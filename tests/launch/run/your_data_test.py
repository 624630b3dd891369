"""The program of docs/your_data.md scores answers, and trains."""

import importlib
import json
import pathlib
import re
import sys
import tempfile
import unittest

import pytest

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.metrics import read_metrics
from launch.config.settings import read_settings
from launch.run.training import train
from tests.launch.export_test import write_model
from tests.launch.run.finetune_test import SMALL

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "your_data.md"


class YourDataTest(unittest.IsolatedAsyncioTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (line,) = re.findall(r"^\{.*\}$", PAGE.read_text(), re.MULTILINE)
    (cls.root / "my_data.py").write_text(program)
    cls.item = json.loads(line)
    for name in ("train", "test"):
      (cls.root / f"{name}.jsonl").write_text(f"{line}\n" * 4)
    sys.path.insert(0, str(cls.root))
    cls.addClassCleanup(sys.path.remove, str(cls.root))
    cls.module = importlib.import_module("my_data")
    cls.addClassCleanup(sys.modules.pop, "my_data")

  async def play(self, text: str):
    """The end of an episode with this answer."""
    source = f"train={self.root}/train.jsonl,test={self.root}/test.jsonl"
    environment = self.module.Questions(source=source)
    task = Task("questions", "test", 0)
    async with environment.open(task, seed=0) as session:
      first = await session.reset()
      self.assertIn(self.item["question"], first.messages[-1].content)
      call = ToolCall("answer", json.dumps({"text": text}), "call_0")
      return await session.step(Message("assistant", tool_calls=(call,)))

  async def test_the_solution_alone_is_rewarded(self):
    for text, reward in ((self.item["solution"], 1.0), ("Lyon", 0.0)):
      step = await self.play(text)
      self.assertEqual((step.reward, step.status), (reward, Status.COMPLETED))

  @pytest.mark.slow
  def test_training_writes_metrics_of_the_task(self):
    write_model(self.root / "model")
    config = self.module.get_config(str(self.root / "model"))
    small = {k: v for k, v in SMALL.items() if "options" not in k}
    config.update_from_flattened_dict(
      small
      | {
        "workdir": str(self.root / "runs"),
        "train.steps": 1,
        "environments.questions.options.source": (
          f"train={self.root}/train.jsonl,test={self.root}/test.jsonl"
        ),
      }
    )
    read_settings(config)
    train(config)
    (path,) = self.root.glob("runs/*/metrics.jsonl")
    rows = [row for row in read_metrics(path) if row.stage == "rl"]
    self.assertIn("success/questions", rows[-1].values)


if __name__ == "__main__":
  unittest.main()
