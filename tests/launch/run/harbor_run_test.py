"""A folder of Harbor's tasks trains by the command of its README."""

import pathlib
import re
import shlex
import shutil
import tempfile

import pytest

from configs import finetune
from launch.reports.metrics_file import read_metrics
from launch.run.training import train
from tests.environments.harbor.folders import generated_tasks
from tests.environments.os_interaction.engines import InSandbox
from tests.launch.export_test import write_model
from tests.launch.run.finetune_test import SMALL, STEPS

README = pathlib.Path(__file__).parents[3] / "environments/harbor/README.md"


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1800)
class HarborRunTest(InSandbox):
  def test_a_folder_trains_and_is_evaluated(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    shutil.copytree(generated_tasks().name, root / "tasks")
    write_model(root / "model")
    (command,) = re.findall(
      r"python -m launch.train (.*?)\n```", README.read_text(), re.DOTALL
    )
    config = finetune.get_config(str(root / "model"))
    words = shlex.split(command.replace("\\\n", ""))
    flags = dict(word.split("=", 1) for word in words)
    self.assertEqual(flags.pop("--config"), "configs/finetune.py:MODEL")
    self.assertEqual(flags.pop("--config.tasks.names"), '("harbor",)')
    ((key, folder),) = flags.items()
    small = {k: v for k, v in SMALL.items() if "environments" not in k}
    config.update_from_flattened_dict(
      small
      | {
        "workdir": str(root / "runs"),
        "tasks.names": ("harbor",),
        key.removeprefix("--config."): str(root / folder),
        "environments.harbor.options.engine": "sandbox",
        "environments.harbor.options.rootfs": self.options["rootfs"],
        "sampling.calls": "required",
        "episode.max_answer_tokens": 48,
      }
    )
    train(config)
    rows = read_metrics(root / "runs/model/metrics.jsonl")
    updates = [row.values for row in rows if row.stage == "rl"]
    self.assertEqual(len(updates), STEPS)
    self.assertIn("success/harbor", updates[-1])
    self.assertEqual(updates[-1]["rollout/token_identity/harbor"], 1.0)
