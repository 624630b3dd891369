"""openai-agents, by its chat-completions model."""

import asyncio

import agents
import openai
import told

agents.set_tracing_disabled(True)


async def main():
  async with openai.AsyncOpenAI(
    base_url=told.URL, api_key="-", default_headers=told.HEADERS, max_retries=0
  ) as client:
    model = agents.OpenAIChatCompletionsModel(told.MODEL, client)
    agent = agents.Agent(
      name="adder", model=model, tools=[agents.function_tool(told.add)]
    )
    if told.STREAMS:
      found = agents.Runner.run_streamed(agent, told.QUESTION)
      async for _ in found.stream_events():
        pass
    else:
      found = await agents.Runner.run(agent, told.QUESTION)
  told.tell(found.final_output)


asyncio.run(main())
