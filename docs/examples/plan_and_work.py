"""Two agents that add: one plans, and has others work; only `openai`.

  python -m launch.train --config=studies/configs/roles.py

starts this program with its server's address. An episode has a line of tokens
for the planner, and one for each worker that the planner sends to work.
"""

import concurrent.futures
import contextlib
import itertools
import json
import random
import sys
import urllib.request

from openai import APIError, OpenAI

URL, MODEL, NUM_AGENTS = sys.argv[1], sys.argv[2], 16
CLIENT = OpenAI(base_url=URL)  # one for all: to make one takes long
# The policy's doing. After any other error the run offers the attempt again,
# unless it is over.
ENDS = {
  "context_length_exceeded": "agent context limit",
  "episode_turn_limit": "task limit reached",
}


def tool(name, does, *arguments):
  """Describes a function of integers."""
  integers = {argument: {"type": "integer"} for argument in arguments}
  schema = {
    "type": "object",
    "properties": integers,
    "required": [*arguments],
    "additionalProperties": False,
  }
  function = {"name": name, "description": does, "parameters": schema}
  return {"type": "function", "function": function}


ADD = tool("add", "Adds two integers.", "a", "b")
ANSWER = tool("answer", "Gives the final answer.", "value")


class Agent:
  """Answers a question by calls; `add` is what happens when it adds."""

  def __init__(self, episode, role, add):
    self._add = add
    self._headers = {"X-AgentRL-Episode": episode["id"], "X-AgentRL-Role": role}

  def ask(self, question, seeds):
    """Returns the answer; None if three calls came to none."""
    messages = [{"role": "user", "content": question}]
    for _ in range(3):
      # Without seeds of their own, equal calls would get one answer.
      said = CLIENT.chat.completions.create(
        model=MODEL,
        messages=messages,
        tools=[ADD, ANSWER],
        seed=next(seeds),
        extra_headers=self._headers,
      ).choices[0]
      messages.append(said.message)
      reply = {"role": "user", "content": "No tool call found."}
      for call in (said.message.tool_calls or [])[:1]:
        reply = {"role": "tool", "tool_call_id": call.id, "content": "error"}
        with contextlib.suppress(ValueError, KeyError, TypeError):
          given = json.loads(call.function.arguments)
          if call.function.name == "answer":
            return given["value"]
          reply["content"] = str(self._add(given["a"], given["b"]))
      messages.append(reply)
    return None


def play_once(episode):
  """Plays an episode; returns the planner's answer, and what it had to be."""
  seeds = itertools.count(episode["seed"])
  worker = Agent(episode, "work", lambda a, b: a + b)
  planner = Agent(
    episode, "plan", lambda a, b: worker.ask(f"What is {a} + {b}?", seeds)
  )
  numbers = random.Random(episode["task"]["index"])
  a, b = numbers.randint(0, 9), numbers.randint(0, 9)
  return planner.ask(f"What is {a} + {b}?", seeds), a + b


def post(path, **body):
  """Calls the run's server; None if the run is over."""
  body, head = json.dumps(body).encode(), {"Content-Type": "application/json"}
  with contextlib.suppress(OSError):
    request = urllib.request.Request(URL + path, body, head)
    with urllib.request.urlopen(request, timeout=120) as response:
      return json.loads(response.read() or "null")


def play():
  """Plays until no episode is offered."""
  while episode := post("/episodes", wait_s=60):
    try:
      value, right = play_once(episode)
      status = "task limit reached" if value is None else "completed"
      reward = float(value == right)
    except APIError as error:
      status, reward = ENDS.get(error.code, "cancelled"), 0.0
    post(f"/episodes/{episode['id']}", reward=reward, status=status)


with concurrent.futures.ThreadPoolExecutor(NUM_AGENTS) as pool:
  for played in [pool.submit(play) for _ in range(NUM_AGENTS)]:
    played.result()
