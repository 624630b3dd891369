"""The package `openai`, in a loop of one's own."""

import json

import openai
import told

SCHEMA = {
  "type": "object",
  "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
  "required": ["a", "b"],
}
FUNCTION = {"name": "add", "description": told.DOES, "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]


def answer(client, messages):
  asked = dict(model=told.MODEL, messages=messages, tools=TOOLS)
  if not told.STREAMS:
    return client.chat.completions.create(**asked).choices[0].message
  with client.chat.completions.stream(**asked) as stream:
    for _ in stream:
      pass
    return stream.get_final_completion().choices[0].message


with openai.OpenAI(
  base_url=told.URL, api_key="-", default_headers=told.HEADERS, max_retries=0
) as client:
  messages = [{"role": "user", "content": told.QUESTION, "name": "Ann"}]
  while (said := answer(client, messages)).tool_calls:
    messages.append(said)
    for call in said.tool_calls:
      found = told.add(**json.loads(call.function.arguments))
      reply = {"role": "tool", "tool_call_id": call.id, "content": str(found)}
      messages.append(reply)
  told.tell(said.content)
