"""The agent of `smolagents` that calls tools, with a tool that reads a file.

python smolagents_program.py BASE_URL QUESTION
"""

import pathlib
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool

URL, QUESTION = sys.argv[1:]


@tool
def read(path: str) -> str:
  """Reads a file.

  Args:
    path: The file.
  """
  return pathlib.Path(path).read_text()


agent = ToolCallingAgent(
  tools=[read],
  model=OpenAIModel("tiny", api_base=URL, api_key="-"),
  stream_outputs=True,
)
sys.stdout.write(str(agent.run(QUESTION)) + "\n")
