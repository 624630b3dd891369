"""Host time per engine step and 128 slots, beside the device.

A policy with next to no arithmetic answers 256 episodes of 2 turns through each
driver; its decode program alone is taken off. What is left are the drivers,
bookkeeping, prompts, and slots that stand empty at the end.
"""

import jax

from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy
from bench import timing
from bench.line_peer import Pythons
from bench.rollout import engine


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons  # the limit is no host work at all
  load_before = timing.load()
  policy = Policy(ModelConfig(**engine.POLICIES["nothing"]), ComputeConfig())
  params = policy.init(jax.random.key(0))
  found = {}
  for steps in (1, 4):
    args = engine.make_parser().parse_args([])
    args.policy, args.steps_per_sync = "nothing", steps
    rounds = []
    for _ in range(pairs):
      raw = engine.measure_raw(policy, params, args)["ms_per_step"]
      of_drivers = {}
      for args.driver in ("local", "jetstream"):
        row = engine.measure_driver(policy, params, args)
        of_drivers[args.driver] = row["ms_per_step"] - raw
      rounds.append(of_drivers | {"raw": raw})
    found[steps] = {
      name: sorted(each[name] for each in rounds) for name in rounds[0]
    }
  return {
    "work": vars(args),
    "ms_per_step_by_steps_per_sync": found,
    "load_before": load_before,
  }
