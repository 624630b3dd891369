"""Tests of `train.collapse.answers`: what the answers of a batch do."""

import dataclasses

import numpy as np
from absl.testing import absltest

from agentrl_jax.data.record_file import group_from_json, group_to_json
from agentrl_jax.train.collapse.answers import answer_metrics, count_answers
from tests.data.records import make_group, make_turn

# Calls of the answers of an episode, and whether each was cut.
ANSWERS = (
  ((), False),
  (("", "malformed JSON"), False),
  (("unknown tool",), True),
  (("wrong arguments",), False),
  (None, True),
)


def episodes(task, answers):
  rng = np.random.default_rng(0)
  group = make_group(rng, task=task, size=2)
  turns = tuple(
    dataclasses.replace(
      make_turn(rng, observed=2, sampled=3), calls=calls, is_cut=is_cut
    )
    for calls, is_cut in answers
  )
  members = [dataclasses.replace(t, turns=turns) for t in group.trajectories]
  group = dataclasses.replace(group, trajectories=tuple(members))
  # As they come from a checkpoint, or to another process.
  return group_from_json(group_to_json(group)).trajectories


class AnswersTest(absltest.TestCase):
  def test_shares_by_environment(self):
    played = [*episodes("a", ANSWERS), *episodes("b", [(None, False)])]
    self.assertEqual(
      answer_metrics(count_answers(played)),
      {
        "answers/cut/a": 0.4,
        "calls/share_of_answers/a": 0.75,
        "calls/malformed/a": 0.25,
        "calls/unknown_tool/a": 0.25,
        "calls/refused/a": 0.25,
        "answers/cut/b": 0.0,
      },
    )

  def test_nothing_played(self):
    self.assertEqual(answer_metrics(count_answers([])), {})
    self.assertEqual(answer_metrics(count_answers(episodes("a", []))), {})
