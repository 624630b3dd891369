"""Old names of keys, metrics and folders lead to names that exist."""

import importlib
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest
import yaml

from agentrl_jax import metrics
from agentrl_jax.controller import player
from agentrl_jax.errors import ConfigError
from agentrl_jax.renamed import MOVED, new_name, renamed_keys
from configs import base
from launch.config import command_line
from launch.storage.run_config import run_config
from launch.storage.run_directory import RunDirectory

pytestmark = pytest.mark.smoke

ROOT = pathlib.Path(__file__).parents[1]
OLD_KEYS = [
  "cross_policy.slots",
  "slot_weights",
  "slot_weights.rule",
  "slot_weights.floor",
  "engine.lanes",
  "engine.num_lane_sizes",
  "engine.prefill_lanes",
  "engine.store_tokens",
  "engine.host_tokens",
  "engine.block_tokens",
  "train.take_s",
  "retry.pause_s",
  "rollouts.lost_s",
  "rollouts.settle_s",
  "rollouts.answer_s",
  "rollouts.start_s",
  "rollouts.poll_s",
  "rollouts.health_s",
  "agents.idle_s",
  "http.head_s",
  "http.body_s",
  "http.compile_s",
  "processes.join_s",
  "processes.heartbeat_s",
  "processes.wait_s",
  "containers.start_s",
  "optimizer.final_share",
  "warm_start.optimizer.final_share",
  "model.rotary_share",
  "advantage.trace",
]
OLD_METRICS = {
  "engine/lane_occupancy/slot0": "engine/slot_occupancy/policy_slot0",
  "engine/wait_s/slot12": "engine/wait_s/policy_slot12",
  "policy/kl_to_behavior/slot1": "policy/kl_to_behavior/policy_slot1",
  "policy/kl_to_behavior/slot1/dbbench": (
    "policy/kl_to_behavior/policy_slot1/dbbench"
  ),
  "slots/weight/slot1/dbbench": "policy_slots/weight/policy_slot1/dbbench",
  "slots/predicted_sample_size/dbbench": (
    "policy_slots/predicted_sample_size/dbbench"
  ),
}


@pytest.mark.parametrize("key", OLD_KEYS)
def test_an_old_key_is_now_one_of_the_config(key):
  config = base.get_config()
  with pytest.raises((KeyError, AttributeError)):
    _ = config[key]
  value = config
  for part in new_name(key).split("."):
    value = value[part]


def test_no_key_of_today_counts_as_old():
  assert renamed_keys(base.get_config().to_dict()) == {}


@pytest.mark.parametrize("name", OLD_METRICS)
def test_an_old_metric_leads_to_that_of_today(name):
  assert new_name(name) == OLD_METRICS[name]
  assert new_name(OLD_METRICS[name]) is None


def test_no_documented_metric_counts_as_old():
  page = (ROOT / "docs" / "reading_a_run.md").read_text()
  names = re.findall(r"`([a-z_]+/[a-z_/<>0-9]+)`", page.replace("<k>", "0"))
  assert len(names) > 20
  assert [name for name in names if new_name(name)] == []


def test_the_command_line_tells_the_new_name():
  with pytest.raises(ConfigError, match=r"is now --config\.engine\.slots"):
    command_line.check_config(
      ["--config=configs/quickstart.py", "--config.engine.lanes=(8,)"]
    )


def test_a_run_of_before_is_told_so():
  with tempfile.TemporaryDirectory() as folder:
    run = RunDirectory(pathlib.Path(folder))
    config = base.get_config()
    path = pathlib.Path(folder) / "config.yaml"
    path.write_text(yaml.safe_dump({"engine": {"lanes": [8]}, "train": {}}))
    for use in (lambda: run.keep_config(config), lambda: run_config(run.root)):
      with pytest.raises(ConfigError, match="engine.lanes is now engine.slots"):
        use()


def test_an_old_metric_of_a_row_is_told_its_new_name():
  with tempfile.TemporaryDirectory() as folder:
    with metrics.MetricsWriter(folder) as writer:
      writer.write(1, {"loss": 1.0}, "rl")
    (row,) = metrics.read_metrics(pathlib.Path(folder) / metrics.FILE)
    with pytest.raises(KeyError, match="is now engine/slot_occupancy"):
      _ = row.values["engine/lane_occupancy/slot0"]
    with pytest.raises(KeyError, match="'reward'"):
      _ = row.values["reward"]


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_old_name_is_the_module_of_today(old, new):
  module = importlib.import_module(new)
  assert importlib.import_module(old) is module
  assert module.__spec__.name == module.__name__ == new


def test_modules_of_a_moved_folder_are_not_loaded_twice():
  from agentrl_jax.env.protocol import wire as old

  from agentrl_jax.service.protocol import wire

  assert old is wire


def test_a_name_that_never_was_is_not_found():
  with pytest.raises(ModuleNotFoundError, match=r"env\.worker\.nothing"):
    importlib.import_module("agentrl_jax.env.worker.nothing")


def test_a_command_starts_by_its_old_name():
  command = [sys.executable, "-m", "agentrl_jax.env.worker", "--help"]
  done = subprocess.run(command, capture_output=True, text=True, timeout=60)
  assert "--environment" in done.stdout, done.stderr


def test_players_have_their_other_names():
  assert player.ScriptedPlayer is player.BaselinePlayer
  assert player.ScriptPlayer is player.ExpertTextPlayer
