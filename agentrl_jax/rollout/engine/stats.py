"""What the engine has done so far, for metrics and for tests."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class EngineStats:
  """Counts since the start; entries of a tuple are policy slots.

  A step that fed prompts also decoded, so its time counts as prefill time as a
  whole: `decode_s` is that of steps that did nothing else. Times are on the
  wall, from launching a step to reading its tokens.
  """

  num_sampled: tuple[int, ...]  # tokens
  num_constrained: tuple[int, ...]  # of those, sampled under a grammar
  num_prefilled: tuple[int, ...]  # prompt tokens fed
  num_reused: tuple[int, ...]  # prompt tokens found in a slot or in the store
  num_copied: tuple[int, ...]  # of those, copied from another slot
  num_restored: tuple[int, ...]  # of those, copied from the store
  num_stored: tuple[int, ...]  # tokens copied to the store
  num_store_failures: tuple[int, ...]  # after each the store was emptied
  num_evicted: tuple[int, ...]  # blocks that left the store for want of room
  num_seated: tuple[int, ...]  # requests that got a slot
  wait_s: tuple[float, ...]  # of those, from being asked to the slot, summed
  num_slot_steps: tuple[int, ...]  # busy slots, summed over engine steps
  num_active: tuple[int, ...]  # slots that a request owns now
  num_pending: tuple[int, ...]  # requests in the engine without a slot, now
  num_cancelled: int
  num_steps: int
  prefill_s: float
  decode_s: float
