"""The command that serves, as a process, asked by the real `openai` client."""

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import jax
import openai
import pytest
from absl.testing import absltest

from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.errors import AgentRLError
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.learner import Learner, make_optimizer
from agentrl_jax.train.objective import supervised_objective
from agentrl_jax.train.weights.checkpoint import Checkpoints
from launch.config.settings import read_settings
from launch.serving.served_model import find_model
from launch.storage.run_directory import RunDirectory
from tests.launch import tiny
from tests.launch.export_test import write_model

DEADLINE_S = 600.0
STEPS = (2, 4)
TOKEN = "a-token-of-a-test-of-serving"
ASKED = [{"role": "user", "content": "What is 1 + 2?"}]
IDS = {"return_token_ids": True}


def write_run(workdir: pathlib.Path, **stages) -> pathlib.Path:
  """A run as `launch.train` leaves it, whose steps are random weights."""
  config = tiny.get_config()
  config.workdir = str(workdir)
  config.compile_cache = ""
  settings = read_settings(config)
  run = RunDirectory(workdir / "tiny")
  run.keep_config(config)
  vocab_size = settings.model.vocab_size
  train_tokenizer(["What is 1 + 2?"] * 9, vocab_size=vocab_size).save(
    str(run.tokenizer)
  )
  policy = Policy(settings.model, settings.compute)
  learner = Learner(
    policy,
    supervised_objective(policy, settings.loss),
    make_optimizer(settings.optimizer, 1),
    sharding.make_mesh(settings.mesh),
  )
  for stage, steps in stages.items():
    checkpoints = Checkpoints(run.checkpoints(stage), keep=9)
    for step in steps:
      state = learner.init(policy.init(jax.random.key(step)))
      version = state.version + step
      checkpoints.save(dataclasses.replace(state, version=version), {})
    checkpoints.close()
  return run.root


