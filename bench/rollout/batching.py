"""Answers of very different lengths: slots that are never left empty.

W-tiny, 64 requests of 8 tokens over 16 slots; answers are geometric of mean 64,
256 at most, and greedy. Three ways to the same tokens:

- continuous: the engine; a finished answer frees its slot for the next request.
- static: 16 requests at a time, the next ones when all have ended.
- bound: list scheduling in whole steps, each as long as the decode program
  takes by itself with all slots busy. Prompts and bookkeeping are free.

Use of slots is counted until the last request has got one; what is lost then
are the tokens between an end and the next look at the host.
"""

import heapq

import jax
import numpy as np

from agentrl_jax.rollout.api import SamplingParams
from bench import timing, tiny
from bench.line_peer import Pythons
from bench.rollout.served import RawSteps, make_driver

REQUESTS, SLOTS, PROMPT, MEAN, MOST = 64, 16, 8, 64, 256
STEPS_PER_SYNC = 4


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons  # no peer batches continuously on a CPU
  load_before = timing.load()
  policy, _ = tiny.make_learner()
  driver = make_driver(
    policy,
    [policy.init(jax.random.key(0))],
    slots=(SLOTS,),
    context=PROMPT + MOST,
    steps_per_sync=STEPS_PER_SYNC,
  )
  rng = np.random.default_rng(0)
  lengths = np.minimum(rng.geometric(1 / MEAN, REQUESTS), MOST)
  prompts = rng.integers(0, tiny.MODEL.vocab_size, (REQUESTS, PROMPT))
  requests = list(zip(prompts.astype(np.int32), lengths, strict=True))
  raw = RawSteps(policy, driver, length=PROMPT + MOST, at=PROMPT + MEAN)
  steps = {
    "continuous": makespan(lengths, SLOTS),
    "static": sum(
      int(lengths[n : n + SLOTS].max()) for n in range(0, REQUESTS, SLOTS)
    ),
  }

  def continuous() -> timing.Times:
    driver.engine.reset()
    return timing.times_of(_answer, driver, requests)

  def static() -> timing.Times:
    driver.engine.reset()
    return timing.times_of(
      lambda: [
        _answer(driver, requests[n : n + SLOTS])
        for n in range(0, REQUESTS, SLOTS)
      ]
    )

  turns = {"continuous": continuous, "static": static, "raw": raw}
  timing.in_turn(turns, 1)  # compiles
  times = timing.in_turn(turns, pairs)
  use = _use_of_slots(driver, requests)
  factor = steps["continuous"] / raw.num_steps
  return {
    "work": {
      "model": tiny.work_of(tiny.MODEL),
      "requests": REQUESTS,
      "slots": SLOTS,
      "prompt": PROMPT,
      "tokens": int(lengths.sum()),
      "steps_per_sync": STEPS_PER_SYNC,
    },
    "steps_at_least": steps,
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "share_of_bound": timing.ratio(times["raw"], times["continuous"], factor),
    "times_faster_than_static": timing.ratio(
      times["static"], times["continuous"]
    ),
    "use_of_slots": use,
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


def makespan(lengths, num_slots: int) -> int:
  """Steps until all have ended, each begun as soon as a slot is free."""
  ends = [0] * num_slots
  for length in lengths:
    heapq.heapreplace(ends, ends[0] + int(length))
  return max(ends)


def _ask(driver, requests) -> list:
  return [
    driver.submit(
      prompt, SamplingParams(temperature=0.0, max_tokens=int(length))
    )
    for prompt, length in requests
  ]


def _answer(driver, requests) -> None:
  asked = _ask(driver, requests)
  driver.run_until_idle()
  if [len(each.result().sampled) for each in asked] != [n for _, n in requests]:
    raise RuntimeError("an answer of another length than was asked for")


def _use_of_slots(driver, requests) -> float:
  """Tokens per slot and step, while there is somebody for every slot."""
  driver.engine.reset()
  _ask(driver, requests)
  before, num_steps = driver.engine.stats().num_sampled[0], 0
  while driver.num_waiting[0] or driver.engine.stats().num_pending[0]:
    driver.step()
    num_steps += STEPS_PER_SYNC
  sampled = driver.engine.stats().num_sampled[0] - before
  driver.run_until_idle()
  return sampled / (num_steps * SLOTS)
