"""Cost of a checkpoint of W-tiny: its state, params and two moments, 372 MiB.

`stall` is the time that `Checkpoints.save` blocks the learner, `durable` the
time until the step is committed to disk. The limit is a copy of the same bytes
into allocated memory; a copy into fresh memory, for which the system must find
pages, is reported beside it. `jitter` is an update that starts while the
checkpoint is being written, against one without a checkpoint.
"""

import tempfile
import time

import jax
import numpy as np

from agentrl_jax.train.weights.checkpoint import Checkpoints
from bench import timing, tiny
from bench.line_peer import Pythons

MIB = 2**20


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons
  load_before = timing.load()
  policy, learner = tiny.make_learner()
  micro_batch = tiny.make_micro_batch(8, 256)
  state = learner.init(policy.init(jax.random.key(0)))
  state, _ = learner.update(state, [micro_batch])
  leaves = [np.array(leaf) for leaf in jax.tree.leaves(state)]
  there = [np.array(leaf) for leaf in leaves]
  found = {name: [] for name in ("copy", "fresh", "stall", "durable")}
  updates = {"alone": [], "beside": []}
  with tempfile.TemporaryDirectory() as folder:
    checkpoints = Checkpoints(folder, keep=2)
    for turn in range(pairs + 1):  # the first one warms up

      def step():
        nonlocal state
        state, _ = learner.update(state, [micro_batch])

      found["copy"].append(timing.times_of(_copy, leaves, there))
      found["fresh"].append(timing.times_of(_fresh, leaves))
      updates["alone"].append(timing.times_of(step))
      wall, cpu = time.perf_counter(), time.process_time()
      checkpoints.save(state, {})
      found["stall"].append(
        timing.Times(time.perf_counter() - wall, time.process_time() - cpu)
      )
      if turn % 2:
        updates["beside"].append(timing.times_of(step))
        checkpoints.wait()
      else:
        checkpoints.wait()
        found["durable"].append(
          timing.Times(time.perf_counter() - wall, time.process_time() - cpu)
        )
    checkpoints.close()
  size = sum(leaf.nbytes for leaf in leaves)
  found = {n: t[1:] if n != "durable" else t[1:] or t for n, t in found.items()}
  return {
    "work": {"model": tiny.work_of(tiny.MODEL), "state_mib": size / MIB},
    "milliseconds": {
      n: timing.milliseconds(t) for n, t in (found | updates).items() if t
    },
    "stall_of_a_copy": timing.ratio(found["stall"], found["copy"]),
    "stall_of_a_fresh_copy": timing.ratio(found["stall"], found["fresh"]),
    "update_of_one_alone": timing.ratio(
      updates["beside"], updates["alone"][1::2]
    ),
    "load_before": load_before,
    "contended": load_before > timing.MAX_LOAD_BEFORE,
  }


def _copy(leaves, there) -> None:
  for source, target in zip(leaves, there, strict=True):
    np.copyto(target, source)


def _fresh(leaves) -> None:
  for leaf in leaves:
    np.array(leaf)
