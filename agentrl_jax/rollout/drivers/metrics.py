"""Engine metrics of a run, from the statistics of the engine.

Counters rise from the start of the process and include evaluations. Means,
ratios and rates are over the time since the last report. Metrics of one policy
slot end in its name (`/policy_slot0`).
"""

import time
from collections.abc import Callable, Sequence

import jax

from agentrl_jax.rollout.drivers.driver import Driver
from agentrl_jax.rollout.engine.engine import EngineStats

# Metric to the field of `EngineStats` that counts it, per policy slot.
COUNTERS = {
  "engine/sampled_tokens": "num_sampled",
  "engine/constrained_tokens": "num_constrained",
  "engine/drafted_tokens": "num_drafted",
  "engine/accepted_tokens": "num_accepted",
  "engine/prefilled_tokens": "num_prefilled",
  "engine/reused_tokens": "num_reused",
  "engine/copied_tokens": "num_copied",
  "engine/evicted_pages": "num_evicted",
  "engine/preempted_requests": "num_preempted",
}


class EngineMetrics:
  """Reports on the engine of one driver in this process."""

  def __init__(
    self, driver: Driver, clock: Callable[[], float] = time.monotonic
  ):
    self._driver, self._clock = driver, clock
    self._last, self._last_s = driver.engine.stats(), clock()

  def report(self) -> dict[str, float]:
    """Returns all metrics by name. Waits while a step is being launched."""
    stats, now_s = self._driver.engine.stats(), self._clock()
    last, self._last = self._last, stats
    last_s, self._last_s = self._last_s, now_s
    waiting = zip(stats.num_pending, self._driver.num_waiting, strict=True)
    slots = self._driver.engine.config.slots
    return {
      **_counters(stats),
      **_per_policy_slot("engine/waiting_requests", [sum(w) for w in waiting]),
      **_per_policy_slot("engine/weight_bytes", self._weight_bytes()),
      **_means(last, stats, now_s - last_s, slots),
    }

  def _weight_bytes(self) -> list[int]:
    return [
      sum(leaf.nbytes for leaf in jax.tree.leaves(served and served.params))
      for served in self._driver.engine.versions.served()
    ]


def _counters(stats: EngineStats) -> dict[str, float]:
  metrics: dict[str, float] = {
    "engine/steps": stats.num_steps,
    "engine/cancelled": stats.num_cancelled,
    "engine/prefill_s": stats.prefill_s,
    "engine/decode_s": stats.decode_s,
  }
  for name, field in COUNTERS.items():
    metrics |= _per_policy_slot(name, getattr(stats, field))
  return metrics


def _means(
  last: EngineStats, stats: EngineStats, seconds: float, slots: Sequence[int]
) -> dict[str, float]:
  """Means, ratios and rates between two reports; none of an empty set."""

  def increase(field: str) -> list[float]:
    pairs = zip(getattr(last, field), getattr(stats, field), strict=True)
    return [after - before for before, after in pairs]

  num_steps = stats.num_steps - last.num_steps
  prefilled, reused = increase("num_prefilled"), increase("num_reused")
  prompts = [sum(pair) for pair in zip(prefilled, reused, strict=True)]
  sampled, accepted = increase("num_sampled"), increase("num_accepted")
  # Each decode step of a slot samples one token, and those of a right draft.
  slot_steps = [a - b for a, b in zip(sampled, accepted, strict=True)]
  metrics: dict[str, float] = {}
  if seconds > 0:
    metrics["engine/tokens_per_s"] = sum(sampled) / seconds
  for name, values, totals in (
    (
      "engine/slot_occupancy",
      increase("num_slot_steps"),
      [num_steps * n for n in slots],
    ),
    ("engine/reused_share", reused, prompts),
    ("engine/accepted_share", accepted, increase("num_drafted")),
    ("engine/tokens_per_slot_step", sampled, slot_steps),
    ("engine/wait_s", increase("wait_s"), increase("num_scheduled")),
  ):
    for k, (value, total) in enumerate(zip(values, totals, strict=True)):
      if total:
        metrics[f"{name}/policy_slot{k}"] = value / total
  return metrics


def _per_policy_slot(name: str, values: Sequence[float]) -> dict[str, float]:
  return {f"{name}/policy_slot{k}": value for k, value in enumerate(values)}


# What `launch.metrics` says of them.
MEANINGS = {
  "engine/tokens_per_s": "tokens sampled per second by all policy slots, the "
  "learner's time included",
  "engine/slot_occupancy/policy_slot<k>": "share of the slots with a request, "
  "mean over steps; low means more slots than requests",
  "engine/wait_s/policy_slot<k>": "mean seconds from a request's arrival to "
  "its slot; high means too few slots, or pages",
  "engine/waiting_requests/policy_slot<k>": "requests without a slot when the "
  "row was written",
  "engine/preempted_requests/policy_slot<k>": "times that a running request "
  "gave its pages to an older one",
  "engine/reused_share/policy_slot<k>": "share of the prompt tokens whose "
  "keys and values were cached",
  "engine/sampled_tokens/policy_slot<k>": "tokens sampled",
  "engine/constrained_tokens/policy_slot<k>": "of these, sampled under a "
  "grammar",
  "engine/drafted_tokens/policy_slot<k>": "draft tokens computed",
  "engine/accepted_tokens/policy_slot<k>": "of these, those that were right",
  "engine/accepted_share/policy_slot<k>": "share of the draft tokens that "
  "were right",
  "engine/tokens_per_slot_step/policy_slot<k>": "tokens sampled per slot and "
  "decode step; 1 without drafts",
  "engine/weight_bytes/policy_slot<k>": "bytes of the newest weights, all "
  "devices together",
  "engine/prefilled_tokens/policy_slot<k>": "prompt tokens prefilled",
  "engine/reused_tokens/policy_slot<k>": "prompt tokens not prefilled, of "
  "finished answers",
  "engine/copied_tokens/policy_slot<k>": "of these, copied with a page that "
  "is shared in part",
  "engine/evicted_pages/policy_slot<k>": "pages of ended sequences that were "
  "evicted for want of room",
  "engine/steps": "engine steps launched",
  "engine/cancelled": "requests cancelled",
  "engine/prefill_s": "seconds in engine steps with prefill",
  "engine/decode_s": "seconds in engine steps that only decoded",
}
