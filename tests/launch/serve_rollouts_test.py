"""Rollout servers as processes: followed, killed, started again, told to stop.

The test is the learner: it publishes weights into the run's folder and asks.
"""

import asyncio
import contextlib
import dataclasses
import pathlib
import signal
import tempfile

import jax
import numpy as np
import openai
import pytest
from absl.testing import absltest

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.remote.generator import connected
from launch.config.settings import read_settings
from launch.serve_rollouts import codec_provider
from launch.serving.remote import publisher, snapshots
from tests import programs
from tests.clocks import until
from tests.launch import tiny
from tests.launch.serving.rollout_servers import DEADLINE_S, Server


def test_a_server_finds_the_tokenizer_of_the_run_once_it_is_there(tmp_path):
  config = tiny.get_config()
  config.workdir = str(tmp_path)
  codec = codec_provider(config, read_settings(config))
  assert codec() is None
  (tmp_path / "tiny").mkdir()
  tokenizer = train_tokenizer(["What is 1 + 2?"] * 9, vocab_size=300)
  tokenizer.save(str(tmp_path / "tiny" / "tokenizer.json"))
  np.testing.assert_array_equal(
    codec().encode("1 + 2"), ChatCodec(tokenizer).encode("1 + 2")
  )


@pytest.mark.slow
class RolloutServerTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.stack = contextlib.ExitStack()
    self.addCleanup(self.stack.close)
    self.workdir = pathlib.Path(
      self.stack.enter_context(tempfile.TemporaryDirectory())
    )
    self.config = tiny.get_config()
    self.config.workdir = str(self.workdir)
    self.settings = read_settings(self.config)
    self.policy = Policy(self.settings.model, self.settings.compute)

  def open_sink(self):
    sink = self.stack.enter_context(snapshots(self.config, self.settings))
    self.publisher = publisher(self.settings, self.policy, sink)
    return sink

  def start(self, **options):
    server = Server(self.workdir, **options)
    self.addCleanup(server.kill)
    return server

  def params(self, step):
    return self.policy.init(jax.random.key(step))

  @pytest.mark.slow
  def test_from_the_first_snapshot_to_the_end(self):
    sink = self.open_sink()
    server = self.start()
    for policy_slot in (0, 1):
      self.publisher.publish(self.params(1), 1, policy_slot=policy_slot)
    server.wait_for("rollout server on")
    self._ask_as_openai_does(server)
    asyncio.run(self._play(sink, server))
    self.assertEqual(self.again.end(signal.SIGTERM), 0, self.again.said)
    self.assertIn("told to stop", self.again.said)
    self.assertNotIn("Traceback", self.again.said)

  def _ask_as_openai_does(self, server):
    url = f"http://{server.address}/v1"
    with openai.OpenAI(base_url=url, api_key="none") as client:
      self.assertIn("tiny@step1", {model.id for model in client.models.list()})
      said = client.completions.create(
        model="tiny@policy_slot1",
        prompt=[5, 6, 7],
        max_tokens=3,
        extra_body={"return_token_ids": True},
      )
    self.assertEqual(set(said.choices[0].token_versions), {1})

  async def _play(self, sink, server):
    """Asks through a kill and a new start of the only server."""
    rollouts = dataclasses.replace(
      self.settings.rollouts,
      servers=server.address,
      answer_timeout_s=DEADLINE_S,
    )
    prompt = np.arange(5, 25, dtype=np.int32)
    specs = [SamplingParams(max_tokens=290, seed=seed) for seed in range(20)]
    async with connected(
      rollouts, num_policy_slots=2, acceptable=sink.acceptable
    ) as generator:

      async def ask(spec):
        return await generator.generate(prompt, spec)

      first = await ask(specs[0])
      self.assertEqual(set(first.version), {1})
      await self._ask_by_a_grammar(ask)
      # The next version, and only it, once it was waited for.
      self.publisher.publish(self.params(2), 2)
      await asyncio.to_thread(sink.flush)
      await generator.serving({0: sink.publications()[0]}, DEADLINE_S)
      second = await ask(specs[0])
      self.assertEqual(set(second.version), {2})
      self.assertNotEqual(list(second.sampled), list(first.sampled))
      older = await ask(dataclasses.replace(specs[0], policy_slot=1))
      np.testing.assert_array_equal(older.sampled, first.sampled)
      # Killed with requests inside, and started again: nobody notices.
      asked = [asyncio.create_task(ask(spec)) for spec in specs]
      await until(lambda: generator.pool.servers[0].num_requests)
      server.kill()
      self.again = self.start(port=server.port)
      answers = await asyncio.gather(*asked)
      np.testing.assert_array_equal(answers[0].sampled, second.sampled)
      self.assertEqual({v for a in answers for v in a.version}, {2})
      self.assertGreater(generator.num_repeated, 0)
      self.assertEqual(generator.pool.servers[0].num_lost, 1)

  async def _ask_by_a_grammar(self, ask):
    """As soon as the learner has written down how its run reads and writes."""
    words = ["yes or no"] * 9
    tokenizer = train_tokenizer(
      words, vocab_size=self.settings.model.vocab_size
    )
    codec = ChatCodec(tokenizer)
    spec = SamplingParams(
      grammar='start: "yes" | "no"', stop_tokens=codec.stop_tokens
    )
    with self.assertRaisesRegex(ConfigError, "knows no tokenizer"):
      await ask(spec)
    run = self.workdir / self.config.name
    tokenizer.save(str(run / "tokenizer.json"))
    answers = [await ask(dataclasses.replace(spec, seed=n)) for n in range(6)]
    said = {codec.read(answer.sampled).content for answer in answers}
    self.assertContainsSubset(said, {"yes", "no"})

  @pytest.mark.slow
  def test_another_model_ends_it_with_a_sentence(self):
    self.open_sink()
    self.publisher.publish(self.params(1), 1)
    done = programs.run(
      "launch.serve_rollouts",
      "--config=tests/launch/tiny.py",
      f"--config.workdir={self.workdir}",
      "--config.model.mlp_width=32",
      "--port=0",
      deadline_s=DEADLINE_S,
    )
    self.assertEqual(done.returncode, 2, done.stderr)
    self.assertIn("ConfigError: the snapshots in", done.stderr)
    self.assertIn("start it with the learner's --config", done.stderr)
    self.assertNotIn("Traceback", done.stderr)
