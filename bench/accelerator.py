"""Speed on one accelerator, against the limits of the device.

  python -m bench.accelerator                     # all rows
  python -m bench.accelerator decode --model=qwen3-0.6b --rounds=3

- limits: bytes read per second by the maximum of 4 GiB, and operations per
  second of a product of two bfloat16 matrices of 8192 x 8192.
- decode: greedy answers to 1, 8, 32 and 128 prompts at once, by the whole
  engine. A step takes at least the time to read all params and the keys and
  values of the tokens so far.
- packed_step: an update on full packed rows. It takes at least the time of its
  products; attention counts pairs of tokens that see each other.

The model has the shape of a published one, random params, and computes in
bfloat16. Prints one JSON object per row.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.presets import PRESETS, preset
from agentrl_jax.model.policy import Policy, num_params
from agentrl_jax.rollout.api import EngineConfig, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.weights.publish import Publisher
from bench import tiny

ROWS = ("limits", "decode", "packed_step")
LANES, PROMPT, SHORT, LONG, CONTEXT = (1, 8, 32, 128), 512, 32, 288, 1024
SEGMENT = 2048  # tokens of a trajectory of packed_step
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Limits:
  """Rates that the device reaches by itself."""

  bytes_per_s: float
  operations_per_s: float


def main() -> None:
  """Measures the rows named on the command line, or all."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("rows", nargs="*", choices=[[], *ROWS])
  parser.add_argument("--model", default="qwen3-0.6b", choices=sorted(PRESETS))
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--rows_of_update", type=int, default=4)
  parser.add_argument("--row_length", type=int, default=4096)
  parser.add_argument("--token_chunk", type=int, default=1024)
  parser.add_argument("--remat", default="none")
  parser.add_argument("--attention", default="auto")
  parser.add_argument("--scan", action="store_true")
  parser.add_argument("--steps_per_sync", type=int, default=32)
  options = parser.parse_args()
  limits, model = _limits(options.rounds), preset(options.model)
  about = {
    "jax": jax.__version__,
    "device": jax.devices()[0].device_kind,
    "model": options.model,
  }
  for row in options.rows or ROWS:
    if row == "limits":
      found = dataclasses.asdict(limits)
    elif row == "decode":
      found = _decode(model, limits, options)
    else:
      found = _packed_step(model, limits, options)
    sys.stdout.write(json.dumps({"row": row} | about | found, indent=2) + "\n")
    sys.stdout.flush()


def _limits(rounds: int) -> Limits:
  size = 8192
  a, b = (
    jax.random.normal(key, (size, size), jnp.bfloat16)
    for key in jax.random.split(jax.random.key(0))
  )
  product_s = _median_s(jax.jit(jnp.matmul), rounds, a, b)
  words = jax.random.bits(jax.random.key(1), (GIB,), jnp.uint32)
  read_s = _median_s(jax.jit(jnp.max), rounds, words)
  return Limits(words.nbytes / read_s, 2 * size**3 / product_s)


def _median_s(function: Callable, rounds: int, *arguments) -> float:
  """Times a compiled function of the device, ten calls at a time."""
  jax.block_until_ready(function(*arguments))
  found = []
  for _ in range(rounds):
    start = time.perf_counter()
    results = [function(*arguments) for _ in range(10)]
    jax.block_until_ready(results)
    found.append((time.perf_counter() - start) / 10)
  return statistics.median(found)


def _policy(model: ModelConfig, options: argparse.Namespace) -> Policy:
  compute = ComputeConfig(
    dtype="bfloat16",
    remat=options.remat,
    attention=options.attention,
    scan_layers=options.scan,
  )
  return Policy(model, compute)


