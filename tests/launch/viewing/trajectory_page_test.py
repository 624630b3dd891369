"""Trajectories as JSON for the page."""

import dataclasses
import json
import unittest

import numpy as np

from agentrl_jax.data.records import LearnedTurn
from launch.viewing.trajectory_page import trajectory_to_page
from tests.launch.reports import synthetic_run


class TrajectoryPageTest(unittest.TestCase):
  def test_turns_of_a_role_that_was_not_trained_on(self):
    trajectory = synthetic_run.a_trajectory()
    first, *others = trajectory.turns
    several = dataclasses.replace(
      trajectory,
      turns=(first, *(dataclasses.replace(t, line=1) for t in others)),
      roles=("plan", "write"),
    )
    learned = [
      LearnedTurn(
        logprob=np.full(len(turn.sampled), np.nan if turn.line else -1.0),
        advantage=np.zeros(len(turn.sampled)),
      )
      for turn in several.turns
    ]
    page = trajectory_to_page(several, None, learned)
    json.dumps(page, allow_nan=False)
    self.assertEqual(
      [("advantage" in turn, turn["line_title"]) for turn in page["turns"]],
      [(True, "line 1, plan")] + [(False, "line 2, write")] * len(others),
    )
