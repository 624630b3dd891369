"""Decode speed of the rollout engine, and the cost of its drivers.

  python -m bench.rollout.engine [--driver=raw|local|jetstream] [--policy=...]

Three measurements on the same policy and slots. `raw` calls the compiled decode
program in a loop and does nothing else: it is the limit that the host can only
lose against. `local` and `jetstream` answer `--requests` multi-turn episodes
whose lengths differ, through the whole driver. The ratio to raw says what
bookkeeping, prefill and slots that stand empty cost together; policy `nothing`
has next to no arithmetic, so what remains is the bookkeeping.
"""

import argparse
import json
import time

import jax
import numpy as np

from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy, num_params
from agentrl_jax.rollout.api import EngineConfig, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights

POLICIES = {
  "1m": dict(
    vocab_size=1024,
    width=128,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    mlp_width=384,
  ),
  "nothing": dict(
    vocab_size=16,
    width=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    mlp_width=8,
  ),
}


def measure_raw(policy, params, args) -> dict[str, float]:
  """The decode program alone, all slots busy, half the context full."""
  cache = policy.empty_cache(args.slots, args.context // 2)
  fields = dict(
    position=args.context // 2 - args.steps_per_sync,
    budget=10**6,
    active=1,
    temperature=np.float32(1.0).view(np.int32),
    top_p=np.float32(1.0).view(np.int32),
    **dict.fromkeys(programs.STOPS, -1),
  )
  row = np.array([fields.get(name, 0) for name in programs.STATE], np.int32)
  begin_BF = np.tile(row, (args.slots, 1))
  state, seconds = programs.empty_state(args.slots), []
  for _ in range(args.rounds + 1):
    began = time.perf_counter()
    cache, state, record, _ = programs.decode(
      policy,
      params,
      cache,
      state,
      begin_BF,
      np.ones(args.slots, bool),
      np.arange(args.slots),
      np.arange(args.slots)[:, None],
      np.int32(0),
      num_steps=args.steps_per_sync,
    )
    np.asarray(record)
    seconds.append(time.perf_counter() - began)
  sync_s = float(np.median(seconds[1:]))
  return {
    "sampled_per_s": args.slots * args.steps_per_sync / sync_s,
    "ms_per_step": 1e3 * sync_s / args.steps_per_sync,
  }


def measure_driver(policy, params, args) -> dict[str, float]:
  """Times multi-turn episodes through a driver, compiled beforehand."""
  config = EngineConfig(
    slots=(args.slots,),
    context=args.context,
    lengths=(args.context // 4, args.context // 2),
    steps_per_sync=args.steps_per_sync,
    page_size=args.page_size,
  )
  store = ServedWeights(1)
  store.publish(params, 0)
  engine = RolloutEngine(policy, config, store)
  driver = _driver(args.driver, engine)
  for seed in (0, 1):  # the first pass compiles
    before, began = engine.stats(), time.perf_counter()
    cpu = time.process_time()
    _play(driver, policy.config.vocab_size, seed, args)
    wall_s = time.perf_counter() - began
    cpu_s = time.process_time() - cpu
  driver.close()
  after = engine.stats()
  sampled = after.num_sampled[0] - before.num_sampled[0]
  num_syncs = after.num_steps - before.num_steps
  return {
    "sampled_per_s": sampled / wall_s,
    "sampled_per_cpu_s": sampled / cpu_s,
    "sampled": sampled,
    "prefilled": after.num_prefilled[0] - before.num_prefilled[0],
    "reused": after.num_reused[0] - before.num_reused[0],
    "syncs": num_syncs,
    "ms_per_step": 1e3 * wall_s / num_syncs / args.steps_per_sync,
    "prefill_s": after.prefill_s - before.prefill_s,
    "decode_s": after.decode_s - before.decode_s,
    "wall_s": wall_s,
  }


def _driver(name: str, engine: RolloutEngine):
  if name == "local":
    return LocalDriver(engine)
  from agentrl_jax.rollout.drivers.jetstream import JetStreamDriver

  return JetStreamDriver(engine)


def _play(driver, vocab_size: int, seed: int, args) -> None:
  """Plays `--requests` episodes at once, with the earlier turns as prompt."""
  rng = np.random.default_rng(seed)

  def tokens(size):
    return rng.integers(0, vocab_size, size).astype(np.int32)

  prompts = [tokens(args.prompt) for _ in range(args.requests)]
  for turn in range(args.turns):
    futures = [
      driver.submit(
        prompt,
        SamplingParams(
          max_tokens=int(rng.integers(args.answer // 2, 3 * args.answer // 2)),
          seed=1000 * turn + i,
        ),
      )
      for i, prompt in enumerate(prompts)
    ]
    if isinstance(driver, LocalDriver):
      driver.run_until_idle()
    prompts = [
      np.concatenate([prompt, future.result(600).sampled, tokens(16)])
      for prompt, future in zip(prompts, futures, strict=True)
    ]


def make_parser() -> argparse.ArgumentParser:
  """Options of a measurement, with their defaults."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--driver", choices=("raw", "local", "jetstream"))
  parser.add_argument("--policy", choices=tuple(POLICIES), default="1m")
  parser.add_argument("--slots", type=int, default=128)
  parser.add_argument("--context", type=int, default=512)
  parser.add_argument("--steps_per_sync", type=int, default=4)
  parser.add_argument("--page_size", type=int, default=0)
  parser.add_argument("--rounds", type=int, default=10)
  parser.add_argument("--requests", type=int, default=256)
  parser.add_argument("--turns", type=int, default=2)
  parser.add_argument("--prompt", type=int, default=96)
  parser.add_argument("--answer", type=int, default=40)
  return parser


def main() -> None:
  """Prints one line of JSON per measurement."""
  args = make_parser().parse_args()
  policy = Policy(ModelConfig(**POLICIES[args.policy]), ComputeConfig())
  params = policy.init(jax.random.key(0))
  names = [args.driver] if args.driver else ["raw", "local", "jetstream"]
  for args.driver in names:
    measure = measure_raw if args.driver == "raw" else measure_driver
    found = measure(policy, params, args)
    print(  # noqa: T201 (the report is this script's purpose)
      json.dumps(
        {"driver": args.driver, "num_params": num_params(params)}
        | vars(args)
        | {name: round(value, 3) for name, value in found.items()}
      )
    )


if __name__ == "__main__":
  main()
