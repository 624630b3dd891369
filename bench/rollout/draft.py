"""Drafts of the engine: the same answers, and how many steps they save.

- exact: random requests with and without drafts, float32. The same tokens, and
  the largest difference of log-probabilities.
- recorded: groups are answered again. The program computes everything, and then
  each token is the recorded one, so drafts are right as often as they were for
  the policy that answered. `per_step` is the tokens sampled per slot and step
  (a draft's verification, or a step without a draft); `free` computes each
  draft, as pays where more tokens cost no time.
- speed: the same with W-tiny, 8 slots, and (of a run) with the run's model on
  96: time without drafts over time with them.
- nothing: random answers, in which nothing repeats.

`make originals` installs the tokenizer of the transcripts, $AGENTRL_RUN names
the folder of a run; what is missing is left out. $AGENTRL_DRAFT_EXACT is the
number of requests.
"""

import dataclasses
import os
import pathlib
import time
from collections.abc import Mapping
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import EngineConfig, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from bench import timing, tiny
from bench.line_peer import Pythons
from bench.qwen_chat import has_qwen
from bench.recorded_groups import (
  ENVIRONMENTS,
  Groups,
  of_run,
  renumbered,
  transcripts,
)
from configs import quickstart

ATTEMPTS, CONTEXT, DRAFT_TOKENS = 8, 1536, 4
FREE = dict(draft_tokens=7, draft_cost=0.001)
PAYING = dict(draft_tokens=DRAFT_TOKENS)
SMALL = ModelConfig(
  vocab_size=61,
  width=32,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  mlp_width=48,
)


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons  # no peer draws by the keys of ours
  load_before = timing.load()
  found: dict[str, object] = {"exact": _exact()}
  if has_qwen():
    sources = {
      name: list(transcripts(name, ATTEMPTS))[:1] for name in ENVIRONMENTS
    }
    found["transcripts"] = _recorded(tiny.MODEL, ATTEMPTS, sources, pairs)
  if "AGENTRL_RUN" in os.environ:
    groups = list(of_run(pathlib.Path(os.environ["AGENTRL_RUN"])))[:12]
    found["run"] = _recorded(_quickstart_model(), 96, {"run": groups}, pairs)
  found["nothing"] = _nothing(pairs)
  return found | {"load_before": load_before}


def _recorded(
  model: ModelConfig, slots: int, sources: Mapping[str, Groups], pairs: int
) -> dict[str, object]:
  """Answers the groups of each source again, all of a source at once."""
  nothing = dataclasses.replace(SMALL, vocab_size=model.vocab_size)
  numbered = renumbered(sources)
  free = _Replay(nothing, slots, numbered, **FREE)
  sides = {
    "plain": _Replay(model, slots, numbered),
    "drafts": _Replay(model, slots, numbered, **PAYING),
  }
  found = {}
  for name in sources:
    plays = {
      side: lambda replay=replay, name=name: timing.times_of(replay.play, name)
      for side, replay in sides.items()
    }
    timing.in_turn(plays, 1)  # compiles
    times = timing.in_turn(plays, pairs)
    free.play(name)
    found[name] = {
      "free": free.counts(),
      "paying": sides["drafts"].counts(),
      "times_faster": timing.ratio(times["plain"], times["drafts"]),
      "milliseconds": {k: timing.milliseconds(t) for k, t in times.items()},
    }
  return found


def _quickstart_model() -> ModelConfig:
  config = quickstart.get_config()
  fields = {field.name for field in dataclasses.fields(ModelConfig)}
  sizes = {k: v for k, v in config.model.items() if k in fields}
  return ModelConfig(**sizes | {"vocab_size": config.tokenizer.vocab_size})


