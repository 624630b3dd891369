"""instructor: three answers in turn, each a call that fills in a model."""

import instructor
import openai
import told
from pydantic import BaseModel


class Add(BaseModel):
  """Adds two integers."""

  a: int
  b: int


client = instructor.from_openai(
  openai.OpenAI(
    base_url=told.URL, api_key="-", default_headers=told.HEADERS, max_retries=0
  ),
  mode=instructor.Mode.TOOLS,
)
messages = [{"role": "user", "content": told.QUESTION}]
for _ in range(3):
  found, said = client.chat.completions.create_with_completion(
    model=told.MODEL, response_model=Add, messages=messages, max_retries=0
  )
  result = told.add(found.a, found.b)
  message = said.choices[0].message
  messages.append(message.model_dump())
  messages += [
    {"role": "tool", "tool_call_id": call.id, "content": str(result)}
    for call in message.tool_calls
  ]
told.tell(str(found.a + found.b))
