"""The engine's counters under the names that a run's metrics have.

Counters rise from the start of this process, whoever asked: a run's episodes
and its evaluations alike. Means, shares and rates are over the time since the
last report. Names end in the policy slot (`/policy_slot0`) where there is one
of each policy slot. Knows no more of the engine than its statistics.
"""

import time
from collections.abc import Callable, Sequence

from agentrl_jax.rollout.drivers.base import Driver
from agentrl_jax.rollout.engine.stats import EngineStats

# Metric to the field of `EngineStats` that counts it, for each policy slot.
COUNTERS = {
  "engine/sampled_tokens": "num_sampled",
  "engine/constrained_tokens": "num_constrained",
  "engine/prefilled_tokens": "num_prefilled",
  "engine/reused_tokens": "num_reused",
  "engine/copied_tokens": "num_copied",
  "engine/restored_tokens": "num_restored",
  "engine/stored_tokens": "num_stored",
  "engine/evicted_blocks": "num_evicted",
  "engine/store_failures": "num_store_failures",
}


class EngineMetrics:
  """Reports on the engine of one driver, in this process."""

  def __init__(
    self, driver: Driver, clock: Callable[[], float] = time.monotonic
  ):
    self._driver, self._clock = driver, clock
    self._last, self._last_s = driver.engine.stats(), clock()

  def report(self) -> dict[str, float]:
    """Every figure by its name. Waits for a step that is being launched."""
    stats, now_s = self._driver.engine.stats(), self._clock()
    last, self._last = self._last, stats
    last_s, self._last_s = self._last_s, now_s
    return {
      **_counters(stats),
      **self._now(stats),
      **_since(last, stats, now_s - last_s, self._driver.engine.config.slots),
    }

  def _now(self, stats: EngineStats) -> dict[str, float]:
    """Requests without a slot, in the engine and in front of it."""
    waiting = zip(stats.num_pending, self._driver.num_waiting, strict=True)
    return _by_policy_slot(
      "engine/waiting_requests", [sum(both) for both in waiting]
    )


def _counters(stats: EngineStats) -> dict[str, float]:
  found: dict[str, float] = {
    "engine/steps": stats.num_steps,
    "engine/cancelled": stats.num_cancelled,
    "engine/prefill_s": stats.prefill_s,
    "engine/decode_s": stats.decode_s,
  }
  for name, field in COUNTERS.items():
    found |= _by_policy_slot(name, getattr(stats, field))
  return found


def _since(
  last: EngineStats, stats: EngineStats, seconds: float, slots: Sequence[int]
) -> dict[str, float]:
  """Means, shares and rates between two looks; none of what did not occur."""

  def gained(field: str) -> list[float]:
    both = zip(getattr(last, field), getattr(stats, field), strict=True)
    return [after - before for before, after in both]

  num_steps = stats.num_steps - last.num_steps
  fed, reused = gained("num_prefilled"), gained("num_reused")
  found: dict[str, float] = {}
  if seconds > 0:
    found["engine/tokens_per_s"] = sum(gained("num_sampled")) / seconds
  for name, above, below in (
    (
      "engine/slot_occupancy",
      gained("num_slot_steps"),
      [num_steps * n for n in slots],
    ),
    (
      "engine/reused_share",
      reused,
      [sum(both) for both in zip(fed, reused, strict=True)],
    ),
    ("engine/wait_s", gained("wait_s"), gained("num_seated")),
  ):
    for policy_slot, (value, total) in enumerate(
      zip(above, below, strict=True)
    ):
      if total:
        found[f"{name}/policy_slot{policy_slot}"] = value / total
  return found


def _by_policy_slot(name: str, values: Sequence[float]) -> dict[str, float]:
  return {
    f"{name}/policy_slot{policy_slot}": v
    for policy_slot, v in enumerate(values)
  }
