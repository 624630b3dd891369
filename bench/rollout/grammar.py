"""Answers that follow a grammar, against free answers.

W-tiny, 16 slots. A slot with a grammar takes one token per look at the host,
since what it may take next depends on the last; so its peer is a free slot that
takes one per look, too, and its price the distance to one that takes four. The
grammar is an array of objects that is never long enough, so that no answer ends
before its budget; the tokenizer is learned from the files of this repository.

`mask_microseconds` is what the host does per token and slot, by itself: the
token is taken through the grammar, and what may follow is found. `mixed` has a
grammar in every fourth slot, under JetStream's threads: how many tokens of
which kind come per second while both are there, and how many free ones if the
other slots stand empty.
"""

import json
import pathlib
import threading
import time

import jax
import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.rollout.api import Completion, EngineConfig, SamplingParams
from agentrl_jax.rollout.drivers.driver import Driver, LocalDriver
from agentrl_jax.rollout.drivers.jetstream import JetStreamDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.weights.publish import Publisher
from bench import timing, tiny
from bench.line_peer import Pythons

SLOTS, PROMPT, ANSWER, WAIT_S = 16, 16, 80, 600.0
ROOT = pathlib.Path(__file__).parents[2]
SCHEMA = {
  "type": "array",
  "minItems": ANSWER,
  "items": {
    "type": "object",
    "properties": {
      "name": {"type": "string", "maxLength": 30},
      "price": {"type": "number"},
      "colour": {"enum": ["red", "green", "blue"]},
      "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "price", "colour"],
    "additionalProperties": False,
  },
}
GRAMMAR = f"start: %json {json.dumps(SCHEMA)}"


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons  # no peer gives log-probabilities under a grammar
  load_before = timing.load()
  policy, _ = tiny.make_learner()
  params, codec = policy.init(jax.random.key(0)), _codec()
  one = LocalDriver(_engine(policy, params, codec, 1))
  four = LocalDriver(_engine(policy, params, codec, 4))
  bound = SamplingParams(
    grammar=GRAMMAR, stop_tokens=codec.stop_tokens, max_tokens=ANSWER
  )
  free = SamplingParams(max_tokens=ANSWER)
  turns = {
    "grammar": lambda: _timed(four, bound),
    "one per look": lambda: _timed(one, free),
    "four per look": lambda: _timed(four, free),
  }
  timing.in_turn(turns, 1)  # compiles
  times = timing.in_turn(turns, pairs)
  milliseconds = {n: timing.milliseconds(t)["wall"] for n, t in times.items()}
  return {
    "work": {
      "model": tiny.work_of(tiny.MODEL),
      "slots": SLOTS,
      "prompt": PROMPT,
      "answer": ANSWER,
      "grammar": GRAMMAR,
    },
    "tokens_per_second": {
      name: 1e3 * SLOTS * ANSWER / each for name, each in milliseconds.items()
    },
    "times_as_long_as": {
      name: timing.ratio(times["grammar"], times[name])
      for name in ("one per look", "four per look")
    },
    "mask_microseconds": _mask_microseconds(codec, _asked(four, [bound])),
    "mixed_tokens_per_second": _mixed(
      JetStreamDriver(_engine(policy, params, codec, 4)), bound, free, pairs
    ),
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


def _codec() -> ChatCodec:
  files = sorted(ROOT.glob("agentrl_jax/**/*.py")) + sorted(
    ROOT.glob("tests/**/*.py")
  )
  return ChatCodec(
    train_tokenizer(
      [path.read_text() for path in files], vocab_size=tiny.MODEL.vocab_size
    )
  )


def _engine(
  policy: Policy, params: Params, codec: ChatCodec, steps_per_sync: int
) -> RolloutEngine:
  store = ServedWeights(1)
  Publisher(policy, store).publish(params, 0)
  grammars = codec.grammars(tiny.MODEL.vocab_size)
  config = EngineConfig(
    slots=(SLOTS,),
    context=PROMPT + ANSWER,
    prefill_chunks=(PROMPT,),
    steps_per_sync=steps_per_sync,
  )
  return RolloutEngine(policy, config, store, grammars=lambda: grammars)


def _timed(driver: LocalDriver, sampling: SamplingParams) -> timing.Times:
  """The time of a full answer in every slot."""
  driver.engine.reset()
  return timing.times_of(lambda: _asked(driver, [sampling] * SLOTS) and None)


def _asked(
  driver: LocalDriver, specs: list[SamplingParams]
) -> list[Completion]:
  """Generates answers to one random prompt each."""
  futures = [driver.submit(prompt, spec) for prompt, spec in _requests(specs)]
  driver.run_until_idle()
  answers = [future.result(0) for future in futures]
  if any(len(answer.sampled) < ANSWER for answer in answers):
    raise RuntimeError("an answer ended before its budget: times say nothing")
  return answers


def _requests(specs: list[SamplingParams]):
  rng = np.random.default_rng(0)
  for spec in specs:
    prompt = rng.integers(0, tiny.MODEL.vocab_size, PROMPT)
    yield prompt.astype(np.int32), spec


def _mask_microseconds(
  codec: ChatCodec, answers: list[Completion]
) -> dict[str, float]:
  """Times masks per token: the median, and the slowest."""
  grammars, found = codec.grammars(tiny.MODEL.vocab_size), []
  for answer in answers:
    course = grammars.begin(GRAMMAR)
    for token in map(int, answer.sampled):
      began = time.perf_counter()
      course.allowed()
      course.take(token)
      found.append(1e6 * (time.perf_counter() - began))
  return {"median": float(np.median(found)), "highest": max(found)}


def _mixed(
  driver: Driver, bound: SamplingParams, free: SamplingParams, rounds: int
) -> dict[str, list[float]]:
  """Tokens per second of each kind, over several rounds."""
  mixed = [bound if n % 4 == 0 else free for n in range(SLOTS)]
  others = [spec for spec in mixed if spec is free]
  found: dict[str, list[float]] = {"grammar": [], "free": [], "free alone": []}
  for warm in range(-1, rounds):
    among, alone = _rates(driver, mixed), _rates(driver, others)
    if warm >= 0:
      found["grammar"].append(among[GRAMMAR])
      found["free"].append(among[""])
      found["free alone"].append(alone[""])
  driver.close()
  return {name: sorted(rates) for name, rates in found.items()}


def _rates(driver: Driver, specs: list[SamplingParams]) -> dict[str, float]:
  """Measures tokens per second by grammar until the first answer ends."""
  heard, whole = dict.fromkeys({spec.grammar for spec in specs}, 0), []
  over = threading.Event()

  def hear(sampling: SamplingParams, piece: Completion) -> None:
    if not over.is_set():
      heard[sampling.grammar] += len(piece.sampled)

  began = time.perf_counter()
  futures = []
  for prompt, spec in _requests(specs):
    future = driver.submit(prompt, spec, lambda p, s=spec: hear(s, p))
    future.add_done_callback(lambda _: whole.append(time.perf_counter()))
    future.add_done_callback(lambda _: over.set())
    futures.append(future)
  for future in futures:
    future.result(WAIT_S)
  return {name: number / (whole[0] - began) for name, number in heard.items()}
