"""Tests of `report.episodes`: records and transcript, side by side."""

import dataclasses
import unittest

import numpy as np

from launch.reports.episodes import Episode, message_views, turn_views
from tests.launch.reports import synthetic_run


def an_episode(trajectory=None, **kwargs) -> Episode:
  trajectory = trajectory or synthetic_run.a_trajectory()
  return Episode(trajectory=trajectory, title="after RL, greedy", **kwargs)


class EpisodesTest(unittest.TestCase):
  def test_each_answer_has_its_turn(self):
    views = message_views(an_episode())
    numbers = [view.turn.number if view.turn else None for view in views]
    self.assertEqual(numbers, [None, None, 1, None, 2, None, 3])
    self.assertEqual([v.turn.policy_slot for v in views if v.turn], [0, 1, 0])
    self.assertEqual(
      [v.turn.version for v in views if v.turn],
      ["step 12", "step 13", "step 13"],
    )
    self.assertEqual([v.turn.reward for v in views if v.turn], [0, 0, 1])

  def test_answers_in_the_prompt_have_no_turn(self):
    trajectory = synthetic_run.a_trajectory()
    example = {"role": "assistant", "content": "Ok."}
    trajectory = dataclasses.replace(
      trajectory, transcript=(example, *trajectory.transcript)
    )
    views = message_views(an_episode(trajectory))
    self.assertIsNone(views[0].turn)
    self.assertEqual(
      [v.turn.number for v in views if v.role == "assistant" and v.turn],
      [1, 2, 3],
    )

  def test_each_line_has_its_own_turns_and_a_title(self):
    trajectory = synthetic_run.a_trajectory()
    turns = [
      dataclasses.replace(turn, line=line)
      for turn, line in zip(trajectory.turns, (0, 1, 0), strict=True)
    ]
    said = [
      {"role": role, "content": "Hm.", "line": line}
      for line in (0, 1)
      for role in ("user", "assistant", "user", "assistant")
    ]
    several = dataclasses.replace(
      trajectory,
      turns=tuple(turns),
      transcript=tuple(said),
      roles=("plan", "write"),
    )
    views = message_views(an_episode(several))
    self.assertEqual(
      [(v.turn.number if v.turn else None, v.line_title) for v in views],
      [
        (None, "line 1, plan"),
        (1, ""),
        (None, ""),
        (3, ""),
        (None, "line 2, write"),
        (None, ""),  # the answer of line 1, which line 2 departs from
        (None, ""),
        (2, ""),
      ],
    )

  def test_a_transcript_cut_short_keeps_the_first_turns(self):
    trajectory = synthetic_run.a_trajectory()
    trajectory = dataclasses.replace(
      trajectory, transcript=trajectory.transcript[:4]
    )
    views = message_views(an_episode(trajectory))
    self.assertEqual([v.turn.number for v in views if v.turn], [1])

  def test_arguments_are_set_out_and_broken_ones_left_alone(self):
    calls = [call for v in message_views(an_episode()) for call in v.calls]
    self.assertTrue(calls[0].arguments.startswith("query: SELECT `Team`"))
    self.assertEqual(calls[1].arguments, '{"query": "SELECT 1')
    self.assertEqual(calls[2].arguments, 'answers: ["Reds"]')
    self.assertEqual([c.is_json for c in calls], [True, False, True])

  def test_arguments_that_are_no_object(self):
    trajectory = synthetic_run.a_trajectory()
    for text, shown in (("[1]", "[1]"), ("null", "null"), ('"a"', '"a"')):
      call = synthetic_run.a_call("f", text, "")
      odd = dataclasses.replace(trajectory, transcript=(call,))
      with self.subTest(text=text):
        (view,) = message_views(an_episode(odd))
        self.assertTrue(view.calls[0].is_json)
        self.assertEqual("".join(view.calls[0].arguments.split()), shown)

  def test_half_a_surrogate_pair_can_be_written(self):
    text = r'{"\udc00": ["\ud83d"], "b": "\ud83d"}'
    call = synthetic_run.a_call("f", text, "")
    odd = dataclasses.replace(synthetic_run.a_trajectory(), transcript=(call,))
    (view,) = message_views(an_episode(odd))
    shown = '\ufffd: ["\ufffd"]\nb: \ufffd'
    self.assertEqual(view.calls[0].arguments, shown)

  def test_arguments_that_are_nested_deeply_are_left_alone(self):
    deep = "[" * 100_000
    call = synthetic_run.a_call("f", deep, "")
    odd = dataclasses.replace(synthetic_run.a_trajectory(), transcript=(call,))
    (view,) = message_views(an_episode(odd))
    self.assertEqual((view.calls[0].arguments), deep)

  def test_the_prompt_and_long_contents_are_folded(self):
    views = message_views(an_episode())
    self.assertTrue(views[0].is_long)
    self.assertFalse(views[1].is_long)
    brief = {"role": "system", "content": "Use SQL."}
    trajectory = dataclasses.replace(
      synthetic_run.a_trajectory(), transcript=(brief,)
    )
    self.assertFalse(message_views(an_episode(trajectory))[0].is_long)

  def test_a_version_that_changed_while_answering_is_shown(self):
    trajectory = synthetic_run.a_trajectory()
    turn = trajectory.turns[0]
    changed = turn.version.copy()
    changed[5:] += 2
    for version, shown in (
      (changed, "steps 12 to 14"),
      (np.full_like(changed, -1), "no policy"),
    ):
      turns = (dataclasses.replace(turn, version=version),)
      with self.subTest(shown=shown):
        odd = dataclasses.replace(trajectory, turns=turns)
        self.assertEqual(turn_views(an_episode(odd))[0].version, shown)

  def test_an_empty_answer(self):
    trajectory = synthetic_run.a_trajectory()
    nothing = {
      name: np.zeros(0, dtype)
      for name, dtype in (
        ("sampled", np.int32),
        ("behavior_logprob", np.float32),
        ("raw_logprob", np.float32),
        ("version", np.int32),
      )
    }
    turn = dataclasses.replace(trajectory.turns[0], **nothing)
    odd = dataclasses.replace(trajectory, turns=(turn,))
    (view,) = turn_views(an_episode(odd))
    self.assertIsNone(view.mean_logprob)
    self.assertEqual(view.version, "none")

  def test_mean_logprob_is_that_of_the_raw_ones(self):
    episode = an_episode()
    for view, turn in zip(
      turn_views(episode), episode.trajectory.turns, strict=True
    ):
      self.assertAlmostEqual(
        view.mean_logprob, float(np.mean(turn.raw_logprob)), places=6
      )

  def test_tokens_are_shaded_by_what_the_policy_thinks_now(self):
    trajectory = synthetic_run.a_trajectory()
    gaps = np.zeros(14, np.float32)
    gaps[:6] = (0.1, 0.3, 0.8, -0.1, -0.3, -0.8)
    episode = an_episode(
      trajectory,
      token_text=[["t"] * 14] * 3,
      policy_logprob=[t.behavior_logprob + gaps for t in trajectory.turns],
    )
    levels = [token.level for token in turn_views(episode)[1].tokens]
    self.assertEqual(levels, [1, 2, 3, -1, -2, -3] + [0] * 8)

  def test_tokens_need_their_text(self):
    self.assertEqual(turn_views(an_episode())[0].tokens, ())

  def test_alone_a_policy_is_shaded_where_it_was_unsure(self):
    trajectory = synthetic_run.a_trajectory()
    logprob = np.log(np.full(14, 0.9, np.float32))
    logprob[:3] = np.log((0.7, 0.4, 0.1))
    turn = dataclasses.replace(trajectory.turns[0], raw_logprob=logprob)
    alone = dataclasses.replace(trajectory, turns=(turn,))
    (view,) = turn_views(an_episode(alone, token_text=[["t"] * 14]))
    self.assertEqual([t.level for t in view.tokens], [-1, -2, -3] + [0] * 11)
    self.assertEqual(view.tokens[2].hint, "probability 0.100")

  def test_refuses_tokens_that_are_not_those_sampled(self):
    with self.assertRaisesRegex(ValueError, r"\[14, 14, 13\] tokens per turn"):
      an_episode(token_text=[["t"] * 14, ["t"] * 14, ["t"] * 13])
    with self.assertRaisesRegex(ValueError, r"policy_logprob has \[14\]"):
      an_episode(policy_logprob=[np.zeros(14)])
