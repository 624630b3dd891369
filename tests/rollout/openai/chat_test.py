"""`/v1/chat/completions` asked by the real `openai` package."""

import asyncio
import json
import threading
import unittest

import aiohttp
import numpy as np
import openai

from agentrl_jax.data.messages import Message, tool_from_json
from tests.rollout import talking
from tests.rollout.openai.chatting import ADD, ASKED, Asking


class OpenAIChatTest(Asking):
  async def asyncSetUp(self):
    self.served = await self.enterAsyncContext(talking.Talking())

  async def test_a_conversation_is_shown_by_its_template(self):
    said = await self.ask(
      [{"role": "developer", "content": "Be short."}, ASKED],
      tools=[ADD],
      max_tokens=4,
      logprobs=True,
    )
    messages = [
      Message("system", "Be short."),
      Message("user", ASKED["content"]),
    ]
    wanted = talking.codec().start(messages, [tool_from_json(ADD)])
    self.assertEqual(said.prompt_token_ids, wanted.tolist())
    (choice,) = said.choices
    raw = talking.raw_logprobs(10, said.prompt_token_ids + choice.token_ids)
    found = [token.logprob for token in choice.logprobs.content]
    np.testing.assert_allclose(found, raw[len(wanted) - 1 :], atol=1e-5)
    self.assertEqual(choice.token_versions, [10] * len(choice.token_ids))
    self.assertEqual(said.usage.prompt_tokens, len(wanted))

  async def test_what_was_sampled_goes_on_as_it_was_sampled(self):
    codec, messages = talking.codec(), [ASKED]
    stream: list[int] = []
    differs = False
    for seed in range(5):
      said = await self.ask(messages, seed=seed, max_completion_tokens=9)
      (choice,) = said.choices
      self.assertEqual(said.prompt_token_ids[: len(stream)], stream)
      self.assertIn(
        said.usage.prompt_tokens_details.cached_tokens,
        range(max(len(stream) - 1, 0), len(stream) + 1),
      )
      stream = said.prompt_token_ids + choice.token_ids
      again = codec.encode(choice.message.content).tolist()
      differs |= again != choice.token_ids
      # As an agent may: the object, or what it dumps itself to.
      answer = choice.message
      messages += [answer if seed % 2 else answer.model_dump(), ASKED]
    self.assertTrue(differs, "retokenising would have gone unnoticed")

  async def test_streaming_says_what_the_whole_answer_says(self):
    for seed in range(3):
      fields = dict(seed=seed, max_tokens=30, logprobs=True)
      whole = (await self.ask([ASKED], **fields)).choices[0]
      text, ids, logprobs = "", [], []
      async for chunk in await self.ask([ASKED], stream=True, **fields):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        ids += getattr(choice, "token_ids", [])
        if choice.logprobs:
          logprobs += [token.logprob for token in choice.logprobs.content]
      self.assertEqual((text, ids), (whole.message.content, whole.token_ids))
      self.assertEqual(choice.finish_reason, whole.finish_reason)
      np.testing.assert_allclose(
        logprobs, [t.logprob for t in whole.logprobs.content], atol=1e-5
      )

  async def test_a_client_without_asyncio_is_answered_too(self):
    def request():
      with self.served.client(openai.OpenAI) as client:
        return client.chat.completions.create(
          model="tiny@policy_slot1", messages=[ASKED], max_tokens=5, n=2, seed=1
        )

    said = await asyncio.to_thread(request)
    self.assertEqual([choice.index for choice in said.choices], [0, 1])
    self.assertEqual(said.usage.completion_tokens, 10)

  async def test_models_are_the_versions_served(self):
    found = {m.id: m.step async for m in self.served.openai.models.list()}
    self.assertEqual(
      found,
      {
        "tiny": 10,
        "tiny@policy_slot0": 10,
        "tiny@step10": 10,
        "tiny@policy_slot1": 20,
        "tiny@step20": 20,
      },
    )
    one = await self.served.openai.models.retrieve("tiny@step20")
    self.assertEqual(one.policy_slot, 1)
    for name in (
      "tiny@step30",
      "tiny@policy_slot2",
      "gpt-4",
      "tiny@policy_slot",
    ):
      with self.assertRaisesRegex(openai.NotFoundError, "tiny@step10"):
        await self.ask([ASKED], model=name)

  async def test_no_field_is_ignored_in_silence(self):
    for name, value in {
      "frequency_penalty": 2.5,
      "presence_penalty": -2.1,
      "logit_bias": {"5": 300},
      "top_logprobs": 2,
      "tool_choice": "required",
      "repetition_penalty": 1.1,
      "reasoning_effort": "low",
      "best_of": 3,
      "temperature": -1,
      "temprature": 1,
      "top_p": 0,
      "n": 0,
      "max_tokens": 0,
      "stop": ["a"] * 5,
      "stop_token_ids": [5, 6, 7, 8],
      "seed": "seven",
      "stream_options": {"include_usage": True},
      "max_completion_tokens": 1000,
    }.items():
      with self.subTest(name), self.assertRaises(openai.BadRequestError) as e:
        await self.ask([ASKED], extra={name: value})
      self.assertEqual(e.exception.type, "invalid_request_error")
      named = e.exception.param or str(e.exception)
      self.assertIn(name, named)
      self.assertTrue(e.exception.code)

  async def test_fields_that_change_nothing_are_let_pass(self):
    await self.ask(
      [ASKED],
      max_tokens=2,
      user="me",
      frequency_penalty=0,
      response_format={"type": "text"},
      extra={"store": False, "logit_bias": None, "reasoning_effort": None},
    )

  async def test_messages_that_cannot_be_read_are_named(self):
    for where, message in (
      ("messages[0]", {"role": "narrator", "content": "x"}),
      ("messages[0].name", {"role": "user", "content": "x", "name": 5}),
      ("messages[0].audio", {"role": "assistant", "audio": {"id": "a"}}),
      (
        "messages[0].function_call",
        {"role": "assistant", "function_call": {"name": "f", "arguments": ""}},
      ),
      (
        "messages[0].content",
        {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
      ),
      ("messages[0]", {"role": "tool", "content": "3"}),
      ("messages[0].refusal", {"role": "assistant", "refusal": ["x"]}),
    ):
      with self.subTest(where), self.assertRaises(openai.BadRequestError) as e:
        await self.ask([message])
      self.assertEqual(e.exception.param, where)

  async def test_what_is_no_text_or_no_schema_is_refused(self):
    deep: list = []
    for _ in range(900):
      deep = [deep]
    for where, messages, function in (
      ("no JSON of Unicode text", [ASKED | {"content": "half: \ud83d"}], {}),
      ("no JSON of Unicode text", [ASKED], {"name": "\udc00"}),
      ("function.parameters=5", [ASKED], {"parameters": 5}),
      ("function.parameters=..ab", [ASKED], {"parameters": ["ab"]}),
      ("function.description=5", [ASKED], {"description": 5}),
      ("nested too deeply", [ASKED], {"parameters": {"enum": deep}}),
    ):
      body = {
        "model": talking.NAME,
        "messages": messages,
        "tools": [{"type": "function", "function": {"name": "f"} | function}],
      }
      with self.subTest(where):
        status, said = await self.post(json.dumps(body).encode())
        self.assertEqual(status, 400)
        self.assertRegex(said["error"]["message"], where)

  async def test_bodies_that_are_no_json_are_refused(self):
    for body in (b"", b"{", b"[]", b"\xff", b'"\xed\xa0\x80"', b"[" * 100_000):
      with self.subTest(body[:9]):
        status, said = await self.post(body)
        self.assertEqual(status, 400)
        self.assertEqual(said["error"]["code"], "invalid_json")

  async def test_a_number_beyond_all_versions_names_none(self):
    with self.assertRaises(openai.NotFoundError):
      await self.ask([ASKED], model="tiny@step" + "9" * 5000)

  async def post(self, body):
    """What no client would let through."""
    url = f"{self.served.url}/v1/chat/completions"
    async with (
      aiohttp.ClientSession() as http,
      http.post(url, data=body) as response,
    ):
      return response.status, await response.json()

  async def test_more_than_may_wait_get_429_and_are_told_when_to_come(self):
    served = await self.enterAsyncContext(
      talking.Talking(slots=(1, 1), driver_options=dict(max_waiting=0))
    )
    refused: list[openai.RateLimitError] = []

    async def request(seed):
      try:
        await served.openai.chat.completions.create(
          model="tiny", messages=[ASKED], max_tokens=60, seed=seed
        )
      except openai.RateLimitError as error:
        refused.append(error)

    await asyncio.gather(*(request(seed) for seed in range(8)))
    self.assertTrue(0 < len(refused) < 8)
    self.assertEqual(refused[0].response.headers["Retry-After"], "1")
    self.assertEqual(refused[0].code, "rate_limit_exceeded")
    # The package comes again by itself, and gets its answer.
    async with served.client(max_retries=20) as patient:
      await asyncio.gather(
        *(
          patient.chat.completions.create(
            model="tiny", messages=[ASKED], max_tokens=30
          )
          for _ in range(5)
        )
      )

  async def test_an_engine_that_breaks_in_a_stream_ends_it_with_its_cause(self):
    go_on = threading.Event()
    self.addCleanup(go_on.set)
    get = self.served.driver.engine.versions.get
    stream = await self.ask([ASKED], stream=True, extra={"ignore_eos": True})
    chunks = aiter(stream)
    await anext(chunks)

    def fail(policy_slot):
      raise ZeroDivisionError("on purpose")

    self.served.driver.engine.versions.get = fail
    with self.assertRaisesRegex(openai.APIError, "on purpose"):
      async for _ in chunks:
        pass
    self.assertIn("on purpose", str(await self.served.api.broken))
    self.served.driver.engine.versions.get = get


if __name__ == "__main__":
  unittest.main()
