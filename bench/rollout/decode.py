"""Greedy answers of equal length to 1, 8 and 32 prompts at once.

W-tiny, 128 tokens of prompt and 128 of answer without an end token. Our time is
that of the whole engine, including bookkeeping and copies to the host. The
peers start from the same params in a Hugging Face folder, and must find the
same tokens before anything is timed.

The limit of a step is the time to read its memory, or the time of its products
at the rate that XLA reaches for large ones, whichever is longer.
"""

import functools
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.rollout.api import EngineConfig, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.weights.publish import Publisher
from bench import timing, tiny
from bench.line_peer import LinePeer, Pythons

NUMBERS, PROMPT, ANSWER = (1, 8, 32), 128, 128
PEERS = {  # environment and script
  "tunix": ("tunix", "tunix_decode.py"),
  "hugging_face": ("torch", "hugging_face_decode.py"),
}
EQUAL = 16  # first tokens of an answer that all must agree on


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  load_before = timing.load()
  policy, _ = tiny.make_learner()
  params = policy.init(jax.random.key(0))
  prompts = _prompts()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    tiny.write_model(folder / "model", params)
    np.save(folder / "prompts.npy", prompts)
    peers = {
      peer: LinePeer(pythons[where], script, folder)
      for peer, (where, script) in PEERS.items()
      if pythons[where].exists()
    }
    rows = {}
    for number in NUMBERS:
      ours = Answers(policy, params, prompts[:number])
      turns = {"ours": ours} | {
        peer: functools.partial(each.ask, str(number))
        for peer, each in peers.items()
      }
      timing.in_turn(turns, 1)  # compiles
      shares = {
        peer: equal(peer, ours.tokens, np.load(folder / f"{peer}_{number}.npy"))
        for peer in peers
      }
      times = timing.in_turn(turns, pairs)
      rows[number] = _row(times, shares, load_before)
    for each in peers.values():
      each.close()
  return {
    "work": {
      "model": tiny.work_of(tiny.MODEL),
      "prompt": PROMPT,
      "answer": ANSWER,
    },
    "peers": {peer: each.version for peer, each in peers.items()},
    "limits": limits(params),
    "at_once": rows,
    "load_before": load_before,
  }


class Answers:
  """Submits all prompts at once and waits for all answers."""

  def __init__(self, policy, params, prompts, num_tokens: int = ANSWER):
    store = ServedWeights(1)
    config = EngineConfig(
      slots=(len(prompts),),
      context=prompts.shape[1] + num_tokens,
      prefill_chunks=(prompts.shape[1],),
      prefill_tokens=4096,
      steps_per_sync=16,
    )
    self._driver = LocalDriver(RolloutEngine(policy, config, store))
    Publisher(policy, store).publish(params, 0)
    self._prompts, self._num_tokens = prompts, num_tokens
    self.tokens = np.zeros((0, 0))

  def __call__(self) -> timing.Times:
    self._driver.engine.reset()  # else there would be nothing to prefill
    return timing.times_of(self._answer)

  def _answer(self) -> None:
    spec = SamplingParams(temperature=0.0, max_tokens=self._num_tokens)
    asked = [self._driver.submit(prompt, spec) for prompt in self._prompts]
    self._driver.run_until_idle()
    self.tokens = np.array([each.result().sampled for each in asked])


def _prompts() -> np.ndarray:
  rng = np.random.default_rng(0)
  # The last words of the tokenizer end and pad: no prompt has them.
  shape = (max(NUMBERS), PROMPT)
  return rng.integers(0, tiny.MODEL.vocab_size - 2, shape).astype(np.int32)


def equal(
  peer: str, ours: np.ndarray, theirs: np.ndarray, first: int = EQUAL
) -> float:
  """Returns the share of equal tokens; raises if one of the first differs."""
  differ = (ours != theirs)[:, :first].any(axis=1)
  if differ.any():
    raise RuntimeError(
      f"answers {np.flatnonzero(differ).tolist()} of {peer} begin otherwise, "
      f"with {theirs[differ, :first].tolist()} for our "
      f"{ours[differ, :first].tolist()}: its time says nothing"
    )
  return float(np.mean(ours == theirs))


def _row(times, shares, load_before) -> dict[str, object]:
  return {
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "milliseconds_per_token": {
      n: timing.milliseconds(t)["wall"] / ANSWER for n, t in times.items()
    },
    "times_faster_than": {
      peer: timing.ratio(times[peer], times["ours"]) for peer in shares
    },
    "share_of_equal_tokens": shares,
    "contended": timing.contended(load_before, times),
  }


def limits(params) -> dict[str, float]:
  """Milliseconds of a step: all params read once, and products per slot."""
  leaves = jax.tree.leaves(params)
  size = sum(leaf.nbytes for leaf in leaves)
  read_s = _fastest(lambda p: sum(jnp.sum(x) for x in p), leaves)
  a_NN = jax.random.normal(jax.random.key(1), (2048, 2048))
  product_s = _fastest(lambda x: x @ x, a_NN)
  rate = 2 * 2048**3 / product_s
  return {
    "bytes_of_params": size,
    "read_ms": 1e3 * read_s,
    "product_gflop_per_s": rate / 1e9,
    "products_ms_per_slot": 1e3 * 2 * size / 4 / rate,
  }


def _fastest(function, argument, repeats: int = 7) -> float:
  compiled = jax.jit(function)
  timing.times_of(compiled, argument)
  return min(timing.times_of(compiled, argument).wall for _ in range(repeats))
