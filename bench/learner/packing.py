"""Packed rows against one trajectory per row: the same trajectories and code.

Lengths are lognormal with sigma 1. The fill of rows is counted for a batch of
256 trajectories of 1024 tokens in the mean and 8192 at most, in rows of 8192.
Time is measured at an eighth of these lengths, on W-tiny with 2 of its layers:
an update on packed rows, and an update on rows with one trajectory each. The
latter come in micro-batches in order of arrival; a micro-batch is as wide as
its longest trajectory, rounded up to a power of two so that few shapes are
compiled.
"""

import dataclasses
import statistics

import jax
import numpy as np

from agentrl_jax.data.packing import Rows, assign_rows, pack
from agentrl_jax.data.records import Status, Task, Trajectory, Turn
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.train.train_batch import cut, whole_batch
from bench import timing, tiny
from bench.line_peer import Pythons

SIGMA, MEAN, CAP, NUMBER = 1.0, 1024, 8192, 256
SCALE, TIMED, PACKED_ROWS, PADDED_ROWS = 8, 64, 4, 8
MODEL = dataclasses.replace(tiny.MODEL, num_layers=2)
COMPUTE = ComputeConfig(attention_block=128)


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons
  load_before = timing.load()
  lengths = make_lengths(NUMBER, MEAN, CAP)
  trajectories = _trajectories(make_lengths(TIMED, MEAN // SCALE, CAP // SCALE))
  batches = {"packed": _packed(trajectories), "padded": _padded(trajectories)}
  policy, learner = tiny.make_learner(
    MODEL, COMPUTE, tiny.loss_config(token_chunk=128)
  )
  params = policy.init(jax.random.key(0))
  turns = {
    name: _updates(learner, params, micro_batches)
    for name, micro_batches in batches.items()
  }
  timing.in_turn(turns, 1)
  times = timing.in_turn(turns, pairs)
  useful = sum(t.num_tokens for t in trajectories)
  return {
    "work": {
      "model": tiny.work_of(MODEL),
      "trajectories": TIMED,
      "tokens": useful,
      "fill": {
        name: _fill(micro_batches) for name, micro_batches in batches.items()
      },
    },
    "fill_at_full_length": _fills(lengths),
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "useful_tokens_per_second": {
      name: useful / statistics.median(t.wall for t in found)
      for name, found in times.items()
    },
    "times_faster_than_padded": timing.ratio(times["padded"], times["packed"]),
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


def make_lengths(number: int, mean: int, cap: int, seed: int = 0) -> list[int]:
  """Draws lognormal lengths in tokens; the mean is before truncation."""
  drawn = np.random.default_rng(seed).lognormal(
    np.log(mean) - SIGMA**2 / 2, SIGMA, number
  )
  return [int(n) for n in np.clip(drawn, 8, cap)]


def _fills(lengths: list[int]) -> dict[str, float]:
  """Shares of real tokens; `longest` pads to the longest of 8 arrivals."""
  total = sum(lengths)
  of_eight = np.reshape(lengths, (-1, PADDED_ROWS)).max(axis=1) * PADDED_ROWS
  return {
    "packed": total / (len(assign_rows(lengths, CAP)) * CAP),
    "longest": total / int(of_eight.sum()),
    "cap": total / (len(lengths) * CAP),
  }


def _trajectories(lengths: list[int]) -> list[Trajectory]:
  rng = np.random.default_rng(1)
  return [_trajectory(rng, n, length) for n, length in enumerate(lengths)]


def _trajectory(rng, number: int, length: int) -> Trajectory:
  observed = length // 4
  token = rng.integers(0, MODEL.vocab_size, length).astype(np.int32)
  logprob = np.full(length - observed, -10, np.float32)
  turn = Turn(
    observation=token[:observed],
    sampled=token[observed:],
    behavior_logprob=logprob,
    raw_logprob=logprob,
    version=np.zeros(length - observed, np.int32),
  )
  return Trajectory(
    task=Task("random", "train", number),
    group_id="",
    attempt=number,
    seed=number,
    turns=(turn,),
    status=Status.COMPLETED,
    reward=float(rng.random()),
  )


def _packed(trajectories):
  rows = pack(trajectories, row_length=CAP // SCALE, rows_multiple=PACKED_ROWS)
  return _micro_batches(rows, trajectories, PACKED_ROWS)


def _padded(trajectories):
  micro_batches = []
  for start in range(0, len(trajectories), PADDED_ROWS):
    part = trajectories[start : start + PADDED_ROWS]
    longest = max(t.num_tokens for t in part)
    alone = [
      pack([t], row_length=1 << (longest - 1).bit_length()) for t in part
    ]
    arrays = [row.arrays() for row in alone]
    rows = Rows(
      **{name: np.concatenate([a[name] for a in arrays]) for name in arrays[0]}
    )
    micro_batches += _micro_batches(rows, part, PADDED_ROWS, apart=True)
  return micro_batches


def _micro_batches(rows, trajectories, micro_batch, *, apart=False):
  reward = np.array([t.reward for t in trajectories], np.float32)
  of_row = np.arange(len(rows.token))[:, None]
  worth_RT = reward[of_row if apart else rows.trajectory] - 0.5
  worth_RT = np.where(rows.mask, worth_RT, 0)
  return cut(whole_batch(rows, worth_RT), micro_batch)


def _fill(micro_batches) -> float:
  real = sum(int((each.batch.segment > 0).sum()) for each in micro_batches)
  return real / sum(each.batch.segment.size for each in micro_batches)


def _updates(learner, params, micro_batches):
  state = learner.init(params)

  def update() -> timing.Times:
    nonlocal state

    def once():
      nonlocal state
      state, report = learner.update(state, micro_batches)
      return report

    return timing.times_of(once)

  return update
