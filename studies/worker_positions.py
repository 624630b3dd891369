r"""The negative control of MATPO: advantages that are copied by position.

  python -m studies.worker_positions sweeps/matpo

MATPO (arXiv:2510.04678) has one advantage for a planner and its workers. Its
public code (verl/protocol.py at 3c41d62) copies the planner's row of
advantages, which is 0 wherever the planner sampled no token, to the row of each
worker. So a token of a worker is trained only where the planner has a trained
token at the same place of its own row, counted from the first answer; all
others count in the mean with an advantage of 0.

`as_matpo_copies_advantages` is this rule as a weight of tokens, for
`loss.token_weight`. The command prints, for every run of a sweep, the share of
the workers' tokens that the rule trains, over the episodes that the run kept,
and the share of these whose context was full.
"""

import argparse
import collections
import csv
import dataclasses
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.data.packing import pack
from agentrl_jax.data.record_file import read_groups
from agentrl_jax.data.records import Status, Trajectory


def as_matpo_copies_advantages(
  mask_BT: jax.Array,
  segment_BT: jax.Array,
  turn_BT: jax.Array,
  trajectory_BT: jax.Array,
  num_segments: int,
) -> jax.Array:
  """Returns 1 for tokens that MATPO's copied advantages train, 0 for others.

  The planner's line is the one with the trajectory's first answer; all its
  tokens have 1. Places are counted from a line's first sampled token, as in
  MATPO's rows, whose prompts stand in a tensor of their own.

  Args:
    mask_BT: bool, the sampled tokens.
    segment_BT: of the row, from 1; a segment is a line.
    turn_BT: number of the turn within the trajectory.
    trajectory_BT: number within the whole batch.
    num_segments: of a row, at most.

  Returns:
    float32 [B, T]; entries off the mask mean nothing.
  """
  num_rows, length = mask_BT.shape
  first_BT = _first_sampled(mask_BT, segment_BT)
  is_planner_BT = jnp.take_along_axis(turn_BT, first_BT, axis=1) == 0
  place_BT = jnp.arange(length) - first_BT
  key_BT = trajectory_BT * length + place_BT
  size = num_rows * num_segments * length  # a trajectory has a segment
  planned = jnp.zeros(size, bool)
  at_planner_BT = jnp.where(mask_BT & is_planner_BT, key_BT, size)
  planned = planned.at[at_planner_BT].set(True, mode="drop")
  return planned[key_BT].astype(jnp.float32)


def _first_sampled(mask_BT: jax.Array, segment_BT: jax.Array) -> jax.Array:
  """Returns, at each sampled token, the index of its line's first one."""
  length = mask_BT.shape[1]
  before_BT = jnp.pad(segment_BT, ((0, 0), (1, 0)))[:, :length]
  begins_BT = segment_BT != before_BT
  count_BT = jnp.cumsum(mask_BT, axis=1)
  earlier_BT = jax.lax.cummax(
    jnp.where(begins_BT, count_BT - mask_BT, 0), axis=1
  )
  is_first_BT = mask_BT & (count_BT - earlier_BT == 1)
  index_BT = jnp.where(is_first_BT, jnp.arange(length), 0)
  return jax.lax.cummax(index_BT, axis=1)


@dataclasses.dataclass
class Tally:
  """Sums over the kept episodes of one task of a run."""

  episodes: int = 0
  context_full: int = 0  # episodes
  lines: int = 0
  worker_tokens: int = 0
  trained_by_position: int = 0  # of them


def tally(trajectories: Sequence[Trajectory]) -> Tally:
  """Counts the workers' tokens, and those that MATPO's rule trains."""
  found = Tally(
    episodes=len(trajectories),
    context_full=sum(
      t.status is Status.AGENT_CONTEXT_LIMIT for t in trajectories
    ),
    lines=sum(len(t.lines) for t in trajectories),
  )
  lengths = [line.num_tokens for t in trajectories for line in t.lines]
  rows = pack(trajectories, row_length=max(lengths, default=2))
  weigh = jax.jit(as_matpo_copies_advantages, static_argnames="num_segments")
  weight_RT = weigh(
    rows.mask,
    rows.segment,
    rows.turn,
    rows.trajectory,
    num_segments=int(rows.segment.max(initial=1)),
  )
  sampled = sum(t.num_sampled for t in trajectories)
  by_planner = sum(
    sum(len(turn.sampled) for turn in line.turns)
    for t in trajectories
    for line in t.lines
    if 0 in line.numbers
  )
  found.worker_tokens = sampled - by_planner
  trained = int(np.asarray(weight_RT)[rows.mask].sum())
  found.trained_by_position = trained - by_planner
  return found


def tallies(run: pathlib.Path) -> dict[str, Tally]:
  """Returns the tally of each task, over the training episodes of a run."""
  played = collections.defaultdict(list)
  for path in sorted((run / "trajectories").glob("[0-9]*.jsonl.gz")):
    for group in read_groups(path):
      played[group.task.name] += group.trajectories
  return {task: tally(found) for task, found in sorted(played.items())}


def runs_of(sweep: pathlib.Path) -> list[pathlib.Path]:
  """Returns the folders of a sweep's runs that kept episodes."""
  return sorted(path.parent for path in sweep.rglob("trajectories"))


def write_table(runs: Iterable[pathlib.Path], file: TextIO) -> None:
  """Writes a line for each run and task, as CSV."""
  names = [field.name for field in dataclasses.fields(Tally)]
  writer = csv.writer(file)
  writer.writerow(["run", "task", *names, "share"])
  for run in runs:
    for task, found in tallies(run).items():
      share = found.trained_by_position / max(found.worker_tokens, 1)
      values = dataclasses.astuple(found)
      writer.writerow([run.name, task, *values, f"{share:.3f}"])


def main(arguments: Sequence[str] | None = None) -> None:
  """Parses the command line and prints the table."""
  parser = argparse.ArgumentParser(prog="python -m studies.worker_positions")
  parser.add_argument("sweep", type=pathlib.Path)
  given = parser.parse_args(arguments)
  runs = runs_of(given.sweep)
  if not runs:
    parser.error(
      f"{given.sweep} has no run with trajectories; name the folder of a sweep"
    )
  write_table(runs, sys.stdout)


if __name__ == "__main__":
  main()
