"""Share of waiting of real runs, against its prediction from their rates.

  python -m bench.system             # three settings
  python -m bench.system rollouts    # one of them

Trains a small policy on sums in three settings: the learner limits, the
rollouts limit, the environment's latency limits. The rates of busy time of each
run (`launch.planning.system.measured`) go into the model of `launch.plan
--system`, and the share of time that the learner waited comes out or does not.

Rates and waiting are of the same run: both sides share the processors, so a
side is slower while the other one works. What is checked is therefore the model
of the pipeline (admission, batches, groups that end with their slowest attempt,
Little's law), not the bounds of compiled programs, nor rates on other chips.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import AsyncIterator

import jax
import ml_collections

from agentrl_jax.data.records import Message, Task
from agentrl_jax.env.interface import Session, Step
from configs import base, environments
from environments.arithmetic.environment import Arithmetic
from launch.config.settings import Settings, read_settings
from launch.planning.system.measured import Measured, read_measured
from launch.planning.system.prediction import predict
from launch.run.training import train

TASK = "sums"
SETTINGS = {
  # With an entropy term every episode is computed, whatever its advantage; and
  # each alone, as often as another policy's log-probabilities are.
  "learner": {
    "train.micro_batch": 1,
    "train.sharing": 1,
    "train.row_length": 320,
    "loss.proximal": "recomputed",
    "loss.entropy_coefficient": 1e-6,
    "episode.max_answer_tokens": 8,
  },
  "rollouts": {"engine.slots": (8,)},
  "latency": {f"environments.{TASK}.options.latency_s": 2.0},
}


class SlowArithmetic(Arithmetic):
  """Sums whose replies take a while, as those of a container do."""

  def __init__(self, *, latency_s: float = 0.0, **options: int):
    super().__init__(**options)
    self._latency_s = latency_s

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session that waits before every reply."""
    async with super().open(task, seed=seed) as session:
      yield _SlowSession(session, self._latency_s)


class _SlowSession(Session):
  def __init__(self, session: Session, latency_s: float):
    self.tools = session.tools
    self._session, self._latency_s = session, latency_s

  async def reset(self) -> Step:
    return await self._session.reset()

  async def step(self, answer: Message) -> Step:
    await asyncio.sleep(self._latency_s)
    return await self._session.step(answer)


def make_config(
  name: str, steps: int, workdir: str
) -> ml_collections.ConfigDict:
  """Returns the config of a setting."""
  c = base.get_config()
  c.name, c.workdir = name, workdir
  c.compile_cache = str(pathlib.Path(workdir).absolute() / "compiled")
  with c.unlocked():
    c.tasks.weights[TASK] = 1.0
    c.environments[TASK] = environments.entry(
      "bench.system.__main__:SlowArithmetic",
      options={"latency_s": 0.0},
      mistakes={"wrong_sum": 0.3},
    )
  c.tasks.names = (TASK,)
  c.tokenizer.update(vocab_size=400, num_texts=40)
  c.model.update(width=64, num_layers=2, num_heads=4, head_dim=16)
  c.warm_start.num_demonstrations = 16
  c.train.update(steps=steps, row_length=640, micro_batch=8)
  # With an entropy term every episode is computed, whatever its reward.
  c.loss.update(kl_coefficient=0.0, entropy_coefficient=1e-6, token_chunk=64)
  c.optimizer.learning_rate = 1e-5  # episodes stay as they are
  c.episode.update(max_turns=4, max_tokens=320, max_answer_tokens=16)
  c.group.size = 4
  c.admission.update(
    groups_per_step=8, max_staleness=1, max_concurrent_groups=8
  )
  c.queue.max_groups = 16
  c.cross_policy.update(policy_slots=("fresh",), weights=(1.0,))
  c.engine.update(
    slots=(32,),
    context=320,
    num_slot_sizes=1,
    prefill_chunks=(16, 64),
    steps_per_sync=2,
  )
  c.checkpoint.every = steps
  c.evaluation.update(
    num_tasks=2, num_sampled=2, num_untrained=2, scripted=False
  )
  c.update_from_flattened_dict(SETTINGS[name])
  return c


def show(name: str, settings: Settings, found: Measured) -> None:
  """Prints measured and predicted values as one JSON object."""
  system = predict(settings, found.workload, found.learner, found.rollouts)
  values = {
    "setting": name,
    "limit": system.limit,
    "steps": found.num_steps,
    "learner_waits": _pair(found.learner_waits, system.learner_waits),
    "step_s": _pair(found.step_s, system.step_s),
    "staleness": _pair(found.staleness_mean, system.staleness_mean),
    "rates": {
      "learner_s": found.learner.step_s,
      "answer_s": found.rollouts.answer_s,
      "environment_s": found.rollouts.environment_s,
      "spread": found.workload.spread,
    },
    "load": os.getloadavg()[0],
  }
  sys.stdout.write(json.dumps(values, indent=2) + "\n")
  sys.stdout.flush()


def _pair(measured: float, predicted: float) -> dict[str, float]:
  return {"measured": round(measured, 3), "predicted": round(predicted, 3)}


def measure(name: str, steps: int, workdir: str) -> tuple[Settings, Measured]:
  """Trains in one setting and reads the run's rates."""
  config = make_config(name, steps, workdir)
  train(config)
  settings = read_settings(config)
  return settings, read_measured(pathlib.Path(workdir) / name, settings)


def main() -> None:
  """Prints a line for each setting as soon as it has run."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("settings", nargs="*", choices=[[], *SETTINGS])
  parser.add_argument("--steps", type=int, default=40)
  parser.add_argument("--workdir", help="keeps the runs, for launch.plan")
  options = parser.parse_args()
  jax.config.update("jax_platforms", "cpu")
  with tempfile.TemporaryDirectory() as temporary:
    for name in options.settings or SETTINGS:
      workdir = options.workdir or temporary
      settings, found = measure(name, options.steps, workdir)
      show(name, settings, found)


if __name__ == "__main__":
  main()
