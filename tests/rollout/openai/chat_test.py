"""`/v1/chat/completions` called with the real `openai` package."""

import json
import threading

import numpy as np
import openai
import pytest

from agentrl_jax.data.records import Message, tool_from_json
from tests.data.chat import families
from tests.rollout import talking
from tests.rollout.openai.chatting import ADD, ASKED, CALLS, IDS, Asking


class OpenAIChatTest(Asking):
  async def asyncSetUp(self):
    self.served = await self.enterAsyncContext(talking.Talking())

  @pytest.mark.slow
  async def test_a_conversation_is_shown_by_its_template(self):
    reply = await self.ask(
      [{"role": "developer", "content": "Be short."}, ASKED],
      tools=[ADD],
      max_tokens=4,
      logprobs=True,
    )
    messages = [
      Message("system", "Be short."),
      Message("user", ASKED["content"]),
    ]
    expected = talking.codec().start(messages, [tool_from_json(ADD)])
    self.assertEqual(reply.prompt_token_ids, expected.tolist())
    (choice,) = reply.choices
    raw = talking.raw_logprobs(10, reply.prompt_token_ids + choice.token_ids)
    actual = [token.logprob for token in choice.logprobs.content]
    np.testing.assert_allclose(actual, raw[len(expected) - 1 :], atol=1e-5)
    self.assertEqual(choice.token_versions, [10] * len(choice.token_ids))
    self.assertEqual(reply.usage.prompt_tokens, len(expected))

  async def test_conversations_continue_with_the_sampled_tokens(self):
    codec, messages = talking.codec(), [ASKED]
    stream: list[int] = []
    differs = False
    for seed in range(5):
      reply = await self.ask(messages, seed=seed, max_completion_tokens=9)
      (choice,) = reply.choices
      self.assertEqual(reply.prompt_token_ids[: len(stream)], stream)
      self.assertIn(
        reply.usage.prompt_tokens_details.cached_tokens,
        range(max(len(stream) - 1, 0), len(stream) + 1),
      )
      stream = reply.prompt_token_ids + choice.token_ids
      again = codec.encode(choice.message.content).tolist()
      differs |= again != choice.token_ids
      # As an agent may: the object, or what it dumps itself to.
      answer = choice.message
      messages += [answer if seed % 2 else answer.model_dump(), ASKED]
    self.assertTrue(differs, "retokenising would have gone unnoticed")

  @pytest.mark.slow
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

  async def test_models_are_the_versions_served(self):
    actual = {m.id: m.step async for m in self.served.openai.models.list()}
    first = dict.fromkeys(("tiny", "tiny@policy_slot0", "tiny@step10"), 10)
    second = dict.fromkeys(("tiny@policy_slot1", "tiny@step20"), 20)
    self.assertEqual(actual, first | second)
    one = await self.served.openai.models.retrieve("tiny@step20")
    self.assertEqual(one.policy_slot, 1)
    for name in (
      "tiny@step30",
      "tiny@policy_slot2",
      "gpt-4",
      "tiny@policy_slot",
      "tiny@step" + "9" * 5000,
    ):
      with self.assertRaisesRegex(openai.NotFoundError, "tiny@step10"):
        await self.ask([ASKED], model=name)

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


