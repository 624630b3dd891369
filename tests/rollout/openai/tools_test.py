"""Function calls, asked for and answered by the real `openai` package."""

import json
import unittest

import openai

from agentrl_jax.data.messages import Message
from tests.rollout import talking
from tests.rollout.openai.chatting import ADD, ASKED, CALLS, IDS, Asking


class ToolCallsTest(Asking):
  async def asyncSetUp(self):
    self.policy = talking.Scripted()
    self.served = await self.enterAsyncContext(
      talking.Talking(generator=self.policy)
    )

  async def test_calls_come_back_as_calls(self):
    self.policy.says = [CALLS, "It is 3.<|end|>"]
    said = await self.ask([ASKED], tools=[ADD])
    (choice,) = said.choices
    self.assertEqual(choice.finish_reason, "tool_calls")
    self.assertEqual(choice.message.content, "Let me see.")
    first, second = choice.message.tool_calls
    self.assertEqual(first.function.name, "add")
    self.assertEqual(json.loads(first.function.arguments), {"a": 1, "b": 2})
    self.assertNotEqual(first.id, second.id)
    replies = [
      {"role": "tool", "tool_call_id": call.id, "content": "3"}
      for call in (first, second)
    ]
    await self.ask([ASKED, choice.message, *replies], tools=[ADD])
    kept = said.prompt_token_ids + choice.token_ids
    self.assertEqual(self.policy.prompts[1][: len(kept)], kept)
    codec = talking.codec()
    self.assertEqual(
      codec.decode(self.policy.prompts[1][len(kept) :]),
      "<|tool|>3<|end|><|tool|>3<|end|><|assistant|>",
    )

  async def test_arguments_may_be_written_anew_and_text_be_stripped(self):
    self.policy.says = [" hm " + CALLS, "3<|end|>"]
    said = await self.ask([ASKED], tools=[ADD])
    kept = said.prompt_token_ids + said.choices[0].token_ids
    answer = said.choices[0].message.model_dump(exclude_none=True)
    answer["content"] = answer["content"].strip()
    for call in answer["tool_calls"]:
      arguments = json.loads(call["function"]["arguments"])
      call["function"]["arguments"] = json.dumps(arguments, indent=1)
    await self.ask([ASKED, answer, ASKED], tools=[ADD])
    self.assertEqual(self.policy.prompts[1][: len(kept)], kept)

  async def test_an_answer_that_was_changed_is_shown_by_the_template(self):
    self.policy.says = ["It is 3.<|end|>", "Yes.<|end|>"]
    await self.ask([ASKED])
    changed = {"role": "assistant", "content": "It is 4."}
    await self.ask([ASKED, changed, ASKED])
    asked = Message("user", ASKED["content"])
    wanted = talking.codec().start(
      [asked, Message("assistant", "It is 4."), asked], []
    )
    self.assertEqual(self.policy.prompts[1], wanted.tolist())

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
    self.assertEqual(
      [c.function.arguments for c in final.message.tool_calls],
      [c.function.arguments for c in whole.tool_calls],
    )
    self.assertEqual(
      [c.id for c in final.message.tool_calls],
      [c.id for c in whole.tool_calls],
    )

  async def test_without_tools_or_with_none_to_choose_all_is_text(self):
    for fields in (dict(), dict(tools=[ADD], tool_choice="none")):
      self.policy.says = [CALLS]
      (choice,) = (await self.ask([ASKED], **fields)).choices
      self.assertIsNone(choice.message.tool_calls)
      self.assertEqual(choice.message.content, CALLS.removesuffix("<|end|>"))
      self.assertEqual(choice.finish_reason, "stop")

  async def test_a_call_that_cannot_be_read_is_text(self):
    self.policy.says = ['<tool_call>{"name": add}</tool_call><|end|>']
    (choice,) = (await self.ask([ASKED], tools=[ADD])).choices
    self.assertIsNone(choice.message.tool_calls)
    self.assertIn('{"name": add}', choice.message.content)

  async def test_without_a_tokenizer_a_chat_is_refused(self):
    served = await self.enterAsyncContext(talking.Talking(codec=lambda: None))
    with self.assertRaisesRegex(openai.BadRequestError, "tokenizer"):
      await served.openai.chat.completions.create(
        model="tiny", messages=[ASKED]
      )
    with self.assertRaisesRegex(openai.BadRequestError, "tokenizer"):
      await served.openai.completions.create(model="tiny", prompt="text")
    said = await served.openai.completions.create(
      model="tiny", prompt=[1, 2], extra_body=IDS
    )
    self.assertEqual(said.choices[0].text, "")
    self.assertEqual(len(said.choices[0].token_ids), 16)


if __name__ == "__main__":
  unittest.main()
