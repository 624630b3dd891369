"""Validation of requests, and fields of messages that are not OpenAI's own."""

import unittest

import prometheus_client as prometheus

from agentrl_jax.rollout.openai.schema import ChatCompletionRequest
from agentrl_jax.rollout.openai.validation import read
from agentrl_jax.rollout.server.errors import ApiError
from agentrl_jax.rollout.server.metrics import (
  MAX_IGNORED,
  OTHER_FIELD,
  IgnoredFields,
)

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


NO_MESSAGES = (
  ("role", {"role": "narrator", "content": "x"}, "invalid_value"),
  ("name", {"role": "user", "content": "x", "name": 5}, "invalid_value"),
  ("audio", {"role": "assistant", "audio": {"id": "a"}}, "unsupported_value"),
  (
    "function_call",
    {"role": "assistant", "function_call": {"name": "f", "arguments": ""}},
    "unsupported_value",
  ),
  (
    "content",
    {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
    "unsupported_value",
  ),
  ("tool_call_id", {"role": "tool", "content": "3"}, "invalid_value"),
  ("refusal", {"role": "assistant", "refusal": ["x"]}, "invalid_value"),
)
# Last messages that begin no answer, as the fields would have them.
NOT_BEGUN = (
  {"continue_final_message": True},
  {
    "continue_final_message": True,
    "messages": [{"role": "assistant", "content": ""}],
  },
  {"add_generation_prompt": False},
  {
    "add_generation_prompt": False,
    "messages": [{"role": "assistant", "content": "a"}],
  },
  {"messages": [{"role": "user", "content": "x", "prefix": True}]},
)
NO_SHAPES = (
  ("frequency_penalty", 2.01),
  ("presence_penalty", -2.01),
  ("presence_penalty", "1"),
  ("top_logprobs", 21),
  ("top_logprobs", -1),
  ("top_logprobs", True),
  ("logit_bias", [[5, 1]]),
  ("logit_bias", {"five": 1}),
  ("logit_bias", {"-1": 1}),
  ("logit_bias", {"05": 1}),
  ("logit_bias", {"5": 100.1}),
  ("logit_bias", {"5": "1"}),
  ("logit_bias", {"5": True}),
  ("logit_bias", {"5": 10**400}),
  ("logit_bias", {str(2**31): 1}),
  ("logit_bias", {str(n): 1 for n in range(1025)}),
)


class RefusalTest(unittest.TestCase):
  def refused(self, **fields):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    with self.assertRaises(ApiError) as caught:
      self.fail(read(ChatCompletionRequest, body | fields).continues)
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
      *((given, "messages", "invalid_value") for given in NOT_BEGUN),
      *(
        ({"messages": [message]}, f"messages[0].{name}", code)
        for name, message, code in NO_MESSAGES
      ),
      *(
        ({"logprobs": True, name: value}, name, "invalid_value")
        for name, value in NO_SHAPES
      ),
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
