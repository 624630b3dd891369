"""Records and transcript side by side."""

import dataclasses
import json
import unittest

import numpy as np

from agentrl_jax.data.records import LearnedTurn
from launch.reports.episodes import trajectory_page
from tests.launch.reports import synthetic_run


def messages_of(**changes):
  trajectory = dataclasses.replace(synthetic_run.a_trajectory(), **changes)
  return trajectory_page(trajectory, None).messages


def arguments_of(text):
  (message,) = messages_of(transcript=(synthetic_run.a_call("f", text, ""),))
  (call,) = message.calls
  return call.arguments, call.is_json


class MessagesTest(unittest.TestCase):
  def test_each_answer_has_its_turn(self):
    turns = [message.turn for message in messages_of()]
    self.assertEqual(turns, [None, None, 0, None, 1, None, 2])

  def test_answers_in_the_prompt_have_no_turn(self):
    example = {"role": "assistant", "content": "Ok."}
    whole = synthetic_run.a_trajectory().transcript
    turns = [m.turn for m in messages_of(transcript=(example, *whole))]
    self.assertEqual(turns, [None, None, None, 0, None, 1, None, 2])

  def test_a_transcript_cut_short_keeps_the_first_turns(self):
    whole = synthetic_run.a_trajectory().transcript
    turns = [m.turn for m in messages_of(transcript=whole[:4])]
    self.assertEqual(turns, [None, None, 0, None])

  def test_each_line_has_its_own_turns_and_a_title(self):
    turns = [
      dataclasses.replace(turn, line=line)
      for turn, line in zip(
        synthetic_run.a_trajectory().turns, (0, 1, 0), strict=True
      )
    ]
    views = messages_of(
      turns=tuple(turns),
      transcript=tuple(
        {"role": role, "content": "Hm.", "line": line}
        for line in (0, 1)
        for role in ("user", "assistant", "user", "assistant")
      ),
      roles=("plan", "write"),
    )
    self.assertEqual(
      [(view.turn, view.line_title) for view in views],
      [
        (None, "line 1, plan"),
        (0, ""),
        (None, ""),
        (2, ""),
        (None, "line 2, write"),
        (None, ""),  # the answer of line 1, which line 2 departs from
        (None, ""),
        (1, ""),
      ],
    )

  def test_json_arguments_are_formatted_and_others_left_alone(self):
    deep = "[" * 100_000
    for text, shown, is_json in (
      ('{"query": "SELECT 1", "n": [2]}', "query: SELECT 1\nn: [2]", True),
      ('{"query": "SELECT 1', '{"query": "SELECT 1', False),
      ("null", "null", True),
      ('"a"', '"a"', True),
      ("[1]", "[\n  1\n]", True),
      # Half a surrogate pair could not be written.
      (
        r'{"\udc00": ["\ud83d"], "b": "\ud83d"}',
        '\ufffd: ["\ufffd"]\nb: \ufffd',
        True,
      ),
      (deep, deep, False),
    ):
      with self.subTest(text[:40]):
        self.assertEqual(arguments_of(text), (shown, is_json))


class TurnsTest(unittest.TestCase):
  def test_turns_without_learner_values(self):
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
    page = trajectory_page(several, None, learned)
    json.dumps(page, default=vars, allow_nan=False)
    self.assertEqual(
      [(bool(turn.advantage), turn.line_title) for turn in page.turns],
      [(True, "line 1, plan")] + [(False, "line 2, write")] * len(others),
    )

  def test_tokens_without_a_tokenizer_are_numbers(self):
    (turn, *_) = trajectory_page(synthetic_run.a_trajectory(), None).turns
    self.assertEqual(turn.observation[:2], ["[0]", "[1]"])
    self.assertEqual(len(turn.sampled), len(turn.raw_logprob))
