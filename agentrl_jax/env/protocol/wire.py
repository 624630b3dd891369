"""What crosses the worker's HTTP API, word for word as AgentRL writes it.

Only the JSON of a step and of a set of indices; who sends it when is the
business of `worker` and `worker_client`. Fields of ours that AgentRL does not
know (`split`, `seed`, `error`) are optional in both directions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.data.messages import (
  Message,
  Tool,
  message_from_json,
  message_to_json,
  tool_from_json,
  tool_to_json,
)
from agentrl_jax.data.trajectory import Status
from agentrl_jax.env.interface import Step

SESSION_HEADER = "session_id"
OK = 200
FULL = 406  # the HTTP status of a worker that takes no more sessions
# Ends that are not the policy's doing: whoever reads one raises.
FAULTS = frozenset({Status.TASK_ERROR, Status.CANCELLED, Status.UNKNOWN})


def step_to_json(step: Step, tools: Sequence[Tool]) -> dict[str, Any]:
  """The step as a worker reports it; tools come while there is a next turn."""
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

  Metrics that are no numbers are left out: AgentRL's tasks put in what they
  like. Raises KeyError, TypeError or ValueError for what is no such report.
  """
  metrics = body.get("metric", body.get("metrics")) or {}
  return Step(
    messages=tuple(message_from_json(m) for m in body["messages"] or ()),
    reward=float(body.get("reward") or 0.0),
    status=Status(body.get("status", Status.RUNNING.value)),
    metrics={
      str(name): float(value)
      for name, value in metrics.items()
      if isinstance(value, int | float)
    },
  )


def tools_from_json(body: Mapping[str, Any]) -> tuple[Tool, ...]:
  """The tools that a report of a step carries, in OpenAI's form or Anthropic's.

  Raises KeyError, TypeError or ValueError for what is neither.
  """
  return tuple(_tool(tool) for tool in body.get("tools") or ())


def _tool(body: Mapping[str, Any]) -> Tool:
  if "input_schema" not in body:
    return tool_from_json(body)
  return Tool(
    name=str(body["name"]),
    description=str(body.get("description") or ""),
    parameters=body["input_schema"],
  )


def answer_from_json(messages: Any) -> Message:
  """The policy's answer: the last assistant message of those sent."""
  if not isinstance(messages, list):
    raise ValueError("messages must be a list of chat messages")
  try:
    read = [message_from_json(message) for message in messages]
  except (KeyError, TypeError, AttributeError) as error:
    raise ValueError(f"a message is not in OpenAI's form: {error!r}") from error
  answers = [message for message in read if message.role == "assistant"]
  if not answers:
    raise ValueError("messages must hold an assistant message to play")
  return answers[-1]


def indices_to_json(indices: Sequence[int]) -> dict[str, Any]:
  """Indices without writing out a range, which may be as long as it likes."""
  if isinstance(indices, range):
    return {"range": [indices.start, indices.stop, indices.step]}
  return {"list": list(indices)}


def indices_from_json(body: Mapping[str, Any]) -> Sequence[int]:
  """Reads what `indices_to_json` wrote."""
  if "range" in body:
    return range(*body["range"])
  return tuple(int(index) for index in body["list"])
