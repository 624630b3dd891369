"""Updates on groups whose attempts share tokens: as a tree, and each by itself.

`answers` is one prompt of 128 tokens with 8 answers of 128, random, on W-tiny.
The other rows are groups of 8 attempts that experts with mistakes play in the
environments, in Qwen's tokenizer and template with AgentBench's own prompts, on
W-tiny with 2 of its layers; token ids are folded into its vocabulary. There are
as many groups as make 16,384 tokens, so that the optimizer, whose time does not
depend on tokens, is a small part. OS tasks are left out where neither its
sandbox nor Docker is at hand.

Both sides pack all groups in one full row, so that nothing but the tree
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

from agentrl_jax.controller.episode import EpisodeWaits
from agentrl_jax.controller.player import ExpertPlayer
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import (
  EpisodeLimits,
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
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.train_batch import BatchConfig
from bench import timing, tiny
from bench.line_peer import Pythons
from bench.qwen_chat import load_qwen
from configs import environments

PROMPT, ANSWER, ATTEMPTS = 128, 128, 8
MISTAKE = 0.15  # probability of each mistake that an expert knows
FEW_LAYERS = dataclasses.replace(tiny.MODEL, num_layers=2)
BLOCK = 64  # tokens; rows are multiples of it
MIN_TOKENS = 16_384  # of the attempts of an update
LIMITS = EpisodeLimits(max_turns=20, max_tokens=8192, max_answer_tokens=1024)


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons
  load_before = timing.load()
  rows = {"answers": _measure(tiny.MODEL, [_answers()], pairs, load_before)}
  codec = load_qwen()
  for name in environments.NAMES:
    try:
      groups = asyncio.run(_play(name, codec))
    except AgentRLError as error:
      sys.stderr.write(f"{name} is left out: {error}\n")
      continue
    rows[name] = _measure(FEW_LAYERS, groups, pairs, load_before)
  return rows


def _measure(model, groups: Sequence[Group], pairs: int, load_before: float):
  updates = {
    "each": _Updates(model, groups, is_tree=False),
    "tree": _Updates(model, groups, is_tree=True),
  }
  timing.in_turn(updates, 1)
  times = timing.in_turn(updates, pairs)
  trajectories = [t for group in groups for t in group.trajectories]
  num_tokens = sum(t.num_tokens for t in trajectories)
  num_nodes = _num_nodes(trajectories)
  computed = updates["tree"].num_computed
  if computed != num_nodes:
    raise AssertionError(f"{computed} tokens computed of {num_nodes} nodes")
  each, tree = (updates[name].report for name in ("each", "tree"))
  for name in ("loss", "gradient_norm"):
    np.testing.assert_allclose(tree[name], each[name], rtol=1e-4, err_msg=name)
  ratio = timing.ratio(times["tree"], times["each"])
  share = num_nodes / num_tokens
  return {
    "work": {
      "model": tiny.work_of(model),
      "groups": len(groups),
      "tokens": num_tokens,
    },
    "computed": computed,
    "share": share,
    "time_of_tree_to_each": ratio,
    "time_to_share": ratio["median"] / share,
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


class _Updates:
  """Makes updates on groups, in one row."""

  def __init__(self, model, groups: Sequence[Group], *, is_tree: bool):
    trajectories = [t for group in groups for t in group.trajectories]
    num_tokens = sum(t.num_tokens for t in trajectories)
    num_computed = _num_nodes(trajectories) if is_tree else num_tokens
    row_length = -(-num_computed // BLOCK) * BLOCK
    loss = tiny.loss_config(token_chunk=tiny.TILES["token_chunk"])
    policy, self._learner = tiny.make_learner(model, loss=loss)
    self._groups = groups
    self._builder = BatchBuilder(
      policy,
      loss=loss,
      advantage=AdvantageConfig(task_center=False, task_scale=False),
      batch=BatchConfig(
        row_length=row_length,
        micro_batch=1,
        sharing=-(-num_tokens // row_length),
        roles=(),
      ),
      task_ids={groups[0].task.name: 0},
      temperature=1.0,
    )
    self._state = self._learner.init(policy.init(jax.random.key(0)))
    self.num_computed, self.report = 0, {}

  def __call__(self) -> timing.Times:
    return timing.times_of(self._update)

  def _update(self) -> None:
    micro_batches, _ = self._builder.build(self._groups, self._state.params)
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
      make_attempt(
        task, n, [(prompt, rng.integers(0, tiny.MODEL.vocab_size, ANSWER))], rng
      )
      for n in range(ATTEMPTS)
    ),
  )


def make_attempt(task: Task, number: int, turns, rng) -> Trajectory:
  """Makes a finished trajectory of (observation, sampled), random reward."""
  return Trajectory(
    task=task,
    group_id=str(task.index),
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


async def _play(name: str, codec: ChatCodec) -> list[Group]:
  """Plays attempts at tasks, with random rewards and folded tokens."""
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
    waits=EpisodeWaits(),
  )
  rng, groups, num_tokens = np.random.default_rng(0), [], 0
  try:
    while num_tokens < MIN_TOKENS:
      group = await _play_group(player, Task(name, "train", len(groups)), rng)
      groups.append(group)
      num_tokens += sum(t.num_tokens for t in group.trajectories)
  finally:
    await environment.close()
  return groups


async def _play_group(player: ExpertPlayer, task: Task, rng) -> Group:
  size, number, attempts = tiny.MODEL.vocab_size, str(task.index), []
  for n in range(ATTEMPTS):
    played = await player.play(
      EpisodeSpec(task=task, group_id=number, attempt=n, seed=n)
    )
    turns = [(t.observation % size, t.sampled % size) for t in played.turns]
    attempts.append(make_attempt(task, n, turns, rng))
  return Group(number, task, tuple(attempts))
