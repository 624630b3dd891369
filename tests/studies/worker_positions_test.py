"""Tests of MATPO's copy of advantages by position."""

import dataclasses
import io
import pathlib
import tempfile

import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.data.packing import pack
from agentrl_jax.data.record_file import write_groups
from agentrl_jax.data.records import Group, Status
from studies import worker_positions
from studies.worker_positions import as_matpo_copies_advantages, tally
from tests.data.records import make_trajectory, make_turn
from tests.losses.compiled import compiled
from tests.train import small

NAME = "studies.worker_positions:as_matpo_copies_advantages"


def make_played(rng, *, shape, **fields):
  """An episode; `shape` lists lines as pairs (observed, sampled) of a turn.

  The planner's first answer comes first, then each worker's line in turn, then
  the rest of the planner's.
  """
  (first, *rest), *workers = shape
  order = [(0, first)]
  order += [(n, pair) for n, line in enumerate(workers, 1) for pair in line]
  order += [(0, pair) for pair in rest]
  turns = tuple(
    dataclasses.replace(make_turn(rng, observed=o, sampled=s), line=line)
    for line, (o, s) in order
  )
  roles = ("planner", *("worker" for _ in workers))
  return dataclasses.replace(
    make_trajectory(rng, **fields), turns=turns, roles=roles
  )


def random_shape(rng):
  return [
    [
      (int(rng.integers(1, 9)), int(rng.integers(1, 6)))
      for _ in range(rng.integers(1, 4))
    ]
    for _ in range(rng.integers(1, 5))
  ]


def reference(trajectory):
  """Marks the sampled tokens that MATPO's rows train, line by line."""

  def after_prompt(line):
    first, *rest = line.turns
    parts = [[True] * len(first.sampled)]
    for turn in rest:
      parts += [[False] * len(turn.observation), [True] * len(turn.sampled)]
    return [x for part in parts for x in part]

  planner = after_prompt(trajectory.lines[0])
  found = []
  for line in trajectory.lines:
    own = after_prompt(line)
    copied = [n < len(planner) and planner[n] for n in range(len(own))]
    found.append([c for c, is_own in zip(copied, own, strict=True) if is_own])
  return found


def weights(trajectories, **options):
  """The weight of each sampled token, as `reference` returns it."""
  rows = pack(trajectories, row_length=96, **options)
  arrays = (rows.mask, rows.segment, rows.turn, rows.trajectory)
  weight_RT = np.asarray(
    compiled(as_matpo_copies_advantages)(
      *arrays, num_segments=rows.mask.shape[1] // 2 + 1
    )
  )
  found = [[None] * len(t.lines) for t in trajectories]
  for r in range(len(rows.mask)):
    for segment in range(1, rows.segment[r].max() + 1):
      here = (rows.segment[r] == segment) & rows.mask[r]
      n = rows.trajectory[r][here][0]
      first = rows.turn[r][here][0]
      line = next(
        i for i, x in enumerate(trajectories[n].lines) if first in x.numbers
      )
      found[n][line] = (weight_RT[r][here] > 0).tolist()
  return found


class WeightTest(parameterized.TestCase):
  @parameterized.product(seed=(0, 1, 2, 3), multiple=(1, 8))
  def test_is_matpo_s_copy(self, seed, multiple):
    rng = np.random.default_rng(seed)
    played = [make_played(rng, shape=random_shape(rng)) for _ in range(12)]
    found = weights(played, rows_multiple=multiple)
    self.assertEqual(found, [reference(t) for t in played])
    flat = [x for t in found for line in t[1:] for x in line]
    self.assertIn(True, flat)
    self.assertIn(False, flat)

  @pytest.mark.slow
  def test_is_the_same_where_lines_share_tokens(self):
    rng = np.random.default_rng(5)
    played = [make_played(rng, shape=random_shape(rng)) for _ in range(12)]
    self.assertEqual(weights(played, sharing=4), weights(played))

  def test_prompts_of_other_lengths_change_nothing(self):
    """Places are counted from the first answer, not from the prompt."""
    rng = np.random.default_rng(7)
    shape = [[(3, 4), (2, 4)], [(9, 4), (5, 3)]]
    long_prompt = [[(3, 4), (2, 4)], [(20, 4), (5, 3)]]
    found = weights([make_played(rng, shape=x) for x in (shape, long_prompt)])
    self.assertEqual(found[0], found[1])
    self.assertEqual(found[0][1], [True] * 4 + [True, False, False])


