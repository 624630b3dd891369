"""pydantic-ai, with a function for a tool."""

import asyncio

import openai
import told
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def main():
  async with openai.AsyncOpenAI(
    base_url=told.URL, api_key="-", default_headers=told.HEADERS, max_retries=0
  ) as client:
    provider = OpenAIProvider(openai_client=client)
    agent = Agent(OpenAIChatModel(told.MODEL, provider=provider))
    agent.tool_plain(told.add)
    if told.STREAMS:
      async with agent.run_stream(told.QUESTION) as found:
        answer = await found.get_output()
    else:
      answer = (await agent.run(told.QUESTION)).output
  told.tell(answer)


asyncio.run(main())
