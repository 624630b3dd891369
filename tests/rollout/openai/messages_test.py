"""Message fields that clients send: OpenAI's own, and those that are not."""

import unittest

import aiohttp
import prometheus_client as prometheus

from agentrl_jax.rollout.openai.messages import read_messages, unknown_fields
from agentrl_jax.rollout.server.metrics import (
  MAX_IGNORED,
  OTHER_FIELD,
  IgnoredFields,
)
from tests.rollout import talking
from tests.rollout.openai.chatting import ADD, ASKED, CALLS, Asking

COUNTED = "agentrl_ignored_message_fields_total"


class FieldsTest(unittest.TestCase):
  def test_openai_s_own_are_read_and_none_of_them_is_unknown(self):
    found = [
      {"role": "developer", "content": "Be short.", "name": "boss"},
      {"role": "user", "content": "x", "name": "Ann"},
      {
        "role": "assistant",
        "content": "y",
        "name": "agent",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
      },
      {"role": "tool", "content": "z", "tool_call_id": "1", "name": "add"},
    ]
    self.assertEqual(unknown_fields(found), frozenset())
    self.assertEqual([m.content for m in read_messages(found)][1:], [*"xyz"])

  def test_a_refusal_is_what_was_said(self):
    for message in (
      {"role": "assistant", "content": None, "refusal": "I cannot."},
      {"role": "assistant", "refusal": "I cannot."},
      {
        "role": "assistant",
        "content": [{"type": "refusal", "refusal": "I cannot."}],
      },
    ):
      (read,) = read_messages([message])
      self.assertEqual(read.content, "I cannot.")

  def test_unknown_ones_are_named_once_and_null_is_not_given(self):
    found = [
      {"role": "user", "content": "x", "a": 1, "b": None},
      {"role": "user", "content": "x", "a": {}, "c": []},
      "no message",
    ]
    self.assertEqual(unknown_fields(found), {"a", "c"})
    self.assertEqual(unknown_fields("nothing"), frozenset())


class IgnoredFieldsTest(unittest.TestCase):
  def setUp(self):
    self.registry = prometheus.CollectorRegistry()
    self.ignored = IgnoredFields(self.registry)

  def counted(self, field):
    return self.registry.get_sample_value(COUNTED, {"field": field})

  def test_each_is_logged_once_and_counted_by_call(self):
    with self.assertLogs("agentrl_jax.rollout.server.metrics") as logs:
      for _ in range(3):
        self.ignored.count({"provider_specific_fields", "reasoning"})
    self.assertEqual(len(logs.records), 2)
    self.assertEqual(self.counted("reasoning"), 3)

  def test_strangers_names_do_not_fill_the_registry_nor_the_log(self):
    with self.assertLogs("agentrl_jax.rollout.server.metrics") as logs:
      for n in range(1000):
        self.ignored.count({f"field_{n}"})
      self.ignored.count({"x" * 9_999, "a\nb", "\u00e9", ""})
    self.assertEqual(len(logs.records), MAX_IGNORED)
    self.assertEqual(self.counted("field_0"), 1)
    self.assertEqual(self.counted(OTHER_FIELD), 1000 - MAX_IGNORED + 1)
    (metric,) = self.registry.collect()
    fields = {sample.labels["field"] for sample in metric.samples}
    self.assertEqual(len(fields), MAX_IGNORED + 1)


class ServedTest(Asking):
  async def test_a_second_turn_goes_on_where_the_first_ended(self):
    policy = talking.Scripted()
    self.served = await self.enterAsyncContext(
      talking.Talking(generator=policy)
    )
    policy.says = [CALLS, "It is 3.<|end|>"]
    asked = ASKED | {"name": "Ann"}
    said = await self.ask([asked], tools=[ADD])
    answer = said.choices[0].message.model_dump()
    answer |= {"name": "agent", "provider_specific_fields": {"refusal": None}}
    replies = [
      {"role": "tool", "tool_call_id": call.id, "content": "3", "name": "add"}
      for call in said.choices[0].message.tool_calls
    ]
    with self.assertLogs("agentrl_jax.rollout.server.metrics"):
      await self.ask([asked, answer, *replies], tools=[ADD])
    kept = said.prompt_token_ids + said.choices[0].token_ids
    self.assertEqual(policy.prompts[1][: len(kept)], kept)
    async with (
      aiohttp.ClientSession() as http,
      http.get(f"{self.served.url}/metrics") as response,
    ):
      page = await response.text()
    self.assertIn(COUNTED + '{field="provider_specific_fields"} 1.0', page)


if __name__ == "__main__":
  unittest.main()
