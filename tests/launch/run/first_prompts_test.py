"""A run says at its start what its chat template shows."""

import asyncio
import contextlib
import dataclasses
import json
import types

import pytest

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.tokenizer import load_tokenizer, train_tokenizer
from agentrl_jax.errors import ConfigError, EnvironmentFault
from configs.every_environment import with_environments
from environments.arithmetic.environment import Arithmetic
from launch.config.settings import read_settings
from launch.reports.first_prompts import read_first_prompts
from launch.run import training
from launch.storage.run_directory import RunDirectory
from tests.data.chat import families


class Broken(Arithmetic):
  """Opens no session."""

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    raise EnvironmentFault("no machine is left")
    yield


class Hanging(Arithmetic):
  """Never opens one."""

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    await asyncio.Event().wait()
    yield


@pytest.fixture
def context(tmp_path, monkeypatch):
  monkeypatch.setattr(training, "_PROMPT_S", 0.5)
  target = "environments.arithmetic.environment:Arithmetic"
  names = ("sums", "broken", "hanging")
  config = with_environments(dict.fromkeys(names, target))
  config.tasks.names = names
  folder = RunDirectory(tmp_path / "run")
  train_tokenizer(families.TEXTS, vocab_size=300).save(str(folder.tokenizer))
  return types.SimpleNamespace(folder=folder, settings=read_settings(config))


def test_prompts_stand_in_the_run_and_faults_beside_them(context, capsys):
  environments = {
    "sums": Arithmetic(),
    "broken": Broken(),
    "hanging": Hanging(),
  }
  limits = dataclasses.replace(context.settings.episode, max_tokens=9)
  context.settings = dataclasses.replace(context.settings, episode=limits)
  training.show_first_prompts(context, environments)
  shown = capsys.readouterr().out
  assert "episode.max_tokens=9: raise it, or leave out tools" in shown
  prompts = read_first_prompts(context.folder.first_prompts)
  sums = prompts["sums"]
  assert "<|assistant|>" in sums.text
  assert "add(a: integer, b: integer): Adds two integers." in sums.text
  codec = ChatCodec(load_tokenizer(context.folder.tokenizer))
  assert codec.decode(sums.ids) == sums.text
  assert sums.text in shown
  assert f"{len(sums.ids)} tokens" in shown
  assert "no machine is left" in prompts["broken"].fault
  assert "0.5 s" in prompts["hanging"].fault
  assert "broken shows no first prompt" in shown
  # Once: a run that goes on says it no more.
  training.show_first_prompts(context, environments)
  assert not capsys.readouterr().out


def test_long_prompts_are_shortened_on_the_terminal(context):
  environments = {"sums": Arithmetic()}
  training.show_first_prompts(context, environments)
  path = context.folder.first_prompts
  body = json.loads(path.read_text())
  body["sums"] |= {"text": "head" + "x" * 9000 + "tail", "ids": [*range(9000)]}
  path.write_text(json.dumps(body))
  shown = read_first_prompts(path)["sums"].shown("sums", path)
  assert len(shown) < 3000
  for part in ("head", "tail", str(path), "0 1 2", "... 8976", "8999"):
    assert part in shown


def test_a_template_that_cannot_show_the_tools_ends_the_run_at_once(
  context, tmp_path, monkeypatch
):
  model = tmp_path / "model"
  model.mkdir()
  families.write_folder(model, families.SPELT, families.named("plain"))
  chat = context.folder.root / "chat"
  model.rename(chat)
  with pytest.raises(ConfigError, match="'add'.*chat.template=hermes"):
    training.show_first_prompts(context, {"sums": Arithmetic()})
  assert not context.folder.first_prompts.exists()
