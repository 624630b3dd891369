"""Groups as bytes for other processes; the position as JSON for checkpoints."""

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.controller.collector import CollectorState
from agentrl_jax.data.record_file import group_from_json, group_to_json
from agentrl_jax.data.trajectory import Group, Task


def encode_groups(groups: Sequence[Group]) -> bytes:
  """What the learner reads of the groups: no transcripts."""
  bare = [
    dataclasses.replace(
      group,
      trajectories=tuple(
        dataclasses.replace(t, transcript=()) for t in group.trajectories
      ),
    )
    for group in groups
  ]
  return zlib.compress(json.dumps([group_to_json(g) for g in bare]).encode(), 1)


def decode_groups(value: bytes) -> list[Group]:
  """The inverse of `encode_groups`, but for the transcripts."""
  return [group_from_json(body) for body in json.loads(zlib.decompress(value))]


def position_to_json(state: CollectorState) -> dict[str, Any]:
  """What a checkpoint keeps of the controller."""
  return {
    "stream": dict(state.stream),
    "in_flight": [[p, dataclasses.asdict(task)] for p, task in state.in_flight],
    "queued": [group_to_json(group) for group in state.queued],
  }


def position_from_json(body: Mapping[str, Any]) -> CollectorState:
  """The inverse of `position_to_json`."""
  return CollectorState(
    stream=body["stream"],
    in_flight=tuple((int(p), Task(**task)) for p, task in body["in_flight"]),
    queued=tuple(group_from_json(group) for group in body["queued"]),
  )
