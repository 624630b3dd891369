"""langchain-openai, its model bound to a tool, in a loop of one's own."""

import told
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

add = tool(told.add)
model = ChatOpenAI(
  model=told.MODEL,
  base_url=told.URL,
  api_key="-",
  default_headers=told.HEADERS,
  max_retries=0,
).bind_tools([add])


def answer(messages):
  if not told.STREAMS:
    return model.invoke(messages)
  chunks = [*model.stream(messages)]
  whole = chunks[0]
  for chunk in chunks[1:]:
    whole += chunk
  return whole


messages = [HumanMessage(told.QUESTION)]
while (said := answer(messages)).tool_calls:
  messages.append(said)
  messages += [
    ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
    for call in said.tool_calls
  ]
told.tell(said.content)