class LossTest(parameterized.TestCase):
  """In the objective: what is not trained counts in the mean with 0."""

  def build(self, groups, micro_batch, **changes):
    builder = small.make_batch_builder(
      loss=small.loss_config(**changes),
      micro_batch=micro_batch,
      advantage=small.advantage_config(task_center=False, task_scale=False),
    )
    return builder.build(groups, params=None)

  @parameterized.parameters(1, 3)
  def test_the_mean_counts_tokens_that_are_not_trained(self, micro_batch):
    rng = np.random.default_rng(3)
    members = tuple(
      make_played(rng, shape=random_shape(rng), reward=float(n % 2))
      for n in range(6)
    )
    group = Group("g", members[0].task, members)
    batches, report = self.build([group], micro_batch, token_weight=NAME)
    mask = [np.asarray(x.batch.mask) for x in batches]
    weight = [np.asarray(x.token_weight) for x in batches]
    trained = sum(w[m].sum() for w, m in zip(weight, mask, strict=True))
    wanted = sum(sum(line) for t in members for line in reference(t))
    sampled = sum(t.num_sampled for t in members)
    self.assertEqual(trained, wanted)
    self.assertLess(wanted, sampled)
    self.assertEqual(report["batch/trained_tokens"], sampled)
    plain, plain_report = self.build([group], micro_batch)
    self.assertEqual(plain_report["batch/trained_tokens"], sampled)
    for x in plain:
      self.assertIsNone(x.token_weight)


class TallyTest(parameterized.TestCase):
  def test_counts_the_workers_tokens(self):
    rng = np.random.default_rng(4)
    played = [make_played(rng, shape=random_shape(rng)) for _ in range(9)]
    played.append(
      make_played(
        rng, shape=[[(2, 1)]], status=Status.AGENT_CONTEXT_LIMIT, reward=0.0
      )
    )
    found = tally(played)
    lines = [line for t in played for line in reference(t)[1:]]
    self.assertEqual(found.worker_tokens, sum(map(len, lines)))
    self.assertEqual(found.trained_by_position, sum(map(sum, lines)))
    self.assertEqual((found.episodes, found.context_full), (10, 1))
    self.assertEqual(found.lines, sum(len(t.lines) for t in played))

  def test_a_table_of_a_sweep(self):
    rng = np.random.default_rng(5)
    members = tuple(
      make_played(rng, shape=[[(2, 2)], [(2, 4)]], task="long")
      for _ in range(3)
    )
    folder = self.enter_folder()
    for name in ("matpo-s0", "single-s0"):
      path = folder / "cells" / name / "trajectories"
      path.mkdir(parents=True)
      write_groups(
        path / "000001.jsonl.gz", [Group("g", members[0].task, members)]
      )
    out = io.StringIO()
    worker_positions.write_table(worker_positions.runs_of(folder), out)
    head, *rows = out.getvalue().split()
    self.assertEqual(
      head,
      "run,task,episodes,context_full,lines,worker_tokens,"
      "trained_by_position,share",
    )
    self.assertEqual(
      rows,
      ["matpo-s0,long,3,0,6,12,6,0.500", "single-s0,long,3,0,6,12,6,0.500"],
    )

  def test_a_folder_without_runs_is_refused(self):
    with self.assertRaises(SystemExit):
      worker_positions.main([str(self.enter_folder())])

  def enter_folder(self):
    name = self.enterContext(tempfile.TemporaryDirectory())
    return pathlib.Path(name)
