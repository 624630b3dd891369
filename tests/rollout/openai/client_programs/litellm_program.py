"""litellm, whose answers are sent back as the objects that it makes of them."""

import json

import litellm
import told

litellm.telemetry = False
SCHEMA = {
  "type": "object",
  "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
  "required": ["a", "b"],
}
FUNCTION = {"name": "add", "description": told.DOES, "parameters": SCHEMA}


def answer(messages):
  found = litellm.completion(
    model=f"openai/{told.MODEL}",
    api_base=told.URL,
    api_key="-",
    messages=messages,
    tools=[{"type": "function", "function": FUNCTION}],
    extra_headers=told.HEADERS,
    num_retries=0,
    stream=told.STREAMS,
  )
  if told.STREAMS:
    found = litellm.stream_chunk_builder([*found], messages=messages)
  return found.choices[0].message


messages = [{"role": "user", "content": told.QUESTION}]
while (said := answer(messages)).tool_calls:
  messages.append(said.model_dump())
  for call in said.tool_calls:
    found = told.add(**json.loads(call.function.arguments))
    messages.append(
      {
        "role": "tool",
        "tool_call_id": call.id,
        "name": call.function.name,
        "content": str(found),
      }
    )
told.tell(said.content)
