"""A run finds its files from any working directory, and no other's."""

import pathlib

import numpy as np
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.hugging_face import tensor_files
from agentrl_jax.model.hugging_face.tensor_files import model_digest
from configs import base, environments
from launch.run import context
from launch.storage.config_paths import absolute, kept_digest, require_model
from launch.storage.run_config import run_config
from launch.storage.run_directory import RunDirectory


def write_model(folder: pathlib.Path, value: float = 1.0) -> pathlib.Path:
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "config.json").write_text('{"model_type": "qwen3"}')
  array = np.full((8, 8), value, np.float32)
  tensor_files.write_file(
    folder / "model.safetensors", {"w": (array.dtype, array.shape)}, [array]
  )
  return folder


def a_config(**changes):
  config = base.get_config()
  config.update_from_flattened_dict({"pretrained.path": "small"} | changes)
  return config


@pytest.fixture
def here(tmp_path, monkeypatch):
  (tmp_path / "here").mkdir()
  monkeypatch.chdir(tmp_path / "here")
  write_model(tmp_path / "here" / "small")
  return tmp_path / "here"


@pytest.fixture
def elsewhere(tmp_path):
  (tmp_path / "elsewhere").mkdir()
  return tmp_path / "elsewhere"


def test_a_run_knows_its_files_from_elsewhere(here, elsewhere, monkeypatch):
  write_model(here / "a")
  config = a_config(
    **{
      "checkpoint.directory": "kept",
      "rollouts.snapshots": "gs://bucket/x",
      "rollouts.token_file": "env:TOKEN",
      "cross_policy.policy_slots": ("fresh", "steps 1,2 of a"),
      "environments.dbbench.options.source": "dev=a,std=small",
      "environments.webshop.options.products": "a",
    }
  )
  RunDirectory(elsewhere / "run", "").keep_config(config)
  monkeypatch.chdir(elsewhere)
  found = run_config(elsewhere / "run")
  assert [
    found.pretrained.path,
    found.checkpoint.directory,
    found.rollouts.snapshots,
    found.rollouts.token_file,
    found.cross_policy.policy_slots,
    found.environments.dbbench.options.source,
    found.environments.webshop.options.products,
  ] == [
    f"{here}/small",
    f"{here}/kept",
    "gs://bucket/x",
    "env:TOKEN",
    ("fresh", f"steps 1,2 of {here}/a"),
    f"dev={here}/a,std={here}/small",
    f"{here}/a",
  ]
  assert config.pretrained.path == "small"


def test_a_chat_template_is_a_name_or_a_file(here):
  for template, place in (
    ("hermes", "hermes"),
    ("", ""),
    ("own.jinja", str(here / "own.jinja")),
  ):
    config = a_config(**{"chat.template": template})
    assert absolute(config).chat.template == place


def test_text_of_an_environment_is_no_path(here):
  config = a_config()
  with config.unlocked():
    config.environments.puzzle = environments.entry(
      "agentrl_jax.env.adapters.gym:Gymnasium",
      options={"instructions": "Answer with a number only."},
    )
  options = absolute(config).environments.puzzle.options
  assert options.instructions == "Answer with a number only."


def test_a_model_at_a_new_place_is_kept(here, elsewhere):
  run = RunDirectory(here / "run", "")
  run.keep_config(a_config())
  (here / "small").rename(elsewhere / "moved")
  run.keep_config(a_config(**{"pretrained.path": f"{elsewhere}/moved"}))
  assert run_config(here / "run").pretrained.path == f"{elsewhere}/moved"


def test_another_text_for_the_same_file_is_no_other_setting(here):
  run = RunDirectory(here / "run", "")
  key = "environments.dbbench.options.source"
  run.keep_config(a_config(**{key: "small"}))
  with run.stage("tokenizer"):
    pass
  run.keep_config(a_config(**{key: f"{here}/small"}))
  with pytest.raises(
    ConfigError, match=f"{key} was '.*small' and is '.*other'"
  ):
    run.keep_config(a_config(**{key: "other"}))


def test_another_model_under_the_same_path_is_refused(here):
  run = RunDirectory(here / "run", "")
  run.keep_config(a_config())
  with run.stage("tokenizer"):
    pass
  write_model(here / "small", 2.0)
  with pytest.raises(
    ConfigError, match="holds another model than the one that"
  ):
    run.keep_config(a_config())
  with pytest.raises(ConfigError, match=f"pretrained.path={here}/small holds"):
    require_model(f"{here}/small", run.root)
  write_model(here / "small")
  run.keep_config(a_config())


def test_a_digest_is_of_what_is_computed(here):
  first = model_digest(here / "small")
  path = here / "small" / "config.json"
  path.write_text('{"model_type": "qwen3", "use_cache": false}')
  assert model_digest(here / "small") == first
  path.write_text('{"model_type": "qwen3", "rope_theta": 5.0}')
  assert model_digest(here / "small") != first
  assert model_digest(here) is None


def test_every_process_of_a_run_has_the_same_model(here):
  class Processes:
    count = 2

    def __init__(self, first):
      self.share_json = lambda own, what: first

  path = str(here / "small")
  context._require_one_model(path, Processes(model_digest(path)))
  with pytest.raises(ConfigError, match=f"{path} holds another model on this"):
    context._require_one_model(path, Processes("0123"))


@pytest.mark.parametrize("text", ["[1]", "3", "{}"])
def test_a_damaged_digest_is_one_sentence(here, text):
  (here / "pretrained.json").write_text(text)
  with pytest.raises(ConfigError, match="pretrained.json cannot be read"):
    kept_digest(here)