class HarmonyTest(Asking):
  """A family whose thoughts, texts and calls stand between markers."""

  async def asyncSetUp(self):
    source = (families.HERE / "gptoss.jinja").read_text()
    codec = families.codec_of(families.HARMONY, source)
    self.codec = lambda: codec
    self.policy = talking.Scripted(self.codec)
    self.served = await self.enterAsyncContext(
      talking.Talking(
        codec=self.codec, generator=self.policy, limits={"context": 2048}
      )
    )

  async def test_calls_thoughts_and_texts(self):
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    called = (
      "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
    )
    final = "<|channel|>final<|message|>It is 3."
    self.policy.says = [
      f'{thought}{called}{{"a": 1, "b": 2}}<|call|>',
      f"{thought}{final}<|return|>",
      *[f"{final}<|return|>"] * 2,
    ]
    reply = await self.ask([ASKED], tools=[ADD])
    (choice,) = reply.choices
    self.assertEqual(choice.finish_reason, "tool_calls")
    self.assertIsNone(choice.message.content)
    self.assertEqual(choice.message.reasoning_content, "hm")
    (call,) = choice.message.tool_calls
    self.assertEqual(json.loads(call.function.arguments), {"a": 1, "b": 2})
    said = [ASKED, choice.message]
    said += [{"role": "tool", "tool_call_id": call.id, "content": "3"}]
    second = (await self.ask(said, tools=[ADD])).choices[0].message
    self.assertEqual(
      (second.content, second.reasoning_content), ("It is 3.", "hm")
    )
    kept = reply.prompt_token_ids + choice.token_ids
    prompt = self.policy.prompts[1]
    self.assertEqual(prompt[: len(kept)], kept)
    self.assertEqual(
      self.codec().decode(prompt[len(kept) :]),
      '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"3"'
      "<|end|><|start|>assistant",
    )
    text = ""
    async for chunk in await self.ask([ASKED], stream=True):
      text += chunk.choices[0].delta.content or ""
    self.assertEqual(text, "It is 3.")
    cut = (await self.ask([ASKED], stop=["3"])).choices[0]
    self.assertEqual(
      (cut.message.content, cut.finish_reason), ("It is ", "stop")
    )

  async def test_malformed_answers_are_text(self):
    call = "<|channel|>commentary to=functions.add<|message|>"
    for text in (
      "hello<|return|>",
      "<|channel|>foo<|message|>hello<|return|>",
      f"{call}hello<|call|>",
      "<|start|>user<|message|>hello<|end|><|return|>",
    ):
      self.policy.says = [text]
      (choice,) = (await self.ask([ASKED], tools=[ADD])).choices
      self.assertIn("hello", choice.message.content)
      self.assertIsNone(choice.message.tool_calls)


class PrefillTest(Asking):
  """Answers that the client begins."""

  async def ask_of(self, name, last, says, **fields):
    family, source = families.templates()[name]
    self.codec = families.codec_of(family, source)
    self.policy = talking.Scripted(lambda: self.codec)
    stop = self.codec.decode(self.codec.stop_tokens[:1])
    self.policy.says = [f"{says}{stop}"] * 2
    serving = talking.Talking(
      codec=lambda: self.codec, generator=self.policy, limits={"context": 2048}
    )
    self.served = await self.enterAsyncContext(serving)
    return await self.ask([ASKED, last], **fields)

  async def test_the_prompt_goes_on_and_the_answer_is_what_follows(self):
    last = {"role": "assistant", "content": '{"a":'}
    for name in ("small_qwen3", "small_gptoss", "small_llama31", "small_glm4"):
      for extra, is_mistrals in (
        ({"continue_final_message": True}, {}),
        ({}, {"prefix": True}),
      ):
        for given in ({}, {"tools": [ADD]}):
          reply = await self.ask_of(
            name, last | is_mistrals, " 1}", extra=extra, **given
          )
          self.assertEqual(reply.choices[0].message.content, " 1}", name)
          prompt = self.codec.decode(self.policy.prompts[0])
          self.assertTrue(prompt.endswith('{"a":'), prompt)
          # The client goes on with the whole answer.
          whole = last | {"content": '{"a": 1}'}
          await self.ask([ASKED, whole, ASKED], **given)
          kept = reply.prompt_token_ids + reply.choices[0].token_ids
          self.assertEqual(self.policy.prompts[1][: len(kept)], kept)


