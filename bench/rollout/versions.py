"""Several weight versions at once, and a swap during decoding.

W-tiny, sampled at temperature 1. Three versions of 8 slots each decode at once;
their bound is the decode program by itself once for each version, since each
has weights of its own to read. One version alone in its engine is held against
its program in the same way: what is lost is bookkeeping, prompts and copies to
the host.

A swap changes a pointer between two steps. `swap` is the longest of the steps
with a swap against the median of the others. In `copied beside`, another thread
copies the weights meanwhile, as a learner in the same process does, and shares
the processors.
"""

import statistics
import threading
import time

import jax
import numpy as np

from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.train.weights.publish import Publisher
from bench import timing, tiny
from bench.line_peer import Pythons
from bench.rollout.served import RawSteps, make_driver

SLOTS, PROMPT, ANSWER, VERSIONS = 8, 8, 248, 3
CONFIG = dict(
  context=PROMPT + ANSWER, steps_per_sync=8, prefill_chunks=(PROMPT,)
)
SWAPS, STEPS_BETWEEN = 5, 8


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons  # no peer serves several versions
  load_before = timing.load()
  policy, _ = tiny.make_learner()
  versions = [policy.init(jax.random.key(n)) for n in range(VERSIONS)]
  several = make_driver(policy, versions, slots=(SLOTS,) * VERSIONS, **CONFIG)
  one = make_driver(policy, versions[:1], slots=(SLOTS,), **CONFIG)
  raw = RawSteps(policy, one, length=PROMPT + ANSWER, at=PROMPT + ANSWER // 2)
  turns = {
    "several": lambda: _answered(several),
    "one": lambda: _answered(one),
    "raw": raw,
  }
  timing.in_turn(turns, 1)  # compiles
  times = timing.in_turn(turns, pairs)
  calls = ANSWER / raw.num_steps
  return {
    "work": {
      "model": tiny.work_of(tiny.MODEL),
      "slots": SLOTS,
      "versions": VERSIONS,
      "prompt": PROMPT,
      "answer": ANSWER,
    },
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "share_of_bound": {
      "several": timing.ratio(times["raw"], times["several"], VERSIONS * calls),
      "one": timing.ratio(times["raw"], times["one"], calls),
    },
    "swap": _swaps(policy, one, versions),
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


def _answered(driver) -> timing.Times:
  """The time of a full answer in every slot."""
  driver.engine.reset()
  return timing.times_of(lambda: _ask(driver) and driver.run_until_idle())


def _ask(driver) -> list:
  rng = np.random.default_rng(0)
  return [
    driver.submit(
      rng.integers(0, tiny.MODEL.vocab_size, PROMPT).astype(np.int32),
      SamplingParams(policy_slot=policy_slot, max_tokens=ANSWER, seed=n),
    )
    for policy_slot in range(driver.engine.config.num_policy_slots)
    for n in range(SLOTS)
  ]


def _swaps(policy, driver, versions) -> dict[str, object]:
  store = driver.engine.versions
  publisher = Publisher(policy, store)
  ready = []  # published forms, copied beforehand
  for params in versions:
    publisher.publish(params, 1)
    ready.append(store.get(0).params)

  def swap(n: int) -> None:
    store.publish(ready[n % VERSIONS], n)

  def copied_beside(n: int) -> threading.Thread:
    thread = threading.Thread(
      target=publisher.publish, args=(versions[n % VERSIONS], n)
    )
    thread.start()
    return thread

  found = {}
  for name, act in (("pointer", swap), ("copied beside", copied_beside)):
    driver.engine.reset()
    asked = _ask(driver)
    driver.step()
    quiet, swapped = [], []
    for n in range(SWAPS):
      began = time.perf_counter()
      thread = act(n)
      driver.step()
      swapped.append(time.perf_counter() - began)
      if thread is not None:
        thread.join()
      for _ in range(STEPS_BETWEEN // 2):
        began = time.perf_counter()
        driver.step()
        quiet.append(time.perf_counter() - began)
    driver.run_until_idle()
    versions_seen = set(np.concatenate([a.result().version for a in asked]))
    found[name] = {
      "median_ms": 1e3 * statistics.median(quiet),
      "longest_ms": 1e3 * max(swapped),
      "longest_of_median": max(swapped) / statistics.median(quiet),
      "tokens_lost": sum(ANSWER - len(a.result().sampled) for a in asked),
      "versions_in_answers": len(versions_seen),
    }
  return found
