"""What tests of chats ask, and how."""

import unittest

from tests.rollout import talking

ASKED = {"role": "user", "content": "What is 1 + 2?"}
ADD = {
  "type": "function",
  "function": {
    "name": "add",
    "description": "Adds two integers.",
    "parameters": {
      "type": "object",
      "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
      "required": ["a", "b"],
    },
  },
}
CALLS = (
  'Let me see.<tool_call>{"name": "add", "arguments": {"a":1,  "b": 2}}'
  '</tool_call><tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}'
  "</tool_call><|end|>"
)
IDS = {"return_token_ids": True}


class Asking(unittest.IsolatedAsyncioTestCase):
  async def ask(self, messages, *, extra=(), **fields):
    settings = dict(model=talking.NAME, seed=3) | fields
    return await self.served.openai.chat.completions.create(
      messages=messages, extra_body=IDS | dict(extra), **settings
    )
