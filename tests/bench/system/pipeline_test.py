"""Tests of `bench.system.pipeline`: what its simulations must come to."""

import dataclasses
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.groups.group_queue import ANY_AGE
from bench.system import pipeline
from launch.reports import measured

ROOT = pathlib.Path(__file__).parents[3]
ALIKE = pipeline.Pipeline(
  sigma=0.0,
  turn_s=0.2,
  turns=4,
  places=16,
  group_size=2,
  groups_per_step=8,
  train_s=0.8,  # as long as the places need for a batch
  max_staleness=0,
  max_age=ANY_AGE,
  patience=None,
  deadline_s=math.inf,
  groups_in_flight=0,
  seed=0,
  steps=10,
)


class PipelineTest(unittest.TestCase):
  def test_synchronous_training_takes_one_after_the_other(self):
    found = pipeline.simulate(ALIKE)
    self.assertAlmostEqual(found.rate, ALIKE.limit / 2)
    self.assertEqual(found.staleness_max, 0)

  def test_one_update_ahead_hides_the_shorter_of_two(self):
    found = pipeline.simulate(dataclasses.replace(ALIKE, max_staleness=1))
    self.assertAlmostEqual(found.rate, ALIKE.limit)

  def test_no_more_episodes_than_places_go_on(self):
    halved = dataclasses.replace(ALIKE, places=8, max_staleness=4)
    found = pipeline.simulate(halved)
    self.assertAlmostEqual(found.rate, 8 / 0.8)

  def test_a_deadline_ends_the_longest_episodes(self):
    uneven = dataclasses.replace(ALIKE, sigma=1.5, max_staleness=2)
    cut = dataclasses.replace(uneven, deadline_s=2.0)
    self.assertEqual(pipeline.simulate(uneven).cut_off, 0)
    found = pipeline.simulate(cut)
    self.assertGreater(found.cut_off, 0.01)
    self.assertLess(found.cut_off, 0.5)

  def test_taking_in_order_of_starting_bounds_staleness_at_a_cost(self):
    uneven = dataclasses.replace(ALIKE, sigma=1.5, max_staleness=1)
    free = pipeline.simulate(uneven)
    started = pipeline.simulate(dataclasses.replace(uneven, order="started"))
    self.assertGreater(free.staleness_max, 1)
    self.assertLessEqual(started.staleness_max, 1)
    self.assertLess(started.rate, free.rate)

  def test_a_broken_task_costs_the_others_a_tenth_at_most(self):
    arm = dataclasses.replace(
      ALIKE,
      sigma=1.0,
      num_tasks=5,
      max_staleness=2,
      max_age=8,
      patience=0.25,
      deadline_s=3600.0,
      steps=40,
    )
    well = pipeline.simulate(arm)
    self.assertAlmostEqual(well.others / well.rate, 0.8, delta=0.03)
    for breaks in ("fails", "hangs"):
      found = pipeline.simulate(dataclasses.replace(arm, breaks=breaks))
      self.assertGreater(found.others, 0.9 * well.others, breaks)
      self.assertEqual(found.others, found.rate)

  def test_one_seed_is_one_result(self):
    uneven = dataclasses.replace(ALIKE, sigma=1.0, max_staleness=2)
    self.assertEqual(pipeline.simulate(uneven), pipeline.simulate(uneven))
    other = dataclasses.replace(uneven, seed=1)
    self.assertNotEqual(pipeline.simulate(uneven), pipeline.simulate(other))

  @pytest.mark.slow
  def test_what_is_kept_is_simulated_again(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    output = pathlib.Path(folder) / "again.csv"
    flags = ["--sigma=1", "--staleness=2", f"--output={output}"]
    subprocess.run(
      [sys.executable, "-m", "bench.system.pipeline", *flags],
      check=True,
      cwd=ROOT,
      capture_output=True,
      timeout=600,
    )

    def cells(path):
      return {
        (each["sigma"], each["arm"]): (each["of_limit"], each["staleness_max"])
        for each in measured.read(path)
        if (each["seed"], each["groups_in_flight"]) == ("0", "0")
      }

    again, kept = cells(output), cells(ROOT / "studies/evidence/pipeline.csv")
    self.assertEqual(len(again), 2)
    self.assertEqual(again, {key: kept[key] for key in again})

  @settings(deadline=None, database=None, max_examples=15)
  @given(
    sigma=st.floats(0.0, 2.0),
    max_staleness=st.integers(0, 3),
    more=st.integers(0, 3),
    train_s=st.floats(0.05, 5.0),
    seed=st.integers(0, 10**6),
  )
  def test_a_maximum_age_holds(self, sigma, max_staleness, more, train_s, seed):
    max_age = max_staleness + more
    found = pipeline.simulate(
      dataclasses.replace(
        ALIKE,
        sigma=sigma,
        max_staleness=max_staleness,
        max_age=max_age,
        train_s=train_s,
        seed=seed,
      )
    )
    self.assertLessEqual(found.staleness_max, max_age)
    self.assertLessEqual(found.rate, 1.5 * ALIKE.batch / train_s)