class _Replay:
  """Plays recorded episodes on an engine of its own, from empty caches."""

  def __init__(self, model, slots, sources, **drafts):
    self._sources = sources
    answers = [
      answer
      for groups in sources.values()
      for group in groups
      for episode in group
      for _, answer in episode
    ]
    self._number = {id(answer): n for n, answer in enumerate(answers)}
    longest = max(len(answer) for answer in answers)
    script = np.full((len(answers), longest), -1, np.int32)
    for n, answer in enumerate(answers):
      script[n, : len(answer)] = answer
    policy = Policy(model, ComputeConfig())
    params = policy.to_decode(policy.init(jax.random.key(0)))
    self._driver = LocalDriver(_engine(policy, params, slots, **drafts))
    self._sample = _scripted(script)

  def play(self, source: str) -> None:
    """Plays all episodes of a source at once."""
    self._driver.engine.reset()
    self.before = self._driver.engine.stats()
    # Traced once, with the policy of this replay as the key of the trace.
    with mock.patch.object(programs, "_sample", self._sample):
      self._play(self._sources[source])

  def _play(self, groups: Groups) -> None:
    playing = [
      (number, iter(episode), np.zeros(0, np.int32))
      for number, group in enumerate(groups, 1)
      for episode in group
    ]
    asked = []
    while playing or asked:
      for group, turns, before in playing:
        if (turn := next(turns, None)) is None:
          continue
        prompt = np.concatenate([before, turn[0]])
        if len(prompt) + len(turn[1]) <= CONTEXT:
          future = self._driver.submit(prompt, self._spec(turn[1], group))
          asked.append((future, group, turns, prompt))
      self._driver.step()
      playing = [
        (group, turns, np.concatenate([prompt, future.result(0).sampled]))
        for future, group, turns, prompt in asked
        if future.done()
      ]
      asked = [each for each in asked if not each[0].done()]

  def _spec(self, answer, group):
    return SamplingParams(
      max_tokens=len(answer),
      seed=self._number[id(answer)] << 32 | len(answer),
      conversation=group,
    )

  def counts(self) -> dict[str, float]:
    """Counts the tokens of the last play."""
    stats = self._driver.engine.stats()
    sampled, drafted, accepted = (
      getattr(stats, name)[0] - getattr(self.before, name)[0]
      for name in ("num_sampled", "num_drafted", "num_accepted")
    )
    return {
      "sampled": sampled,
      "per_step": sampled / (sampled - accepted),
      "drafted_per_step": drafted / (sampled - accepted),
      "acceptance": accepted / max(drafted, 1),
    }


def _scripted(script: np.ndarray):
  """Draws as ever, and then takes the recorded token.

  The seed has the number of the answer and its length; the budget says where in
  the prompt the answer began.
  """
  draw = programs._sample

  def sample(logits_BV, state, position_B, **options):
    drawn = draw(logits_BV, state, position_B, **options)
    first_B = state["position"] - state["count"] + 1
    token_B = jnp.asarray(script)[
      state["seed_high"], jnp.clip(position_B - first_B, 0, script.shape[1] - 1)
    ]
    return drawn.replace(
      token_B=jnp.where(token_B >= 0, token_B, drawn.token_B)
    )

  return sample


def _engine(policy, params, slots, **drafts) -> RolloutEngine:
  store = ServedWeights(1)
  store.publish(params, 0)
  config = EngineConfig(
    slots=(slots,),
    context=CONTEXT,
    num_slot_sizes=1,
    prefill_chunks=(16, 64),
    **drafts,
  )
  return RolloutEngine(policy, config, store)


