"""A complete RL step: 8 answers to one prompt, and one update.

W-tiny, 128 tokens of prompt and 128 of answer without an end token, temperature
1, no reference policy. Our step is that of a run: the engine answers 8
requests, rewards become advantages and training batches, the learner updates,
and the new params are published to the engine. Tunix and TRL start from the
same params in a Hugging Face folder. Each does the step of its own trainer. The
reward is the same: the share of even tokens.
"""

import functools
import pathlib
import tempfile
from collections.abc import Callable

import jax
import numpy as np

from agentrl_jax.data.records import Group, Status, Task, Trajectory, Turn
from agentrl_jax.rollout.api import EngineConfig, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.batch_builder import BatchBuilder
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.train_batch import BatchConfig
from agentrl_jax.train.weights.publish import Publisher
from bench import timing, tiny
from bench.line_peer import LinePeer, Pythons, peak_gib

ATTEMPTS, PROMPT, ANSWER = 8, 128, 128
TASK = Task("even", "train", 0)
PEERS = {  # environment and script
  "tunix": ("tunix", "tunix_rl_step.py"),
  "trl": ("torch", "trl_rl_step.py"),
}


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  policy, learner = tiny.make_learner()
  params = policy.init(jax.random.key(0))
  rng = np.random.default_rng(0)
  prompt = rng.integers(0, tiny.MODEL.vocab_size, PROMPT).astype(np.int32)
  return compared(
    Steps(policy, learner, params, prompt, tiny.loss_config()),
    pairs,
    pythons,
    lambda folder: tiny.write_model(folder, params),
  ) | {"model": tiny.work_of(tiny.MODEL)}


def compared(
  ours: "Steps",
  pairs: int,
  pythons: Pythons,
  write_model: Callable[[pathlib.Path], object],
) -> dict[str, object]:
  """Takes turns with the peers, which read the model that is written."""
  load_before = timing.load()
  times: dict[str, list[timing.Times]] = {"ours": []}
  ratios, peak, versions = {}, {}, {}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    write_model(folder / "model")
    np.save(folder / "prompt.npy", ours.prompt)
    for peer, (where, script) in PEERS.items():
      if not pythons[where].exists():
        continue
      # One peer at a time: with a published model Tunix needs 14 GiB.
      other = LinePeer(pythons[where], script, folder)
      turns = {"ours": ours, peer: functools.partial(other.ask, "step")}
      timing.in_turn(turns, 2)  # some compile in their second step
      if not ratios:
        ours.parts.clear()
      found = timing.in_turn(turns, pairs)
      ratios[peer] = timing.ratio(found[peer], found["ours"])
      times["ours"] += found["ours"]
      times[peer] = found[peer]
      peak[peer], versions[peer] = other.peak_gib(), other.version
      other.close()
  milliseconds = {side: timing.milliseconds(t) for side, t in times.items()}
  return {
    "work": {
      "attempts": ATTEMPTS,
      "prompt": len(ours.prompt),
      "answer": ANSWER,
    },
    "peers": versions,
    "milliseconds": milliseconds,
    "milliseconds_of_ours": {
      part: timing.milliseconds(found) for part, found in ours.parts.items()
    },
    "times_faster_than": ratios,
    "times_less_cpu_than": {
      peer: milliseconds[peer]["cpu"] / milliseconds["ours"]["cpu"]
      for peer in ratios
    },
    "peak_gib": {"ours": peak_gib()} | peak,
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


class Steps:
  """Takes our steps one after another."""

  def __init__(self, policy, learner, params, prompt, loss):
    self._learner, self.prompt = learner, prompt
    store = ServedWeights(1)
    config = EngineConfig(
      slots=(ATTEMPTS,),
      context=len(prompt) + ANSWER,
      prefill_chunks=(len(prompt),),
      steps_per_sync=16,
    )
    self._driver = LocalDriver(RolloutEngine(policy, config, store))
    self._publisher = Publisher(policy, store)
    self._batch_builder = BatchBuilder(
      policy,
      loss=loss,
      advantage=AdvantageConfig(task_center=False, task_scale=False),
      # One row, in which the prompt is computed once.
      batch=BatchConfig(
        row_length=len(prompt) + ATTEMPTS * ANSWER,
        micro_batch=1,
        sharing=ATTEMPTS,
        roles=(),
      ),
      task_ids={TASK.name: 0},
      temperature=1.0,
    )
    self._state = self._learner.init(params)
    self._publisher.publish(self._state.params, 0)
    self._number = 0
    self.parts: dict[str, list[timing.Times]] = {}

  def __call__(self) -> timing.Times:
    return timing.times_of(self._step)

  def _step(self) -> None:
    self._number += 1
    group = self._timed("sample", self._sample)
    micro_batches, _ = self._timed(
      "prepare", self._batch_builder.build, [group], self._state.params
    )
    if not micro_batches:
      raise RuntimeError("eight equal rewards: nothing to learn from")
    self._state, _ = self._timed(
      "update", self._learner.update, self._state, micro_batches
    )
    self._timed(
      "publish", self._publisher.publish, self._state.params, self._number
    )

  def _timed(self, part, function, *arguments):
    result = None

    def call() -> None:
      nonlocal result
      result = function(*arguments)

    self.parts.setdefault(part, []).append(timing.times_of(call))
    return result

  def _sample(self) -> Group:
    asked = [
      self._driver.submit(
        self.prompt,
        SamplingParams(max_tokens=ANSWER, seed=1000 * self._number + n),
      )
      for n in range(ATTEMPTS)
    ]
    self._driver.run_until_idle()
    answers = [each.result() for each in asked]
    if any(len(answer.sampled) != ANSWER for answer in answers):
      raise RuntimeError(f"an answer of fewer than {ANSWER} tokens")
    return Group(
      id=str(self._number),
      task=TASK,
      trajectories=tuple(
        self._trajectory(n, answer) for n, answer in enumerate(answers)
      ),
    )

  def _trajectory(self, attempt: int, answer) -> Trajectory:
    turn = Turn(
      observation=self.prompt,
      sampled=answer.sampled,
      behavior_logprob=answer.behavior_logprob,
      raw_logprob=answer.raw_logprob,
      version=answer.version,
    )
    return Trajectory(
      task=TASK,
      group_id=str(self._number),
      attempt=attempt,
      seed=attempt,
      turns=(turn,),
      status=Status.COMPLETED,
      reward=float(np.mean(answer.sampled % 2 == 0)),
    )