def _decode(model, limits: Limits, options) -> dict[str, object]:
  policy = _policy(model, options)
  params = policy.init(jax.random.key(0))
  found = {}
  for lanes in LANES:
    engine = _Engine(policy, params, lanes, options.steps_per_sync)
    engine.answer_s(LONG)  # compiles
    steps = LONG - SHORT
    step_s = statistics.median(
      (engine.answer_s(LONG) - engine.answer_s(SHORT)) / steps
      for _ in range(options.rounds)
    )
    tokens = lanes * (PROMPT + (SHORT + LONG) / 2)
    cache = 2 * model.num_layers * model.num_kv_heads * model.head_dim * tokens
    least_s = 2 * (num_params(params) + cache) / limits.bytes_per_s
    found[lanes] = {
      "step_ms": 1e3 * step_s,
      "least_ms": 1e3 * least_s,
      "share_of_bandwidth": least_s / step_s,
      "tokens_per_s": lanes / step_s,
    }
  return {"work": {"prompt": PROMPT, "answer": LONG}, "at_once": found}


class _Engine:
  """Answers all prompts at once, from an empty cache."""

  def __init__(self, policy, params, lanes: int, steps_per_sync: int):
    store = ServedWeights(1)
    config = EngineConfig(
      slots=(lanes,),
      context=CONTEXT,
      prefill_chunks=(PROMPT,),
      prefill_tokens=8192,
      steps_per_sync=steps_per_sync,
    )
    self._driver = LocalDriver(RolloutEngine(policy, config, store))
    Publisher(policy, store, dtype=jnp.bfloat16).publish(params, 0)
    rng = np.random.default_rng(0)
    self._prompts = rng.integers(0, 10_000, (lanes, PROMPT)).astype(np.int32)

  def answer_s(self, num_tokens: int) -> float:
    self._driver.engine.reset()
    spec = SamplingParams(temperature=0.0, max_tokens=num_tokens)
    start = time.perf_counter()
    asked = [self._driver.submit(prompt, spec) for prompt in self._prompts]
    self._driver.run_until_idle()
    for each in asked:
      if len(each.result().sampled) != num_tokens:
        raise AssertionError("an answer is too short: its time says nothing")
    return time.perf_counter() - start


def _packed_step(model, limits: Limits, options) -> dict[str, object]:
  policy = _policy(model, options)
  loss = tiny.loss_config(token_chunk=options.token_chunk)
  policy, learner = tiny.make_learner(model, policy.compute, loss)
  params = policy.init(jax.random.key(0))
  micro_batch = _segments(
    tiny.make_micro_batch(options.rows_of_update, options.row_length)
  )
  operations = tiny.arithmetic(micro_batch, num_params(params), model)
  state = learner.init(params)
  times = []
  for _ in range(2 + options.rounds):
    start = time.perf_counter()
    state, _ = learner.update(state, [micro_batch])
    times.append(time.perf_counter() - start)
  update_s = statistics.median(times[2:])
  tokens = options.rows_of_update * options.row_length
  return {
    "work": {
      "rows": options.rows_of_update,
      "row_length": options.row_length,
      "segment": SEGMENT,
      "remat": options.remat,
      "attention": options.attention,
      "token_chunk": options.token_chunk,
      "scan": options.scan,
      "teraflop": operations / 1e12,
    },
    "update_ms": 1e3 * update_s,
    "compile_s": times[0],
    "tokens_per_s": tokens / update_s,
    "share_of_product_rate": operations / update_s / limits.operations_per_s,
    "teraflop_per_s": operations / update_s / 1e12,
    "peak_gib": (jax.devices()[0].memory_stats() or {}).get(
      "peak_bytes_in_use", 0
    )
    / GIB,
  }


def _segments(micro_batch):
  """Cuts each row into trajectories of `SEGMENT` tokens."""
  batch = micro_batch.batch
  rows, length = batch.token.shape
  place_BT = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
  part_BT = place_BT // SEGMENT
  position_BT = place_BT % SEGMENT
  mask_BT = position_BT > 0
  parts = part_BT[0, -1] + 1
  row_B1 = np.arange(rows, dtype=np.int32)[:, None]
  return dataclasses.replace(
    micro_batch,
    batch=dataclasses.replace(
      batch,
      position=position_BT,
      segment=part_BT + 1,
      trajectory=row_B1 * parts + part_BT,
      mask=mask_BT,
      behavior_logprob=np.where(mask_BT, batch.behavior_logprob, 0).astype(
        np.float32
      ),
    ),
  )


if __name__ == "__main__":
  main()
