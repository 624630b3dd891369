"""Engines of other projects: probes, checks of answers, and versions."""

import asyncio
import contextlib
import dataclasses
import functools
import tempfile
import unittest
from unittest import mock

import aiohttp
import numpy as np
import pytest

from agentrl_jax.errors import ConfigError, PromptTooLong
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.external.client import DIALECTS, EngineClient
from agentrl_jax.rollout.external.probe import Abilities, Needs
from agentrl_jax.rollout.external.response import EngineLacks
from agentrl_jax.rollout.remote.generator import connected
from tests.clocks import turns_of_the_loop, until
from tests.rollout import small
from tests.rollout.drivers.contract import SHORT, mixed_requests
from tests.rollout.external.peers import OwnServer, SglangPeer, VllmPeer
from tests.settings import rollouts_config

QUICK = dict(
  health_interval_s=0.05, server_timeout_s=30.0, answer_timeout_s=60.0
)
NEEDS = Needs(vocab_size=small.VOCAB)
NEEDS_TWO = dataclasses.replace(NEEDS, num_policy_slots=2)
SPEC = SamplingParams(max_tokens=20, seed=5)
PEERS = {"openai": VllmPeer, "sglang": SglangPeer}


class EnginesCase(unittest.IsolatedAsyncioTestCase):
  async def peer(self, protocol, *lacks, **options):
    actual = PEERS[protocol](*lacks, **options)
    return await self.enterAsyncContext(actual)

  async def connect(
    self,
    protocol,
    *addresses,
    needs=NEEDS,
    model="",
    acceptable=dict,
    **changes,
  ):
    config = rollouts_config(servers=",".join(addresses), **(QUICK | changes))
    speaking = functools.partial(
      EngineClient, dialect=DIALECTS[protocol], needs=needs, model=model
    )
    return await self.enterAsyncContext(
      connected(
        config,
        num_policy_slots=needs.num_policy_slots,
        acceptable=acceptable,
        client=speaking,
      )
    )

  async def connected_peer(self, protocol, *lacks, publication=5, **options):
    """Serves step 10 as a peer; returns it and a generator connected to it."""
    peer = await self.peer(protocol, *lacks)
    peer.publish(10, publication)
    return peer, await self.connect(protocol, peer.address, **options)

  async def asked_while_held(self, peer, generator):
    """Sends a request, which the peer holds back until `peer.hold` is set."""
    peer.hold.clear()
    before = peer.num_asked
    asked = asyncio.create_task(generator.generate([1], SPEC))
    await until(lambda: peer.num_asked > before)
    return asked

  async def refused(self, words, protocol, *lacks, needs=NEEDS, **options):
    """Checks that the first wait ends with an error of these words."""
    peer = await self.peer(protocol, *lacks)
    generator = await self.connect(
      protocol, peer.address, needs=needs, **options
    )
    with self.assertRaisesRegex(EngineLacks, words) as caught:
      await generator.serving({}, 60)
    self.assertIn(peer.address, str(caught.exception))
    with self.assertRaises(EngineLacks):
      await generator.generate([1], SPEC)


async def heard_again(generator):
  """Waits until the servers were polled twice, and requests had their turn."""
  announce = generator._announce
  with mock.patch.object(generator, "_announce", wraps=announce) as heard:
    await until(lambda: heard.call_count > 1)
  await turns_of_the_loop()


