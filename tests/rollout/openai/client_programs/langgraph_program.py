"""LangGraph's agent, which is given a name, and names who speaks."""

import told
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

agent = create_react_agent(
  ChatOpenAI(
    model=told.MODEL,
    base_url=told.URL,
    api_key="-",
    default_headers=told.HEADERS,
    max_retries=0,
  ),
  [tool(told.add)],
  name="adder",
)
asked = {"messages": [HumanMessage(told.QUESTION, name="Ann")]}
if told.STREAMS:
  *_, (_, found) = agent.stream(asked, stream_mode=["messages", "values"])
else:
  found = agent.invoke(asked)
told.tell(found["messages"][-1].content)
