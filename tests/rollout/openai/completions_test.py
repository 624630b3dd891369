"""`/v1/completions` called with the real `openai` package."""

import asyncio
import unittest

import numpy as np
import openai

from agentrl_jax.rollout.api import SamplingParams
from tests.clocks import until
from tests.data.chat import families
from tests.rollout import talking

PROMPT = [9, 8, 7, 6, 5]
IDS = {"return_token_ids": True}


class OpenAICompletionsTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.served = await self.enterAsyncContext(talking.Talking())
    self.client = self.served.openai

  async def ask(self, prompt=PROMPT, *, model=talking.NAME, extra=(), **fields):
    settings = dict(max_tokens=20, seed=3) | fields
    return await self.client.completions.create(
      model=model, prompt=prompt, extra_body=IDS | dict(extra), **settings
    )

  async def collect(self, **fields):
    """Returns the chunks of a stream, and their choices joined."""
    stream = await self.ask(stream=True, **fields)
    chunks = [chunk async for chunk in stream]
    whole = {"text": "", "token_ids": [], "token_logprobs": [], "offsets": []}
    for chunk in chunks:
      for choice in chunk.choices:
        whole["text"] += choice.text
        whole["token_ids"] += choice.token_ids
        if choice.logprobs:
          whole["token_logprobs"] += choice.logprobs.token_logprobs
          whole["offsets"] += choice.logprobs.text_offset
        whole["finish_reason"] = choice.finish_reason
    return chunks, whole

  async def test_token_ids_in_token_ids_out_as_the_engine_gives_them(self):
    for model, policy_slot, step in (
      ("tiny", 0, 10),
      ("tiny@policy_slot1", 1, 20),
      ("tiny@step20", 1, 20),
    ):
      reply = await self.ask(model=model, temperature=0.7, logprobs=0)
      (choice,) = reply.choices
      spec = SamplingParams(
        policy_slot=policy_slot,
        temperature=0.7,
        max_tokens=20,
        seed=3,
        stop_tokens=talking.codec().stop_tokens,
      )
      expected = await self.served.generator.generate(PROMPT, spec)
      self.assertEqual(choice.token_ids, expected.sampled.tolist())
      self.assertEqual(choice.token_versions, [step] * len(expected.sampled))
      self.assertEqual(
        (choice.policy_slot, reply.prompt_token_ids), (policy_slot, PROMPT)
      )
      self.assertEqual(choice.prompt_token_ids, PROMPT)
      np.testing.assert_array_equal(
        choice.behavior_logprobs, expected.behavior_logprob.astype(float)
      )
      raw = talking.raw_logprobs(step, PROMPT + choice.token_ids)
      actual = choice.logprobs.token_logprobs
      np.testing.assert_allclose(actual, raw[len(PROMPT) - 1 :], atol=1e-5)
      self.assertEqual(choice.raw_logprobs, actual)

  async def test_logprobs_of_the_distribution_drawn_from_on_demand(self):
    mode = {"logprobs_mode": "processed_logprobs"}
    reply = await self.ask(temperature=0.5, top_p=0.9, logprobs=0, extra=mode)
    (choice,) = reply.choices
    self.assertEqual(choice.logprobs.token_logprobs, choice.behavior_logprobs)
    self.assertNotEqual(choice.raw_logprobs, choice.behavior_logprobs)

  async def test_usage_counts_every_token(self):
    for prompt, cached in ([PROMPT * 5, 0], [PROMPT * 5, 24]):
      reply = await self.ask(prompt, max_tokens=4, extra={"ignore_eos": True})
      usage = reply.usage
      self.assertEqual((usage.prompt_tokens, usage.completion_tokens), (25, 4))
      self.assertEqual(usage.total_tokens, 29)
      self.assertEqual(usage.prompt_tokens_details.cached_tokens, cached)

  async def test_streaming_says_what_the_whole_answer_says(self):
    for seed in range(4):
      fields = dict(seed=seed, max_tokens=30, logprobs=0)
      whole = (await self.ask(**fields)).choices[0]
      chunks, actual = await self.collect(**fields)
      self.assertGreater(len(chunks), 4)
      self.assertEqual(actual["text"], whole.text)
      self.assertEqual(actual["token_ids"], whole.token_ids)
      self.assertEqual(actual["offsets"], whole.logprobs.text_offset)
      self.assertEqual(actual["finish_reason"], whole.finish_reason)
      np.testing.assert_allclose(
        actual["token_logprobs"], whole.logprobs.token_logprobs, atol=1e-5
      )
      self.assertEqual(chunks[0].prompt_token_ids, PROMPT)
      self.assertEqual(chunks[0].choices[0].prompt_token_ids, PROMPT)

  async def test_a_stream_ends_with_its_usage_if_asked_to(self):
    options = {"include_usage": True}
    chunks, _ = await self.collect(stream_options=options, max_tokens=5)
    self.assertEqual([c.usage for c in chunks[:-1]], [None] * (len(chunks) - 1))
    self.assertEqual(chunks[-1].choices, [])
    self.assertEqual(chunks[-1].usage.prompt_tokens, len(PROMPT))

  async def test_n_answers_and_several_prompts(self):
    reply = await self.ask([PROMPT, [4, 5]], n=3, max_tokens=6)
    self.assertEqual([c.index for c in reply.choices], list(range(6)))
    self.assertEqual(len({tuple(c.token_ids) for c in reply.choices}), 6)
    self.assertEqual(reply.choices[3].prompt_token_ids, [4, 5])
    self.assertEqual(reply.usage.prompt_tokens, 7)
    again = await self.ask([PROMPT, [4, 5]], n=3, max_tokens=6)
    self.assertEqual(
      [c.token_ids for c in reply.choices], [c.token_ids for c in again.choices]
    )
    streamed = {}
    async for chunk in await self.ask(n=3, max_tokens=6, stream=True):
      for choice in chunk.choices:
        streamed.setdefault(choice.index, []).extend(choice.token_ids)
    for choice in reply.choices[:3]:
      self.assertEqual(streamed[choice.index], choice.token_ids)

  async def test_the_first_of_n_is_what_one_alone_is(self):
    one, three = await asyncio.gather(self.ask(n=1), self.ask(n=3))
    self.assertEqual(one.choices[0].token_ids, three.choices[0].token_ids)

  async def test_without_a_seed_answers_differ(self):
    first, second = [
      (await self.ask(seed=openai.omit)).choices[0].token_ids for _ in range(2)
    ]
    self.assertNotEqual(first, second)

  async def test_a_stop_string_cuts_the_text_across_tokens(self):
    options = {"ignore_eos": True}
    whole = (await self.ask(max_tokens=40, extra=options)).choices[0]
    text = whole.text
    codec = talking.codec()
    stops = {text[begin : begin + 2] for begin in range(3, len(text) - 1)}
    stops = sorted(stop for stop in stops if "\ufffd" not in stop)[:5]
    self.assertGreater(len(stops), 2)
    for stop in stops:
      fields = dict(max_tokens=40, stop=["never said", stop], extra=options)
      choice = (await self.ask(**fields)).choices[0]
      cut = text.index(stop)
      self.assertEqual(choice.text, text[:cut])
      self.assertEqual(
        (choice.finish_reason, choice.stop_reason), ("stop", stop)
      )
      size = len(choice.token_ids)
      self.assertEqual(choice.token_ids, whole.token_ids[:size])
      self.assertIn(stop, codec.decode(choice.token_ids))
      self.assertNotIn(stop, codec.decode(choice.token_ids[:-1]))
      _, streamed = await self.collect(**fields)
      self.assertEqual(streamed["text"], choice.text)
      self.assertEqual(streamed["token_ids"], choice.token_ids)

  async def test_stop_tokens_end_an_answer_and_belong_to_it(self):
    free = (await self.ask(extra={"ignore_eos": True})).choices[0]
    self.assertEqual(free.finish_reason, "length")
    stop = free.token_ids[7]
    extra = {"ignore_eos": True, "stop_token_ids": [stop]}
    choice = (await self.ask(extra=extra)).choices[0]
    end = free.token_ids.index(stop) + 1
    self.assertEqual(choice.token_ids, free.token_ids[:end])
    self.assertEqual(choice.finish_reason, "stop")
    self.assertEqual(
      choice.text, talking.codec().decode(free.token_ids[: end - 1])
    )

  async def test_text_has_what_its_tokenizer_puts_around_it(self):
    source = (families.HERE / "llama31.jinja").read_text()
    codec = families.codec_of(families.LLAMA, source)
    policy = talking.Scripted(lambda: codec)
    serving = talking.Talking(codec=lambda: codec, generator=policy)
    served = await self.enterAsyncContext(serving)
    plain = codec.encode("Hi").tolist()
    bos = int(codec.encode(families.LLAMA.bos)[0])
    for prompt, extra, expected in (
      ("Hi", {}, [bos, *plain]),
      (["Hi"], {"add_special_tokens": True}, [bos, *plain]),
      ("Hi", {"add_special_tokens": False}, plain),
      (plain, {}, plain),
    ):
      policy.says = ["a"]
      await served.openai.completions.create(
        model=talking.NAME, prompt=prompt, extra_body=extra
      )
      self.assertEqual(policy.prompts[-1], expected)

  async def test_hanging_up_frees_the_slot(self):
    stream = await self.ask(
      max_tokens=300, stream=True, extra={"ignore_eos": True}
    )
    await anext(aiter(stream))
    await stream.close()
    await until(lambda: not sum(self.served.driver.num_inside))
    stats = self.served.driver.engine.stats()
    self.assertEqual((stats.num_cancelled, stats.num_active), (1, (0, 0)))


class SpacesTest(unittest.IsolatedAsyncioTestCase):
  async def test_an_answer_has_the_first_space_that_was_sampled(self):
    codec = families.codec_of(*families.templates()["prepend_tinyllama"])
    policy = talking.Scripted(lambda: codec)
    policy.says = ["the price</s>"] * 2
    served = await self.enterAsyncContext(
      talking.Talking(codec=lambda: codec, generator=policy)
    )
    asked = {"model": talking.NAME, "max_tokens": 20, "stream": True}
    (text, *_), chat = [
      [chunk.choices[0] async for chunk in await reply]
      for reply in (
        served.openai.completions.create(**asked, prompt="x", logprobs=0),
        served.openai.chat.completions.create(
          **asked, messages=[{"role": "user", "content": "x"}]
        ),
      )
    ]
    said = "".join(choice.delta.content or "" for choice in chat)
    self.assertEqual((text.text, said), (" the price", " the price"))
    self.assertEqual(text.logprobs.tokens, [" the", " price", "</s>"])
