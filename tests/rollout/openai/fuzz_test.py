"""Malformed requests to a rollout server are refused and break nothing."""

import unittest

import numpy as np
import pytest

from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.remote import wire
from tests import http_fuzz
from tests.http_fuzz import Request
from tests.rollout import talking
from tests.rollout.openai import chatting

TOKEN = "0123456789abcdef"
KNOWN = {"Authorization": f"Bearer {TOKEN}"}
CALL = {
  "id": "c1",
  "type": "function",
  "function": {"name": "add", "arguments": '{"a": 1}'},
}
CHAT = {
  "model": talking.NAME,
  "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
  ],
  "tools": [chatting.ADD],
  "max_tokens": 2,
  "temperature": 0.5,
  "top_p": 0.9,
  "seed": 3,
  "n": 1,
  "stop": ["x"],
}
SCHEMA = {
  "type": "object",
  "properties": {"a": {"type": "integer", "minimum": 1}},
  "required": ["a"],
}
FORMED = {
  "model": talking.NAME,
  "messages": [{"role": "user", "content": "What?"}],
  "response_format": {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
  },
  "max_tokens": 2,
}
CHOSEN = {
  "model": talking.NAME,
  "messages": [{"role": "user", "content": "What?"}],
  "tools": [chatting.ADD],
  "tool_choice": {
    "type": "allowed_tools",
    "allowed_tools": {
      "mode": "auto",
      "tools": [{"type": "function", "function": {"name": "add"}}],
    },
  },
  "parallel_tool_calls": False,
  "max_tokens": 2,
}
COMPLETION = {
  "model": talking.NAME,
  "prompt": [[5, 6, 7], [5, 8]],
  "max_tokens": 2,
  "temperature": 1.0,
  "stop_token_ids": [3],
  "seed": 1,
}
OTHERS = (
  "min_p",
  "top_k",
  "stream",
  "stream_options",
  "logprobs",
  "top_logprobs",
  "logprobs_mode",
  "return_token_ids",
  "ignore_eos",
  "logit_bias",
  "user",
  "metadata",
  "echo",
  "suffix",
  "best_of",
  "presence_penalty",
  "store",
  "max_completion_tokens",
  "response_format",
  "tool_choice",
  "functions",
  "frequency_penalty",
  "parallel_tool_calls",
  "no_such_field",
  "prompt",
)
ROUTES = [
  Request("POST", "/v1/chat/completions", CHAT, KNOWN, OTHERS),
  Request("POST", "/v1/chat/completions", FORMED, KNOWN),
  Request("POST", "/v1/chat/completions", CHOSEN, KNOWN),
  Request("POST", "/v1/completions", COMPLETION, KNOWN, OTHERS),
  Request("POST", "/v1/episodes", {"wait_s": 0.01}, KNOWN, may_wait=True),
  Request(
    "POST",
    "/v1/episodes/x",
    {"reward": 1.0, "status": "completed", "metrics": {"a": 1}},
    KNOWN,
  ),
  *(
    Request("GET", path, headers=KNOWN)
    for path in (
      "/v1/models",
      "/v1/models/%ff%00",
      "/v1/models/tiny@policy_slot" + "9" * 400,
      "/v1/models/tiny@step" + "9" * 5000,
      "/v1/%ff",
      "/health",
      "/ready",
      "/metrics",
      "/%ff",
    )
  ),
  Request("POST", wire.GENERATE, {}, KNOWN),
]


class OpenAIFuzzTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.served = await self.enterAsyncContext(talking.Talking(token=TOKEN))
    self.http = await self.enterAsyncContext(http_fuzz.session())

  @pytest.mark.slow
  async def test_no_request_causes_a_server_error(self):
    actual = await http_fuzz.faults(
      self.http, self.served.url, ROUTES, seed=1, each=40
    )
    self.assertFalse(actual, "\n".join(actual[:20]))
    await self.ask_well()

  async def test_bytes_that_are_no_request_are_refused(self):
    generator = np.random.default_rng(1)
    for path in (wire.GENERATE, "/stream"):
      spec = SamplingParams(max_tokens=1, grammar='start: "a"')
      whole = wire.encode_request([5, 6], spec)
      for _ in range(40):
        body = bytearray(whole)
        for at in generator.integers(0, len(body), 1 + generator.integers(3)):
          body[at] = generator.integers(256)
        body = bytes(body[: generator.integers(1, len(body) + 1)])
        async with self.http.post(
          self.served.url + path, data=body, headers=KNOWN
        ) as response:
          self.assertLess(response.status, 500, await response.text())

  async def ask_well(self):
    await self.served.openai.completions.create(
      model=talking.NAME, prompt=[5], max_tokens=1
    )
