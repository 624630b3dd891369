"""Writes kept trajectories as ATIF 1.7, Harbor's format of trajectories.

Harbor's models of it need Python 3.12 to be installed, so tests validate with
them what is written here. A trajectory's first line of tokens is the root;
each other line is a trajectory that is embedded in it, as of a subagent.
"""

import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import (
  Message,
  ToolCall,
  Trajectory,
  Turn,
  message_from_json,
)

SCHEMA = "ATIF-v1.7"
_AGENT: dict[str, Any] = {"name": "agentrl_jax", "version": "0.1.0"}


def write_atif(
  path: pathlib.Path, trajectories: Iterable[tuple[str, Trajectory]]
) -> int:
  """Writes a line for each (id, trajectory); returns their number.

  An existing file is replaced in one step.
  """
  partial = path.with_name(path.name + ".partial")
  count = 0
  with partial.open("w", encoding="utf-8") as file:
    for id, trajectory in trajectories:
      count += 1
      text = json.dumps(atif_of(id, trajectory), allow_nan=False)
      file.write(text + "\n")
    file.flush()
    os.fsync(file.fileno())
  partial.replace(path)
  return count


def atif_of(id: str, trajectory: Trajectory) -> dict[str, Any]:
  """Returns a trajectory as an object of ATIF."""
  messages: dict[int, list[Message]] = {}
  for body in trajectory.transcript:
    line = body.get("line", 0)
    assert isinstance(line, int)
    messages.setdefault(line, []).append(message_from_json(body))
  lines = sorted(messages.keys() | {turn.line for turn in trajectory.turns})
  parts: list[dict[str, Any]] = [
    {
      "schema_version": SCHEMA,
      "session_id": id,
      "trajectory_id": f"{id}/{line}",
      "agent": {**_AGENT, "extra": {"role": trajectory.role_of(line)}},
      "steps": _steps(
        messages.get(line, []),
        [turn for turn in trajectory.turns if turn.line == line],
      ),
    }
    for line in lines or [0]
  ]
  root, *others = parts
  root["extra"] = {
    "task": trajectory.task.name,
    "split": trajectory.task.split,
    "index": trajectory.task.index,
    "attempt": trajectory.attempt,
    "group": trajectory.group_id,
    "status": trajectory.status.value,
  }
  root["final_metrics"] = {
    "total_completion_tokens": trajectory.num_sampled,
    "extra": {"reward": trajectory.reward, **trajectory.metrics},
  }
  return {**root, "subagent_trajectories": others} if others else root


def _steps(
  messages: Sequence[Message], turns: Sequence[Turn]
) -> list[dict[str, Any]]:
  """Returns the steps of a line; answers before its first turn are copied."""
  if not messages:  # no text was kept
    messages = [Message("assistant")] * len(turns) or [Message("system")]
  steps: list[dict[str, Any]] = []
  num_answers = sum(message.role == "assistant" for message in messages)
  tokens: list[int] = []  # of the line, before the next turn
  number = len(turns) - num_answers  # of the next answer's turn
  for message in messages:
    step: dict[str, Any] = {"message": message.content}
    if message.role == "assistant":
      step |= {"source": "agent", **_calls(message.tool_calls)}
      turn = turns[number] if number >= 0 else None
      step |= _metrics(turn, tokens) if turn else {"is_copied_context": True}
      number += 1
    elif message.role == "tool" and any(s["source"] == "agent" for s in steps):
      _observe(
        next(s for s in reversed(steps) if s["source"] == "agent"), message
      )
      continue
    else:
      step["source"] = "system" if message.role == "system" else "user"
    steps.append({"step_id": len(steps) + 1, **step})
  return steps


def _calls(calls: Sequence[ToolCall]) -> dict[str, Any]:
  """Returns calls; arguments that are no JSON object are kept as text."""
  entries = []
  for n, call in enumerate(calls):
    entry: dict[str, Any] = {
      "tool_call_id": call.id or f"call_{n}",
      "function_name": call.name,
    }
    arguments = _object(call.arguments)
    entry["arguments"] = arguments or {}
    if arguments is None:
      entry["extra"] = {"text": call.arguments}
    entries.append(entry)
  return {"tool_calls": entries} if entries else {}


def _object(text: str) -> Mapping[str, Any] | None:
  try:
    value = json.loads(text)
    json.dumps(value, allow_nan=False)
  except (ValueError, RecursionError):
    return None
  return value if isinstance(value, dict) else None


def _observe(step: dict[str, Any], message: Message) -> None:
  """Adds a tool's reply to the step of the agent that it answers."""
  result: dict[str, Any] = {"content": message.content}
  ids = [call["tool_call_id"] for call in step.get("tool_calls", ())]
  if message.tool_call_id in ids:
    result["source_call_id"] = message.tool_call_id
  step.setdefault("observation", {"results": []})["results"].append(result)


def _metrics(turn: Turn, tokens: list[int]) -> dict[str, Any]:
  """Returns a turn's tokens, and appends them to those of its line.

  An answer that no policy sampled, as an expert's, has none.
  """
  tokens += turn.observation.tolist()
  sampled, logprobs = turn.sampled.tolist(), turn.behavior_logprob.tolist()
  versions = turn.version.tolist()
  metrics = {
    "prompt_tokens": len(tokens),
    "completion_tokens": len(sampled),
    "prompt_token_ids": [*tokens],
    "completion_token_ids": sampled,
  }
  tokens += sampled
  if max(versions, default=-1) < 0:
    return {"llm_call_count": 0}
  if all(map(math.isfinite, logprobs)):
    metrics["logprobs"] = logprobs
  extra = {"policy_slot": turn.policy_slot, "reward": turn.reward}
  extra |= {"oldest_version": min(versions), "newest_version": max(versions)}
  return {"llm_call_count": 1, "metrics": {**metrics, "extra": extra}}
