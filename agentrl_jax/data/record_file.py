"""Writes and reads groups as files: gzip of one JSON object per line.

Arrays are base64 of their little-endian bytes, so that they are read back to
the bit. Used for the episodes that a run keeps, and for the queue inside a
checkpoint.
"""

import base64
import gzip
import json
import pathlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.records import (
  Group,
  LearnedTurn,
  Status,
  Task,
  Trajectory,
  Turn,
  unicode_json,
)
from agentrl_jax.errors import CheckpointError, EnvironmentFault
from agentrl_jax.files import writing

_TURN_ARRAYS = {
  "observation": "<i4",
  "sampled": "<i4",
  "behavior_logprob": "<f4",
  "raw_logprob": "<f4",
  "version": "<i4",
}
_LEARNED_ARRAYS = {"learner_logprob": "<f4", "advantage": "<f4"}

# Errors of reading a file that was cut off, or whose bytes have changed.
DAMAGED = (
  OSError,
  EOFError,
  zlib.error,
  EnvironmentFault,
  ValueError,
  KeyError,
  TypeError,
  AttributeError,
  RecursionError,
)

Learned = Callable[[Trajectory], Sequence[LearnedTurn] | None]


def write_groups(
  path: pathlib.Path, groups: Iterable[Group], learned: Learned = lambda _: None
) -> None:
  """Writes a new file; an existing one is replaced in one step.

  `learned` tells what the learner computed of a trajectory, which
  `learned_from_json` reads; None is nothing.
  """
  partial = path.with_name(path.name + ".partial")
  with writing(path):
    with gzip.open(partial, "wt", compresslevel=1, encoding="utf-8") as file:
      for group in groups:
        body = group_to_json(group)
        for member, trajectory in zip(
          body["trajectories"], group.trajectories, strict=True
        ):
          _add_learned(member["turns"], learned(trajectory))
        file.write(json.dumps(body) + "\n")
    partial.replace(path)


def read_groups(path: pathlib.Path) -> Iterator[Group]:
  """Yields groups in the order in which they were written."""
  try:
    with gzip.open(path, "rt", encoding="utf-8") as file:
      for line in file:
        yield group_from_json(json.loads(line))
  except DAMAGED as error:
    raise CheckpointError(
      f"{path} cannot be read as a file of groups: {error!r}. It was cut off "
      "or is of another kind; restore an earlier checkpoint"
    ) from error


def group_to_json(group: Group) -> dict[str, Any]:
  """Returns a group as JSON values."""
  return {
    "id": group.id,
    "task": _task_to_json(group.task),
    "num_masked": group.num_masked,
    "trajectories": [trajectory_to_json(t) for t in group.trajectories],
  }


def group_from_json(body: Mapping[str, Any]) -> Group:
  """The inverse of `group_to_json`."""
  return Group(
    id=body["id"],
    task=Task(**body["task"]),
    num_masked=body["num_masked"],
    trajectories=tuple(trajectory_from_json(t) for t in body["trajectories"]),
  )


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
  """Returns a trajectory as JSON values."""
  return {
    "task": _task_to_json(trajectory.task),
    "group_id": trajectory.group_id,
    "attempt": trajectory.attempt,
    "seed": trajectory.seed,
    "status": trajectory.status.value,
    "reward": trajectory.reward,
    "metrics": dict(trajectory.metrics),
    "transcript": [dict(m) for m in trajectory.transcript],
    "policy_slot_weights": list(trajectory.policy_slot_weights),
    "max_turns": trajectory.max_turns,
    "max_tokens": trajectory.max_tokens,
    "roles": list(trajectory.roles),
    "role_rewards": dict(trajectory.role_rewards),
    "turns": [_turn_to_json(turn) for turn in trajectory.turns],
  }


def trajectory_from_json(body: Mapping[str, Any]) -> Trajectory:
  """The inverse of `trajectory_to_json`."""
  return Trajectory(
    task=Task(**body["task"]),
    group_id=body["group_id"],
    attempt=body["attempt"],
    seed=body["seed"],
    turns=tuple(_turn_from_json(turn) for turn in body["turns"]),
    status=Status(body["status"]),
    reward=body["reward"],
    metrics=body["metrics"],
    transcript=tuple(unicode_json(body["transcript"])),
    policy_slot_weights=tuple(body["policy_slot_weights"]),
    max_turns=body.get("max_turns", 0),  # files before 2026-11-25 have none
    max_tokens=body.get("max_tokens", 0),
    roles=tuple(body.get("roles", ())),
    role_rewards=body.get("role_rewards", {}),
  )


def learned_from_json(body: Mapping[str, Any]) -> list[LearnedTurn] | None:
  """Returns what the learner computed of a trajectory; None if nothing."""
  if any("learner_logprob" not in turn for turn in body["turns"]):
    return None
  return [
    LearnedTurn(
      *(_decode(turn[name], t) for name, t in _LEARNED_ARRAYS.items())
    )
    for turn in body["turns"]
  ]


def _add_learned(
  turns: Sequence[dict[str, Any]], learned: Sequence[LearnedTurn] | None
) -> None:
  for body, turn in zip(turns, learned or (), strict=bool(learned)):
    values = (turn.logprob, turn.advantage)
    for (name, dtype), array in zip(
      _LEARNED_ARRAYS.items(), values, strict=True
    ):
      body[name] = _encode(array, dtype)


def _encode(array: np.ndarray, dtype: str) -> str:
  return base64.b64encode(np.asarray(array, dtype).tobytes()).decode()


def _decode(text: str, dtype: str) -> np.ndarray:
  return np.frombuffer(base64.b64decode(text), dtype)


def _task_to_json(task: Task) -> dict[str, Any]:
  return {"name": task.name, "split": task.split, "index": task.index}


def _turn_to_json(turn: Turn) -> dict[str, Any]:
  arrays = {
    name: _encode(getattr(turn, name), dtype)
    for name, dtype in _TURN_ARRAYS.items()
  }
  return {
    "policy_slot": turn.policy_slot,
    "reward": turn.reward,
    "grammar": turn.grammar,
    "line": turn.line,
    "calls": None if turn.calls is None else list(turn.calls),
    "is_cut": turn.is_cut,
    **arrays,
    **_experts_to_json(turn.experts),
  }


def _experts_to_json(experts: np.ndarray | None) -> dict[str, Any]:
  if experts is None:
    return {}
  dtype = experts.dtype.newbyteorder("<").str
  form = {"dtype": dtype, "shape": experts.shape}
  return {"experts": form | {"bytes": _encode(experts, dtype)}}


def _experts_from_json(body: Mapping[str, Any] | None) -> np.ndarray | None:
  if body is None:
    return None
  return _decode(body["bytes"], body["dtype"]).reshape(body["shape"])


def _turn_from_json(body: Mapping[str, Any]) -> Turn:
  arrays: dict[str, Any] = {
    name: _decode(body[name], dtype) for name, dtype in _TURN_ARRAYS.items()
  }
  return Turn(
    policy_slot=body["policy_slot"],
    reward=body["reward"],
    grammar=body["grammar"],
    line=body.get("line", 0),
    calls=None if body.get("calls") is None else tuple(body["calls"]),
    is_cut=body.get("is_cut", False),
    experts=_experts_from_json(body.get("experts")),
    **arrays,
  )
