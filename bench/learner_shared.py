"""Updates on groups whose attempts share tokens: as a tree, and each by itself.

`answers` is one prompt of 128 tokens with 8 answers of 128, random, on W-tiny.
The other rows are groups of 8 attempts that experts with mistakes play in the
environments, in Qwen's tokenizer and template with AgentBench's own prompts, on
W-tiny with 2 of its layers; token ids are folded into its vocabulary. OS tasks
are left out where neither its sandbox nor Docker is at hand.

Both sides pack a whole group in one full row, so that nothing but the tree
differs. `share` is the number of nodes of the prefix tree, counted as a set of
beginnings, by the number of tokens; the computed tokens must be the nodes.
"""

import asyncio
import dataclasses
import os
import sys
from collections.abc import Sequence

import jax
import numpy as np

from agentrl_jax.controller.episode import EpisodeLimits, EpisodeWaits
from agentrl_jax.controller.player import ExpertPlayer
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import (
  EpisodeSpec,
  Group,
  Status,
  Task,
  Trajectory,
  Turn,
)
from agentrl_jax.env.loading import load_environment
from agentrl_jax.errors import AgentRLError
from agentrl_jax.train.batch_builder import BatchBuilder
from agentrl_jax.train.config import AdvantageConfig
from agentrl_jax.train.train_batch import BatchConfig
from bench import timing, tiny
from bench.line_peer import Pythons
from bench.qwen_chat import load_qwen
from configs import environments
from configs.base import defaults

PROMPT, ANSWER, ATTEMPTS = 128, 128, 8
MISTAKE = 0.15  # probability of each mistake that an expert knows
FEW_LAYERS = dataclasses.replace(tiny.MODEL, num_layers=2)
BLOCK = 64  # tokens; rows are multiples of it
LIMITS = EpisodeLimits(max_turns=20, max_tokens=8192, max_answer_tokens=1024)


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons
  load_before = os.getloadavg()[0]
  rows = {"answers": _measure(tiny.MODEL, _answers(), pairs, load_before)}
  codec = load_qwen()
  for name in environments.NAMES:
    try:
      group = asyncio.run(_play(name, codec))
    except AgentRLError as error:
      sys.stderr.write(f"{name} is left out: {error}\n")
      continue
    rows[name] = _measure(FEW_LAYERS, group, pairs, load_before)
  return rows


def _measure(model, group: Group, pairs: int, load_before: float):
  updates = {
    "each": _Updates(model, group, sharing=1),
    "tree": _Updates(model, group, sharing=ATTEMPTS),
  }
  timing.in_turn(updates, 1)
  times = timing.in_turn(updates, pairs)
  num_tokens = sum(t.num_tokens for t in group.trajectories)
  num_nodes = _num_nodes(group.trajectories)
  computed = updates["tree"].num_computed
  if computed != num_nodes:
    raise AssertionError(f"{computed} tokens computed of {num_nodes} nodes")
  each, tree = (updates[name].report for name in ("each", "tree"))
  for name in ("loss", "gradient_norm"):
    np.testing.assert_allclose(tree[name], each[name], rtol=1e-4, err_msg=name)
  ratio = timing.ratio(times["tree"], times["each"])
  share = num_nodes / num_tokens
  return {
    "work": {"model": tiny.work_of(model), "tokens": num_tokens},
    "computed": computed,
    "share": share,
    "time_of_tree_to_each": ratio,
    "time_to_share": ratio["median"] / share,
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


class _Updates:
  """Makes updates on a group, in one row."""

  def __init__(self, model, group: Group, *, sharing: int):
    trajectories = group.trajectories
    num_tokens = (
      _num_nodes(trajectories)
      if sharing > 1
      else sum(t.num_tokens for t in trajectories)
    )
    loss = tiny.loss_config(token_chunk=tiny.TILES["token_chunk"])
    policy, self._learner = tiny.make_learner(model, loss=loss)
    self._group = group
    self._builder = BatchBuilder(
      policy,
      loss=loss,
      advantage=defaults(
        AdvantageConfig, "advantage", task_center=False, task_scale=False
      ),
      batch=BatchConfig(
        row_length=-(-num_tokens // BLOCK) * BLOCK,
        micro_batch=1,
        sharing=sharing,
      ),
      task_ids={group.task.name: 0},
      temperature=1.0,
    )
    self._state = self._learner.init(policy.init(jax.random.key(0)))
    self.num_computed, self.report = 0, {}

  def __call__(self) -> timing.Times:
    return timing.times_of(self._update)

  def _update(self) -> None:
    micro_batches, _ = self._builder.build([self._group], self._state.params)
    (micro_batch,) = micro_batches
    if micro_batch.batch.tree is not None:
      self.num_computed = int(
        (np.asarray(micro_batch.batch.tree.end) > 0).sum()
      )
    self._state, self.report = self._learner.update(self._state, micro_batches)


def _num_nodes(trajectories: Sequence[Trajectory]) -> int:
  """Counts different beginnings, token by token."""
  beginnings = set()
  for trajectory in trajectories:
    state = 0
    for turn in trajectory.turns:
      for token in (*turn.observation.tolist(), *turn.sampled.tolist()):
        state = hash((state, token))
        beginnings.add(state)
  return len(beginnings)


def _answers() -> Group:
  rng = np.random.default_rng(0)
  task = Task("answers", "train", 0)
  prompt = rng.integers(0, tiny.MODEL.vocab_size, PROMPT).astype(np.int32)
  return Group(
    "0",
    task,
    tuple(
      _attempt(
        task,
        n,
        [(prompt, rng.integers(0, tiny.MODEL.vocab_size, ANSWER))],
        rng,
      )
      for n in range(ATTEMPTS)
    ),
  )


def _attempt(task: Task, number: int, turns, rng) -> Trajectory:
  return Trajectory(
    task=task,
    group_id="0",
    attempt=number,
    seed=number,
    turns=tuple(_turn(observation, sampled) for observation, sampled in turns),
    status=Status.COMPLETED,
    reward=float(rng.random()),
  )


def _turn(observation, sampled) -> Turn:
  # About what a fresh model says.
  logprob = np.full(len(sampled), -np.log(tiny.MODEL.vocab_size), np.float32)
  return Turn(
    observation=np.asarray(observation, np.int32),
    sampled=np.asarray(sampled, np.int32),
    behavior_logprob=logprob,
    raw_logprob=logprob,
    version=np.zeros(len(sampled), np.int32),
  )


async def _play(name: str, codec: ChatCodec) -> Group:
  """Plays attempts at a task, with random rewards and folded tokens."""
  settings = environments.get_config()[name]
  options = settings.options.to_dict()
  if name == "os_interaction" and "DOCKER_HOST" not in os.environ:
    options["engine"] = "sandbox"
  environment = load_environment(settings.target, options)
  player = ExpertPlayer(
    environments={name: environment},
    codec=codec,
    limits=LIMITS,
    mistakes={name: dict.fromkeys(settings.mistakes, MISTAKE)},
    waits=defaults(EpisodeWaits, "waits"),
  )
  task, rng = Task(name, "train", 0), np.random.default_rng(0)
  size = tiny.MODEL.vocab_size
  try:
    played = [
      await player.play(EpisodeSpec(task=task, group_id="0", attempt=n, seed=n))
      for n in range(ATTEMPTS)
    ]
  finally:
    await environment.close()
  return Group(
    "0",
    task,
    tuple(
      _attempt(
        task,
        n,
        [(t.observation % size, t.sampled % size) for t in trajectory.turns],
        rng,
      )
      for n, trajectory in enumerate(played)
    ),
  )