class RefusalTest(EnginesCase):
  @pytest.mark.slow
  async def test_missing_abilities_are_refused_by_name(self):
    for protocol, lack, words in (
      ("openai", "token_ids", "no token ids.*return_token_ids"),
      ("openai", "prompt", "was asked .*and answered"),
      ("openai", "logprobs", "no log-probability.*--logprobs-mode"),
      ("openai", "a_logprob", "no log-probability of every token"),
      ("openai", "logits", "above 0: these are logits.*--logprobs-mode"),
      ("openai", "max_tokens", "13 tokens for max_tokens=12"),
      ("openai", "vocabulary", "sampled token 61.*ids 0 to 60"),
      ("openai", "stop_token", "keeps the stop token to itself"),
      ("openai", "stop_ignored", "went on after stop token"),
      ("openai", "seeds", "same seed has two answers.*need_seeds"),
      ("openai", "takes_seed", "accepts no seed.*JAX does not.*need_seeds"),
      ("openai", "versions", "/weight_info: .*VLLM_SERVER_DEV_MODE=1"),
      ("sglang", "logprobs", "no log-probability.*return_logprob"),
      ("sglang", "seeds", "--enable-deterministic-inference"),
      ("sglang", "versions", "SGLang-JAX has none"),
    ):
      with self.subTest(protocol=protocol, lack=lack):
        await self.refused(words, protocol, lack)

  async def test_requests_that_other_engines_do_not_know_are_refused(self):
    async with aiohttp.ClientSession() as http:
      client = EngineClient(http, DIALECTS["openai"], NEEDS)
      for spec, words in (
        (SamplingParams(grammar='start: "a"'), "must follow a grammar"),
        (SamplingParams(frequency_penalty=1.0), "which are not sent"),
        (SamplingParams(num_top=2), "which are not sent"),
      ):
        with self.assertRaisesRegex(ConfigError, words):
          client.request([1], spec)

  async def test_one_logprob_is_not_taken_for_two(self):
    for spec in (SamplingParams(temperature=0.8), SamplingParams(top_p=0.9)):
      needs = dataclasses.replace(NEEDS, specs=(SamplingParams(), spec))
      await self.refused(
        "one log-probability per token.*sampling.temperature=1",
        "openai",
        needs=needs,
      )

  async def test_several_versions_are_refused(self):
    needs = dataclasses.replace(NEEDS, num_policy_slots=2)
    await self.refused("2 policy slots", "openai", needs=needs)

  async def test_another_model_is_named(self):
    await self.refused(
      r"no model 'other'; it has \['tiny'\]", "openai", model="other"
    )

  async def test_another_protocol_is_named(self):
    peer = await self.peer("sglang")
    generator = await self.connect("openai", peer.address)
    with self.assertRaisesRegex(ConfigError, "/v1/completions.*404"):
      await generator.serving({}, 60)

  async def test_an_engine_without_seeds_serves_a_run_that_needs_none(self):
    needs = dataclasses.replace(NEEDS, seeds=False)
    for lack in ("takes_seed", "seeds"):
      peer, generator = await self.connected_peer("openai", lack, needs=needs)
      answer = await generator.generate([1, 2], SPEC)
      self.assertEqual(len(answer.sampled), 20)
      self.assertNotIn("seed", peer.bodies[-1])

  @pytest.mark.slow
  async def test_a_token_is_shown_and_a_wrong_one_is_a_refusal(self):
    peer = await self.peer("openai", token="secret")
    peer.publish(10, 5)
    with tempfile.NamedTemporaryFile("w+") as file:
      for words, result in (
        ("401", "other"),
        ("token_file=.* is empty", ""),
        ("", "secret"),
      ):
        file.seek(0)
        file.truncate()
        print(result, file=file, flush=True)
        with (
          self.assertRaisesRegex(ConfigError, words)
          if words
          else contextlib.nullcontext()
        ):
          generator = await self.connect(
            "openai", peer.address, token_file=file.name
          )
          await generator.serving({}, 60)
    self.assertEqual(len((await generator.generate([1], SPEC)).sampled), 20)


class AnswersTest(EnginesCase):
  def expected(self, prompt, spec, step=10):
    (answer,) = small.answers_of([(prompt, spec)], (step,))
    return answer

  async def test_answers_are_those_of_the_engine(self):
    for protocol in PEERS:
      peer, generator = await self.connected_peer(protocol, publication=77)
      await generator.serving({}, 60)
      kind = {"openai": "endpoint", "sglang": "token"}[protocol]
      self.assertEqual(
        generator._client.abilities(peer.address),
        Abilities(takes_seeds=True, both_logprobs=False, versions=kind),
      )
      for spec in (
        SPEC,
        SamplingParams(max_tokens=9, temperature=0.0),
        SamplingParams(max_tokens=60, seed=3, stop_tokens=(7, 9, 30)),
      ):
        prompt = small.prompt_of(1, 30)
        answer = await generator.generate(prompt, spec)
        small.assert_same(answer, self.expected(prompt, spec), atol=1e-5)

  async def test_weights_that_the_run_has_not_named_are_not_asked(self):
    for protocol in PEERS:
      peer = await self.peer(protocol)  # its label is "default"
      generator = await self.connect(protocol, peer.address)
      await generator.serving({}, 60)
      tried = peer.num_asked
      asked = asyncio.create_task(generator.generate([1], SPEC))
      await heard_again(generator)
      self.assertIn("has not named", generator.describe())
      self.assertEqual((asked.done(), peer.num_asked), (False, tried))
      peer.publish(3, 5)
      self.assertEqual(set((await asked).version), {3})

  async def test_weights_that_are_too_old_are_not_sampled_from(self):
    peer, generator = await self.connected_peer(
      "openai", acceptable=lambda: {0: 6}
    )
    stale = asyncio.create_task(generator.generate([1], SPEC))
    await generator.serving({}, 60)
    await heard_again(generator)
    self.assertFalse(stale.done())
    peer.publish(11, 6)
    self.assertEqual(set((await stale).version), {11})

  @pytest.mark.slow
  async def test_weights_that_change_meanwhile_are_never_guessed(self):
    for protocol, lacks in (("openai", ()), ("sglang", ("spans",))):
      peer, generator = await self.connected_peer(protocol, *lacks)
      await generator.generate([1], SPEC)
      asked = await self.asked_while_held(peer, generator)
      peer.publish(11, 6)
      peer.hold.set()
      answer = await asked
      expected = self.expected([1], SPEC, 11)
      np.testing.assert_array_equal(answer.sampled, expected.sampled)
      self.assertEqual(set(answer.version), {11})
      self.assertEqual(generator.num_repeated, 1)

  async def test_a_swap_while_an_engine_is_tried_is_no_refusal(self):
    peer = await self.peer("openai")
    peer.publish(10, 5)
    peer.swaps_at = 2  # what was answered with one seed is not repeated
    generator = await self.connect("openai", peer.address)
    answer = await generator.generate([1], SPEC)
    self.assertEqual(set(answer.version), {11})

  async def test_spans_of_versions_are_taken_token_by_token(self):
    peer, generator = await self.connected_peer("sglang")
    await generator.generate([1], SPEC)
    asked = await self.asked_while_held(peer, generator)
    peer.publish(11, 6)
    peer.hold.set()
    self.assertEqual((await asked).version.tolist(), [10] * 10 + [11] * 10)
    self.assertEqual(generator.num_repeated, 0)

  async def test_a_connection_that_breaks_costs_no_answer(self):
    for protocol in PEERS:
      peers = [await self.peer(protocol) for _ in range(2)]
      for peer in peers:
        peer.publish(10, 5)
      generator = await self.connect(
        protocol, *(peer.address for peer in peers), health_interval_s=60.0
      )
      await generator.serving({0: 5}, 60)
      servers = generator.pool.servers
      await until(lambda: all(s.is_reachable for s in servers))  # noqa: B023
      peers[0].lacks.add("connection")
      specs = [SamplingParams(max_tokens=9, seed=seed) for seed in range(6)]
      answers = await asyncio.gather(
        *(generator.generate([1, 2], spec) for spec in specs)
      )
      for spec, answer in zip(specs, answers, strict=True):
        expected = self.expected([1, 2], spec)
        np.testing.assert_array_equal(answer.sampled, expected.sampled)
      self.assertGreater(generator.num_repeated, 0)
      self.assertEqual([s.num_lost for s in servers], [1, 0])

  async def test_a_prompt_too_long_is_not_sent(self):
    peer, generator = await self.connected_peer("openai")
    await generator.generate([1], SPEC)
    asked = peer.num_asked
    with self.assertRaisesRegex(PromptTooLong, "97; .*takes 96"):
      await generator.generate([1] * 77, SPEC)
    with self.assertRaisesRegex(ConfigError, "knows 0 to 60"):
      await generator.generate([small.VOCAB], SPEC)
    with self.assertRaisesRegex(ConfigError, "token id"):
      await generator.generate([0.5], SPEC)
    self.assertEqual(peer.num_asked, asked)


