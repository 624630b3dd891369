"""Drafts of the engine on real text: eight attempts at each word problem.

The model in the folder BENCH_MODEL explains its steps, at temperature 0.7 and
in at most 64 tokens, to one problem with eight slots and to four problems with
32; attempts at one problem draft from each other. Both sides have the same
seeds, and so the same tokens unless rounding decides one. `times_faster` is the
ratio of tokens per second, prefill included; `per_step` is the tokens sampled
per slot and step.
"""

import numpy as np

from agentrl_jax.rollout.api import EngineConfig, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.weights.publish import Publisher
from bench import published, timing
from bench.line_peer import Pythons

SLOTS, ATTEMPTS, ANSWER, TEMPERATURE, DRAFT_TOKENS = (8, 32), 8, 64, 0.7, 4
SHORT, LONG = "Answer with a number only.", "Explain your steps."


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons  # no peer draws by the keys of ours
  load_before = timing.load()
  policy, _, params = published.load()
  rows = {}
  for slots in SLOTS:
    sides = {
      name: _Attempts(policy, params, slots, **drafts)
      for name, drafts in (
        ("plain", {}),
        ("drafts", {"draft_tokens": DRAFT_TOKENS}),
      )
    }
    timing.in_turn(sides, 1)  # compiles
    times = timing.in_turn(sides, pairs)
    rows[slots] = _row(sides, times, load_before)
  return {
    "work": {
      "model": published.folder().name,
      "attempts": ATTEMPTS,
      "answer": ANSWER,
      "temperature": TEMPERATURE,
      "draft_tokens": DRAFT_TOKENS,
    },
    "slots": rows,
    "load_before": load_before,
  }


class _Attempts:
  """Plays all attempts at once, as many as there are slots."""

  def __init__(self, policy, params, slots: int, **drafts):
    tokenizer = published.tokenizer()
    self._end = tokenizer.token_to_id("<|im_end|>")
    self._prompts = [
      np.array(
        tokenizer.encode(
          prompt.replace(SHORT, LONG), add_special_tokens=False
        ).ids,
        np.int32,
      )
      for prompt, _ in published.questions(slots // ATTEMPTS)
    ]
    store = ServedWeights(1)
    config = EngineConfig(
      slots=(slots,),
      context=max(map(len, self._prompts)) + ANSWER,
      num_slot_sizes=2,
      prefill_chunks=(16, 48),
      steps_per_sync=2,
      **drafts,
    )
    self._driver = LocalDriver(RolloutEngine(policy, config, store))
    Publisher(policy, store).publish(params, 0)
    self.answers: list[list[int]] = []

  def __call__(self) -> timing.Times:
    self._driver.engine.reset()  # else there would be nothing to prefill
    self._before = self._driver.engine.stats()
    return timing.times_of(self._play)

  def _play(self) -> None:
    asked = [
      self._driver.submit(
        prompt,
        SamplingParams(
          temperature=TEMPERATURE,
          max_tokens=ANSWER,
          stop_tokens=(self._end,),
          seed=ATTEMPTS * group + attempt,
          conversation=group + 1,
        ),
      )
      for group, prompt in enumerate(self._prompts)
      for attempt in range(ATTEMPTS)
    ]
    self._driver.run_until_idle()
    self.answers = [each.result().sampled.tolist() for each in asked]

  def counts(self) -> dict[str, float]:
    """Counts the tokens of the last play."""
    stats = self._driver.engine.stats()
    sampled, drafted, accepted = (
      getattr(stats, name)[0] - getattr(self._before, name)[0]
      for name in ("num_sampled", "num_drafted", "num_accepted")
    )
    return {
      "sampled": sampled,
      "per_step": sampled / (sampled - accepted),
      "accepted_share": accepted / max(drafted, 1),
    }


def _row(sides, times, load_before: float) -> dict[str, object]:
  milliseconds = {name: timing.milliseconds(t) for name, t in times.items()}
  counts = {name: side.counts() for name, side in sides.items()}
  plain, drafts = (counts[name]["sampled"] for name in ("plain", "drafts"))
  pairs = zip(sides["plain"].answers, sides["drafts"].answers, strict=True)
  per_token = {
    name: each["cpu"] / counts[name]["sampled"]
    for name, each in milliseconds.items()
  }
  return {
    "milliseconds": milliseconds,
    "counts": counts,
    "share_of_equal_answers": float(np.mean([a == b for a, b in pairs])),
    "times_faster": timing.ratio(
      times["plain"], times["drafts"], drafts / plain
    ),
    "times_less_cpu": per_token["plain"] / per_token["drafts"],
    "contended": timing.contended(load_before, times),
  }
