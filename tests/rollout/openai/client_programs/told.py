"""What every program of a client library is told, and what it tells.

  python NAME.py BASE_URL EPISODE [stream]

The agent is asked for a sum of three numbers, has a tool that adds two, and is
called under an episode's header. It writes its answer and the calls it made.
"""

import json
import sys

MODEL = "tiny"
HEADER = "X-AgentRL-Episode"
QUESTION = "What is 1 + 2 + 7?"
DOES = "Adds two integers."

URL, EPISODE = sys.argv[1:3]
STREAMS = sys.argv[3:] == ["stream"]
HEADERS = {HEADER: EPISODE}

calls: list[tuple[int, int]] = []


def add(a: int, b: int) -> int:
  """Adds two integers."""
  calls.append((a, b))
  return a + b


def tell(answer):
  """Ends the program's work."""
  sys.stdout.write(json.dumps({"answer": answer, "calls": calls}) + "\n")