TRUNCATED = SamplingParams(temperature=0.7, top_k=5, top_p=0.8)
TWO_POLICY_SLOTS = Needs(
  vocab_size=small.VOCAB, num_policy_slots=2, specs=(TRUNCATED,)
)


class OwnServerTest(EnginesCase):
  async def serve(self, **changes):
    return await self.enterAsyncContext(OwnServer(**changes))

  async def connected_server(self, *, needs=TWO_POLICY_SLOTS):
    served = await self.serve()
    return served, await self.connect("openai", served.address, needs=needs)

  async def ask(self, generator, requests):
    return await asyncio.gather(*(generator.generate(*r) for r in requests))

  async def test_answers_are_those_of_the_binary_endpoint(self):
    served = await self.serve()
    requests = list(mixed_requests(24))
    other = await self.connect("openai", served.address, needs=TWO_POLICY_SLOTS)
    actual = await self.ask(other, requests)
    config = rollouts_config(servers=served.address, **QUICK)
    async with connected(config, num_policy_slots=2) as binary:
      target = await self.ask(binary, requests)
    for answer, expected in zip(actual, target, strict=True):
      self.assertEqual(answer.policy_slot, expected.policy_slot)
      small.assert_same(answer, expected, atol=1e-5)

  async def test_every_token_has_its_own_version(self):
    served, generator = await self.connected_server()
    await generator.generate([1], SHORT)
    engine = served.driver.engine
    before, step = engine.stats().num_sampled[0], engine.step

    def step_and_swap():
      if engine.stats().num_sampled[0] >= before + 6:
        engine.step = step
        engine.versions.publish(small.params(30), 30)
      return step()

    engine.step = step_and_swap
    answer = await generator.generate([1], SamplingParams(max_tokens=60))
    self.assertEqual(set(answer.version), {10, 30})
    self.assertTrue(np.all(np.diff(answer.version) >= 0))

  async def test_a_vocabulary_that_does_not_fit_is_refused(self):
    needs = dataclasses.replace(TWO_POLICY_SLOTS, vocab_size=small.VOCAB + 9)
    _, generator = await self.connected_server(needs=needs)
    with self.assertRaisesRegex(ConfigError, f"knows 0 to {small.VOCAB - 1}"):
      await generator.serving({}, 60)

  async def test_a_server_without_weights_is_waited_for(self):
    served = await self.serve()
    serving, served.serving = served.serving, False
    generator = await self.connect("openai", served.address, needs=NEEDS_TWO)
    await until(lambda: generator.pool.servers[0].is_reachable)
    asked = asyncio.create_task(generator.generate([1], SHORT))
    await heard_again(generator)
    self.assertFalse(asked.done())
    served.serving = serving
    self.assertEqual(len((await asked).sampled), SHORT.max_tokens)
