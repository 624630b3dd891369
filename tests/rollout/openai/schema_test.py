"""Validation of requests, and fields of messages that are not OpenAI's own."""

import unittest

import aiohttp
import prometheus_client as prometheus

from agentrl_jax.rollout.openai.schema import ChatCompletionRequest
from agentrl_jax.rollout.openai.validation import read
from agentrl_jax.rollout.server.errors import ApiError
from agentrl_jax.rollout.server.metrics import (
  MAX_IGNORED,
  OTHER_FIELD,
  IgnoredFields,
)
from tests.rollout import talking
from tests.rollout.openai.chatting import ADD, ASKED, CALLS, Asking

COUNTED = "agentrl_ignored_message_fields_total"


def request_of(messages) -> ChatCompletionRequest:
  return read(ChatCompletionRequest, {"model": "tiny", "messages": messages})


class FieldsTest(unittest.TestCase):
  def test_openai_s_own_are_read_and_none_of_them_is_unknown(self):
    messages = [
      {"role": "developer", "content": "Be short.", "name": "boss"},
      {"role": "user", "content": "x", "name": "Ann"},
      {"role": "assistant", "content": "y", "name": "agent", "annotations": []}
      | dict.fromkeys(("refusal", "audio", "function_call", "tool_calls")),
      {"role": "tool", "content": "z", "tool_call_id": "1", "name": "add"},
    ]
    request = request_of(messages)
    self.assertEqual(request.ignored, frozenset())
    self.assertEqual([m.content for m in request.messages][1:], [*"xyz"])

  def test_a_refusal_is_what_was_said(self):
    refusal = {"refusal": "I cannot."}
    for message in (
      {"content": None, **refusal},
      refusal,
      {"content": [{"type": "refusal", **refusal}]},
    ):
      messages = [{"role": "assistant", **message}]
      (read_message,) = request_of(messages).messages
      self.assertEqual(read_message.to_message().content, "I cannot.")

  def test_unknown_ones_are_named_once_and_null_is_not_given(self):
    messages = [
      {"role": "user", "content": "x", "a": 1, "b": None},
      {"role": "user", "content": "x", "a": {}, "c": []},
    ]
    self.assertEqual(request_of(messages).ignored, {"a", "c"})


class RefusalTest(unittest.TestCase):
  def refused(self, **fields):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    with self.assertRaises(ApiError) as caught:
      read(ChatCompletionRequest, body | fields)
    return caught.exception.param, caught.exception.code

  def test_errors_name_the_field_and_have_a_code(self):
    for fields, param, code in (
      ({"model": None}, "model", "missing_required_parameter"),
      ({"messages": []}, "messages", "invalid_value"),
      ({"messages": [5] * 9}, "messages[0]", "invalid_value"),
      ({"seed": 2**64}, "seed", "invalid_value"),
      ({"temperature": 10**400}, "temperature", "invalid_value"),
      (
        {"max_tokens": 5, "max_completion_tokens": 6},
        "max_completion_tokens",
        "invalid_value",
      ),
      ({"stop": ["a"] * 100_000}, "stop", "invalid_value"),
      ({"echo": True}, "echo", "unsupported_value"),
      (
        {"stream": True, "stream_options": {"usage": True}},
        "stream_options.usage",
        "unknown_parameter",
      ),
      ({f"x{n}": n for n in range(50_000)}, "x0", "unknown_parameter"),
    ):
      with self.subTest(param):
        self.assertEqual(self.refused(**fields), (param, code))


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
    reply = await self.ask([asked], tools=[ADD])
    answer = reply.choices[0].message.model_dump()
    answer |= {"name": "agent", "provider_specific_fields": {"refusal": None}}
    replies = [
      {"role": "tool", "tool_call_id": call.id, "content": "3", "name": "add"}
      for call in reply.choices[0].message.tool_calls
    ]
    with self.assertLogs("agentrl_jax.rollout.server.metrics"):
      await self.ask([asked, answer, *replies], tools=[ADD])
    kept = reply.prompt_token_ids + reply.choices[0].token_ids
    self.assertEqual(policy.prompts[1][: len(kept)], kept)
    async with (
      aiohttp.ClientSession() as http,
      http.get(f"{self.served.url}/metrics") as response,
    ):
      page = await response.text()
    self.assertIn(COUNTED + '{field="provider_specific_fields"} 1.0', page)
