"""Conversations of several turns, by the place of their keys and values.

The prompt of a turn is the whole conversation so far. With P tokens of prompt,
o of each observation and g of each answer, T turns feed

    none    T P + (o + g) T (T - 1) / 2
    reused  P + (T - 1) o

tokens of a conversation without reuse and with all that there can be; of the
attempts at one task, one alone feeds the P. What is fed is compared with the
formula, and the time with that without reuse. Answers are greedy, and have to
be the same wherever keys and values are kept. Three loads: as many
conversations as slots; four times as many, all of which take their turn before
any takes its next, as if they were out with their environments; and as many of
these in groups of eight attempts.

W-tiny with 2 of its layers, 8 slots, float32. Keys and values are kept nowhere
(`none`), in slots alone (`slots`), in a store on the device that has room for
all (`store`), and in one with room for a quarter, before the host (`host`).
"""

import dataclasses

import jax
import numpy as np

from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import EngineConfig, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from bench import timing, tiny
from bench.line_peer import Pythons
from configs.base import defaults

MODEL = dataclasses.replace(tiny.MODEL, num_layers=2)
SLOTS, ATTEMPTS, BLOCK = 8, 8, 32


@dataclasses.dataclass(frozen=True)
class Shape:
  """Numbers of tokens in a conversation."""

  turns: int
  prompt: int
  observation: int
  answer: int

  @property
  def end(self) -> int:
    """Length of the whole conversation, rounded up to blocks."""
    said = self.observation + self.answer
    return -(-(self.prompt + self.turns * said) // BLOCK) * BLOCK

  def fed(self, number: int, attempts: int, *, reused: bool) -> int:
    """Counts the tokens that conversations feed, by the formulas above."""
    later = self.turns - 1
    if reused:
      return (
        number // attempts * self.prompt + number * later * self.observation
      )
    said = (self.observation + self.answer) * self.turns * later // 2
    return number * (self.turns * self.prompt + said)


SHAPES = {
  "short": Shape(turns=6, prompt=128, observation=96, answer=32),
  "long": Shape(turns=10, prompt=600, observation=250, answer=120),
}
LOADS = {  # conversations, attempts at each task, most rounds
  ("short", "as many as slots"): (SLOTS, 1, 99),
  ("short", "four times the slots"): (4 * SLOTS, 1, 99),
  ("short", "groups, four times the slots"): (4 * SLOTS, ATTEMPTS, 99),
  ("long", "as many as slots"): (SLOTS, 1, 2),
  ("long", "four times the slots"): (4 * SLOTS, 1, 1),
}


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons
  load_before = timing.load()
  policy = Policy(MODEL, defaults(ComputeConfig, "compute"))
  params = policy.to_decode(policy.init(jax.random.key(0)))
  found = {
    f"{name}, {load}": _measure_load(
      policy, params, SHAPES[name], number, attempts, min(pairs, most)
    )
    for (name, load), (number, attempts, most) in LOADS.items()
  }
  return {
    "work": {"model": tiny.work_of(MODEL), "slots": SLOTS},
    "loads": found,
    "load_before": load_before,
  }


def _measure_load(policy, params, shape, number, attempts, rounds):
  places = {
    name: _Conversations(policy, params, shape, number, attempts, kept)
    for name, kept in _kept(shape, number).items()
  }
  timing.in_turn(places, 1)  # compiles
  times = timing.in_turn(places, rounds)
  said = [place.sampled for place in places.values()]
  if any(not np.array_equal(one, said[0]) for one in said):
    raise AssertionError(f"reuse changed what was sampled: {shape}")
  formula = {
    name: shape.fed(number, attempts, reused=reused)
    for name, reused in (("none", False), ("reused", True))
  }
  return {
    "conversations": number,
    "attempts": attempts,
    "rounds": rounds,
    "formula": formula,
    "fed": {name: place.fed for name, place in places.items()},
    "of_the_formula": {
      name: formula["reused"] / place.fed for name, place in places.items()
    },
    "milliseconds": {
      name: timing.milliseconds(found) for name, found in times.items()
    },
    "contended": timing.contended(0, times),
    "times_faster_than_none": {
      name: timing.ratio(times["none"], found) for name, found in times.items()
    },
  }


def _kept(shape: Shape, number: int) -> dict[str, dict[str, object]]:
  """Options of the engine, by the place of keys and values."""
  everything = number * shape.end
  return {
    "none": {"reuse": False},
    "slots": {},
    "store": {"prefix_cache_tokens": everything},
    "host": {
      "prefix_cache_tokens": everything // 4,
      "prefix_cache_host_tokens": everything,
    },
  }


class _Conversations:
  """Plays all turns of all conversations, from empty caches."""

  def __init__(self, policy, params, shape, number, attempts, kept):
    half = -(-shape.end // 2 // BLOCK) * BLOCK
    config = defaults(
      EngineConfig,
      "engine",
      slots=(SLOTS,),
      context=shape.end,
      lengths=(half,),
      num_slot_sizes=2,
      prefill_chunks=(16, 64, 128),
      **kept,
    )
    versions = ServedWeights(1)
    versions.publish(params, 0)
    self._driver = LocalDriver(RolloutEngine(policy, config, versions))
    self._shape, self._number, self._attempts = shape, number, attempts
    self.fed = 0
    self.sampled = np.zeros(0, np.int32)

  def __call__(self) -> timing.Times:
    """Plays all turns once."""
    engine = self._driver.engine
    engine.reset()
    before = engine.stats().num_prefilled[0]
    times = timing.times_of(self._play)
    self.fed = engine.stats().num_prefilled[0] - before
    return times

  def _play(self) -> None:
    rng, shape = np.random.default_rng(0), self._shape

    def tokens(size):
      return rng.integers(0, MODEL.vocab_size, size).astype(np.int32)

    tasks = [
      tokens(shape.prompt) for _ in range(self._number // self._attempts)
    ]
    prompts = [tasks[n // self._attempts] for n in range(self._number)]
    said = []
    for _ in range(shape.turns):
      futures = [
        self._driver.submit(
          prompt, SamplingParams(max_tokens=shape.answer, temperature=0.0)
        )
        for prompt in prompts
      ]
      self._driver.run_until_idle()
      answers = [future.result(0).sampled for future in futures]
      said += answers
      prompts = [
        np.concatenate([prompt, answer, tokens(shape.observation)])
        for prompt, answer in zip(prompts, answers, strict=True)
      ]
    self.sampled = np.concatenate(said)