def _nothing(pairs: int) -> dict[str, object]:
  """Random prompts and a policy that repeats nothing."""
  policy = Policy(tiny.MODEL, ComputeConfig())
  params = policy.to_decode(policy.init(jax.random.key(0)))
  sides = {
    "plain": LocalDriver(_engine(policy, params, ATTEMPTS)),
    "drafts": LocalDriver(_engine(policy, params, ATTEMPTS, **PAYING)),
  }
  rng = np.random.default_rng(0)
  prompts = rng.integers(0, tiny.MODEL.vocab_size, (2 * ATTEMPTS, 100))

  def play(driver: LocalDriver) -> None:
    driver.engine.reset()
    for n, prompt in enumerate(prompts):
      spec = SamplingParams(max_tokens=64, seed=n, conversation=1)
      driver.submit(prompt.astype(np.int32), spec)
    driver.run_until_idle()

  plays = {
    name: lambda driver=driver: timing.times_of(lambda: play(driver))
    for name, driver in sides.items()
  }
  timing.in_turn(plays, 1)
  times = timing.in_turn(plays, pairs)
  return {
    "drafted": sides["drafts"].engine.stats().num_drafted[0],
    "times_faster": timing.ratio(times["plain"], times["drafts"]),
  }


def _exact() -> dict[str, object]:
  """Compares answers with and without drafts."""
  number = int(os.environ.get("AGENTRL_DRAFT_EXACT", 10_000))
  policy = Policy(SMALL, ComputeConfig())
  params = policy.init(jax.random.key(10))
  params = jax.tree_util.tree_map_with_path(_louder, params)
  config = dict(slots=(16,), context=96, num_slot_sizes=1, prefill_chunks=(16,))
  answers, drivers, began = {}, {}, time.perf_counter()
  for name, drafts in (
    ("plain", {}),
    ("drafts", dict(draft_tokens=3, draft_cost=0.01)),
  ):
    store = ServedWeights(1)
    store.publish(params, 0)
    engine = RolloutEngine(policy, EngineConfig(**config, **drafts), store)
    drivers[name] = driver = LocalDriver(engine, max_waiting=number)
    futures = [driver.submit(*each) for each in _requests(number)]
    driver.run_until_idle()
    answers[name] = [future.result(0) for future in futures]
  different, gap = [], 0.0
  for n, (plain, drafted) in enumerate(zip(*answers.values(), strict=True)):
    if not np.array_equal(plain.sampled, drafted.sampled):
      different.append(n)
      continue
    gaps = [
      np.max(np.abs(getattr(plain, name) - getattr(drafted, name)))
      for name in ("behavior_logprob", "raw_logprob")
    ]
    gap = max(gap, *map(float, gaps))
  stats = drivers["drafts"].engine.stats()
  return {
    "requests": number,
    "different": different,
    "largest_logprob_difference": gap,
    "sampled": stats.num_sampled[0],
    "drafted": stats.num_drafted[0],
    "accepted": stats.num_accepted[0],
    "seconds": time.perf_counter() - began,
  }


def _louder(path, leaf):
  """Lets earlier tokens decide the next one, in a fresh model."""
  names = [str(entry.key) for entry in path]
  return leaf * (8 if "attention" in names and "o" in names else 1)


def _requests(number: int):
  """Yields requests of every kind, whose drafts are good, bad or missing."""
  rng = np.random.default_rng(0)
  vocab_size = SMALL.vocab_size
  for _ in range(number):
    size, group = int(rng.integers(1, 50)), int(rng.integers(0, 50))
    period = int(rng.integers(1, 6))
    prompt = (
      np.random.default_rng(group).integers(0, vocab_size, size),
      rng.integers(0, vocab_size, size),
      np.tile(rng.integers(0, vocab_size, period), size)[:size],
    )[rng.integers(3)]
    yield (
      prompt.astype(np.int32),
      SamplingParams(
        temperature=float(rng.choice([0.0, 0.2, 0.7, 1.0, 1.5])),
        top_k=int(rng.choice([0, 0, 2, 5])),
        top_p=float(rng.choice([1.0, 1.0, 0.8, 0.3])),
        min_p=float(rng.choice([0.0, 0.0, 0.1])),
        max_tokens=int(rng.choice([1, 2, 3, 4, 5, 9, 40])),
        stop_tokens=((), (3,), (3, 11, 40, 7))[rng.integers(3)],
        seed=int(rng.integers(2**63)),
        conversation=group,
      ),
    )
