"""A summary of what a controller does, small enough to be asked for often."""

import heapq
from collections.abc import Mapping
from typing import Any

from agentrl_jax.service.controller.dispatcher import Dispatcher
from agentrl_jax.service.controller.metrics import ControllerMetrics
from agentrl_jax.service.controller.registry import TaskEntry, Worker, now
from agentrl_jax.service.controller.session_table import SessionEntry

MOST_SESSIONS = 100  # that are listed; the longest since their last request


def overview(
  dispatcher: Dispatcher, metrics: ControllerMetrics, task: str | None = None
) -> dict[str, Any]:
  """Returns tasks, workers, counts, and sessions of one task or of all.

  Times are in seconds before now. Sessions are the `MOST_SESSIONS` whose last
  request is the longest ago: the first to look at if something hangs.
  """
  moment = now()
  listed = [s for s in dispatcher.table if task in (None, s.worker.task)]
  oldest = heapq.nsmallest(MOST_SESSIONS, listed, key=lambda s: s.updated)
  counts = metrics.counts()
  return {
    "tasks": [
      _task(entry, dispatcher, counts.ended.get(name, {}), moment)
      for name, entry in sorted(dispatcher.registry.tasks.items())
    ],
    "turns": counts.turns,
    "refused": counts.refused,
    "num_sessions": len(listed),
    "sessions": [_session(session, moment) for session in oldest],
  }


def _task(
  entry: TaskEntry,
  dispatcher: Dispatcher,
  ended: Mapping[str, int],
  moment: float,
) -> dict[str, Any]:
  return {
    "name": entry.name,
    "waiting": dispatcher.places.num_waiting(entry.name),
    "ended": dict(ended),
    "workers": [_worker(each, moment) for each in entry.workers.values()],
  }


def _worker(worker: Worker, moment: float) -> dict[str, Any]:
  return {
    "id": worker.id,
    "address": worker.address,
    "sessions": worker.num_sessions,
    "capacity": worker.capacity,
    "health": worker.health.value.lower(),
    "is_draining": worker.is_stale,
    "silent_s": round(moment - worker.last_visit, 1),
  }


def _session(session: SessionEntry, moment: float) -> dict[str, Any]:
  return {
    "id": session.id,
    "task": session.worker.task,
    "worker": session.worker.id,
    "index": session.index,
    "age_s": round(moment - session.started, 1),
    "quiet_s": round(moment - session.updated, 1),
    "is_busy": session.is_busy,
    "is_cancelling": session.is_cancelling,
  }
