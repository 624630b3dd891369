"""JSON of steps and indices in AgentRL's worker API, word for word.

Our own fields (`split`, `seed`, `turn`, `error`, `plays_once`), which AgentRL
does not know, are optional in both directions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import (
  Message,
  Status,
  Tool,
  message_from_json,
  message_to_json,
  tool_from_json,
  tool_to_json,
)
from agentrl_jax.env.interface import Step

SESSION_HEADER = "session_id"
OK = 200
# Of a worker's first report: an answer with the number of its `turn` is played
# once, however often it comes.
PLAYS_ONCE = "plays_once"
MAX_MESSAGES = 1024  # of a report, and tools of it
FULL = 406  # HTTP status of a worker that has no room
# Ends that the policy did not cause: reading one raises a fault.
FAULTS = frozenset({Status.TASK_ERROR, Status.CANCELLED, Status.UNKNOWN})


def step_to_json(step: Step, tools: Sequence[Tool]) -> dict[str, Any]:
  """Writes a worker's report; it has tools while the session runs."""
  running = step.status is Status.RUNNING
  body: dict[str, Any] = {
    "messages": [message_to_json(message) for message in step.messages],
    "status": step.status.value,
    "finish": not running,
    "reward": step.reward,
    "metric": dict(step.metrics),
  }
  if running:
    body["tools"] = [tool_to_json(tool) for tool in tools]
  return body


def step_from_json(body: Mapping[str, Any]) -> Step:
  """Reads a worker's or a controller's report of a step.

  Drops metrics that are not numbers, as AgentRL's tasks report any type. Raises
  `EnvironmentFault` for numbers that are not finite, and KeyError, TypeError,
  ValueError or AttributeError for malformed reports: one that says that it is
  the last while its session runs is such.
  """
  reward = body.get("reward")
  metrics = body.get("metric", body.get("metrics")) or {}
  status = Status(body.get("status", Status.RUNNING.value))
  if body.get("finish") and status is Status.RUNNING:
    raise ValueError(f"finish={body['finish']!r:.80} with status 'running'")
  messages = body["messages"] or ()
  if len(messages) > MAX_MESSAGES:
    raise ValueError(f"{len(messages)} messages; {MAX_MESSAGES} may come")
  return Step(
    messages=tuple(message_from_json(m) for m in messages),
    reward=0.0 if reward is None else reward,
    status=status,
    metrics={
      str(name): value
      for name, value in metrics.items()
      if isinstance(value, int | float)
    },
  )


def tools_from_json(body: Mapping[str, Any]) -> tuple[Tool, ...]:
  """Reads the tools of a report, in OpenAI's or Anthropic's form.

  Raises KeyError, TypeError or ValueError for other forms.
  """
  tools = body.get("tools") or ()
  if len(tools) > MAX_MESSAGES:
    raise ValueError(f"{len(tools)} tools; {MAX_MESSAGES} may come")
  return tuple(tool_from_json(tool) for tool in tools)


def answer_from_json(messages: Any) -> Message:
  """Returns the policy's answer: the last assistant message."""
  if not isinstance(messages, list):
    raise ValueError("messages must be a list of chat messages")
  try:
    parsed = [message_from_json(message) for message in messages]
  except (KeyError, TypeError) as error:
    raise ValueError(f"a message is not in OpenAI's form: {error!r}") from error
  answers = [message for message in parsed if message.role == "assistant"]
  if not answers:
    raise ValueError("messages must hold an assistant message to play")
  return answers[-1]


def indices_to_json(indices: Sequence[int]) -> dict[str, Any]:
  """Writes indices; a range, of any length, as its bounds."""
  if isinstance(indices, range):
    return {"range": [indices.start, indices.stop, indices.step]}
  return {"list": list(indices)}


def indices_from_json(body: Mapping[str, Any]) -> Sequence[int]:
  """Reads the output of `indices_to_json`."""
  if "range" in body:
    return range(*body["range"])
  return tuple(int(index) for index in body["list"])