class Serving:
  """`launch.serve` with these flags; its lines as they come."""

  def __init__(self, *flags):
    self.process = subprocess.Popen(
      [sys.executable, "-m", "launch.serve", "--driver=local", *flags],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    self.said = ""
    self._reading = threading.Thread(target=self._read, daemon=True)
    self._reading.start()

  def _read(self):
    for line in self.process.stdout:
      self.said += line

  def wait_for(self, pattern):
    ends = time.monotonic() + DEADLINE_S
    while not (found := re.search(pattern, self.said)):
      is_over = self.process.poll() is not None and not self._reading.is_alive()
      if is_over or time.monotonic() > ends:
        raise AssertionError(f"no {pattern!r} in {self.said}")
      time.sleep(0.05)
    return found

  def end(self, number=None):
    """Its exit status, by a signal or by itself."""
    if number is not None and self.process.poll() is None:
      self.process.send_signal(number)
    status = self.process.wait(DEADLINE_S)
    self._reading.join(DEADLINE_S)
    self.process.stdout.close()
    return status


def test_models_that_cannot_be_served_are_refused(tmp_path):
  model, broken = tmp_path / "model", tmp_path / "broken"
  write_model(model)
  broken.mkdir()
  (broken / "config.json").write_text("{")
  for run, folder, context, sentence in (
    ("", "", None, "name what to serve"),
    ("runs/a", model, None, "a second one has a server of its own"),
    ("", tmp_path, None, "has no config.json: name a local Hugging Face"),
    ("", broken, None, "is not JSON"),
    ("", f"a@b={model}", None, "cannot name a model"),
    ("", model, 4096, "beyond the 2048 tokens"),
    ("", model, 1, "must be 2 tokens or more"),
  ):
    with pytest.raises(AgentRLError, match=sentence):
      find_model(run, str(folder), context=context, dtype=None)
  for run, folder, sentence in (
    ("runs/a", "", "a run has its own: leave it out"),
    ("", str(model), "chat.template='hermse'.*mean hermes"),
  ):
    with pytest.raises(AgentRLError, match=sentence):
      find_model(run, folder, context=None, dtype=None, template="hermse")


@pytest.mark.slow
class ServeTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    stack = contextlib.ExitStack()
    cls.addClassCleanup(stack.close)
    cls.root = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    cls.run_root = write_run(cls.root, rl=STEPS, warm_start=(7,))
    cls.model = cls.root / "model"
    write_model(cls.model)

  def serve(self, *flags):
    server = Serving("--port=0", "--slots=2", *flags)
    self.addCleanup(server.end, signal.SIGKILL)
    return server

  def test_a_checkpoint_answers_by_both_names_until_told_to_stop(self):
    token_file = self.root / "token"
    token_file.write_text(f"{TOKEN}\nof the test\n")
    server = self.serve(
      f"--run=run={self.run_root}", f"--token_file={token_file}"
    )
    url = server.wait_for(r"listening at (http://\S+/v1): (.*)")[1]
    for line in (
      "loading run@4 from .*stage rl, step 4",
      'curl http.*Bearer \\$\\(head -n 1 .*token\\)".*"model": "run"',
    ):
      server.wait_for(line)
    with self.assertRaises(openai.AuthenticationError):
      openai.OpenAI(base_url=url, api_key="guessed").models.list()
    with openai.OpenAI(base_url=url, api_key=TOKEN, max_retries=0) as client:
      steps = {model.id: model.step for model in client.models.list()}
      self.assertEqual(steps, {"run": 4, "run@4": 4})
      said = [self._said(client, name) for name in steps]
      self.assertEqual([each.token_versions for each in said], [[4] * 8] * 2)
      self.assertEqual(said[0].token_ids, said[1].token_ids)
      with self.assertRaisesRegex(openai.NotFoundError, "run@4"):
        client.chat.completions.create(model="run@3", messages=ASKED)
      stream = client.chat.completions.create(
        model="run", messages=ASKED, max_tokens=200, stream=True, temperature=0
      )
      next(stream)
      # What is being answered is finished, and the process ends well.
      server.process.send_signal(signal.SIGTERM)
      chunks = list(stream)
      self.assertIsNotNone(chunks[-1].choices[0].finish_reason)
    self.assertEqual(server.end(), 0, server.said)
    self.assertIn("told to stop", server.said)
    self.assertNotIn("Traceback", server.said)

  def _said(self, client, name):
    return client.chat.completions.create(
      model=name,
      messages=ASKED,
      max_tokens=8,
      temperature=0,
      extra_body=IDS | {"ignore_eos": True},
    ).choices[0]

  def test_a_folder_answers_by_its_name(self):
    server = self.serve(f"--model=qwen={self.model}")
    url = server.wait_for(r"listening at (http://\S+/v1): qwen")[1]
    server.wait_for("compiling qwen: 2 answers at once of up to 2048 tokens")
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
      self.assertLen(self._said(client, "qwen").token_ids, 8)
      biased = client.completions.create(
        model="qwen",
        prompt="one",
        max_tokens=5,
        logit_bias={"70": 100},
        logprobs=2,
        extra_body=IDS,
      ).choices[0]
    self.assertEqual(biased.token_ids, [70] * 5)
    self.assertLen(biased.logprobs.top_logprobs, 5)

  def test_a_port_that_is_taken_is_said_before_anything_is_loaded(self):
    with socket.create_server(("127.0.0.1", 0)) as taken:
      port = taken.getsockname()[1]
      server = Serving(f"--model={self.model}", f"--port={port}")
      self.assertEqual(server.end(), 2)
    self.assertRegex(
      server.said, rf"\AConfigError: cannot listen on 127.0.0.1:{port} .*--port"
    )
    self.assertEqual(server.said.count("\n"), 1, server.said)

  def test_runs_that_cannot_be_served_are_refused(self):
    empty = write_run(self.root / "empty")
    for run, sentence in (
      (self.root, "has no config.yaml"),
      (empty, "has no checkpoint yet"),
      (f"{self.run_root}@3", "there are warm_start, 2, 4"),
    ):
      with (
        self.subTest(sentence),
        self.assertRaisesRegex(AgentRLError, sentence),
      ):
        find_model(str(run), "", context=None, dtype=None)

  def test_words_for_versions(self):
    for words, version, step in (
      ("", "4", 4),
      ("@2", "2", 2),
      ("@warm_start", "warm_start", 0),
    ):
      model = find_model(
        f"{self.run_root}{words}", "", context=None, dtype="bfloat16"
      )
      self.assertEqual(model.compute.dtype, "bfloat16")
      self.assertEqual(model.names, ("tiny", f"tiny@{version}"))
      self.assertEqual(model.step, step)