class ToolCallsTest(Asking):
  async def asyncSetUp(self):
    self.policy = talking.Scripted()
    self.served = await self.enterAsyncContext(
      talking.Talking(generator=self.policy)
    )

  async def test_calls_come_back_as_calls(self):
    self.policy.says = [CALLS, "It is 3.<|end|>"]
    asked = ASKED | {"name": "Ann"}
    reply = await self.ask([asked], tools=[ADD])
    (choice,) = reply.choices
    self.assertEqual(choice.finish_reason, "tool_calls")
    self.assertEqual(choice.message.content, "Let me see.")
    first, second = choice.message.tool_calls
    self.assertEqual(first.function.name, "add")
    self.assertEqual(json.loads(first.function.arguments), {"a": 1, "b": 2})
    self.assertNotEqual(first.id, second.id)
    replies = [
      {"role": "tool", "tool_call_id": call.id, "content": "3", "name": "add"}
      for call in (first, second)
    ]
    others = {"name": "agent", "provider_specific_fields": {"refusal": None}}
    answer = choice.message.model_dump() | others
    with self.assertLogs("agentrl_jax.rollout.server.metrics"):
      await self.ask([asked, answer, *replies], tools=[ADD])
    kept = reply.prompt_token_ids + choice.token_ids
    self.assertEqual(self.policy.prompts[1][: len(kept)], kept)
    rest = talking.codec().decode(self.policy.prompts[1][len(kept) :])
    self.assertEqual(rest, "<|tool|>3<|end|><|tool|>3<|end|><|assistant|>")

  async def test_half_a_surrogate_pair_can_be_sent_back(self):
    text = r'{"a": "\ud83d", "b": 1.10}'
    call = f'<tool_call>{{"name": "add", "arguments": {text}}}</tool_call>'
    self.policy.says = [f"{call}<|end|>", *["3<|end|>"] * 2]
    reply = await self.ask([ASKED], tools=[ADD])
    message = reply.choices[0].message
    self.assertEqual(message.tool_calls[0].function.arguments, text)
    replied = {"role": "tool", "content": "3"}
    replied["tool_call_id"] = message.tool_calls[0].id
    await self.ask([ASKED, message, replied], tools=[ADD])
    anew = message.model_dump(exclude_none=True)  # as another line of tokens
    await self.ask([ASKED, ASKED, anew, replied], tools=[ADD])
    self.assertIn("\ufffd", talking.codec().decode(self.policy.prompts[2]))

  async def test_streamed_calls_are_those_of_the_whole_answer(self):
    self.policy.says = [CALLS, CALLS]
    whole = (await self.ask([ASKED], tools=[ADD])).choices[0].message
    async with self.served.openai.chat.completions.stream(
      model="tiny", messages=[ASKED], tools=[ADD]
    ) as stream:
      async for _ in stream:
        pass
      final = (await stream.get_final_completion()).choices[0]
    self.assertEqual(final.finish_reason, "tool_calls")
    self.assertEqual(final.message.content, whole.content)
    calls = zip(final.message.tool_calls, whole.tool_calls, strict=True)
    for streamed, call in calls:
      self.assertEqual(streamed.function.arguments, call.function.arguments)
      self.assertEqual(streamed.id, call.id)

  async def test_without_tools_or_with_none_to_choose_all_is_text(self):
    for fields in (dict(), dict(tools=[ADD], tool_choice="none")):
      self.policy.says = [CALLS]
      (choice,) = (await self.ask([ASKED], **fields)).choices
      self.assertIsNone(choice.message.tool_calls)
      self.assertEqual(choice.message.content, CALLS.removesuffix("<|end|>"))
      self.assertEqual(choice.finish_reason, "stop")

  async def test_without_a_tokenizer_a_chat_is_refused(self):
    served = await self.enterAsyncContext(talking.Talking(codec=lambda: None))
    with self.assertRaisesRegex(openai.BadRequestError, "tokenizer"):
      await served.openai.chat.completions.create(
        model="tiny", messages=[ASKED]
      )
    with self.assertRaisesRegex(openai.BadRequestError, "tokenizer"):
      await served.openai.completions.create(model="tiny", prompt="text")
    reply = await served.openai.completions.create(
      model="tiny", prompt=[1, 2], extra_body=IDS
    )
    self.assertEqual(reply.choices[0].text, "")
    self.assertEqual(len(reply.choices[0].token_ids), 16)
