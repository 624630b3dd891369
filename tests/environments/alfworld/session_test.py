"""Tests of the rules of an episode."""

import json
import unittest

from agentrl_jax.data.records import Message, Status, ToolCall
from environments.alfworld.household import Household
from environments.alfworld.prompts import BAD_CALL, NO_CALL
from environments.alfworld.session import ALFSession
from environments.options import ALFWorldOptions
from tests.environments.alfworld.small_games import study
from tests.environments.answers import call

SOLUTION = (
  "go to cabinet 1",
  "open cabinet 1",
  "take mug 1 from cabinet 1",
  "go to desk 2",
  "put mug 1 in/on desk 2",
)
PROSE = Message("assistant", "I open the cabinet.")


def act(action: object, *, tool="take_action", key="action") -> Message:
  return call(tool, {key: action})


def raw(arguments: str) -> Message:
  return call("take_action", arguments)


class SessionTest(unittest.IsolatedAsyncioTestCase):
  async def begin(self, game=None, **rules) -> ALFSession:
    household = Household(game or study())
    session = ALFSession(household, ALFWorldOptions(**rules), kind="place")
    await session.reset()
    return session

  async def play(self, session, *actions):
    for action in actions:
      step = await session.step(
        action if isinstance(action, Message) else act(action)
      )
    return step

  async def play_anew(self, *actions, **rules):
    """Plays in a new session; returns the last step."""
    return await self.play(await self.begin(**rules), *actions)

  async def test_reply_holds_feedback_and_next_actions(self):
    step = await self.play_anew("go to desk 1")
    self.assertIs(step.status, Status.RUNNING)
    text = (
      "On the desk 1, you see a desklamp 1, and a pen 1. AVAILABLE ACTIONS: "
      "examine desk 1\ngo to cabinet 1\ngo to desk 2\ninventory\nlook\n"
      "take pen 1 from desk 1\nuse desklamp 1\n"
    )
    self.assertEqual(
      step.messages, (Message("tool", text, tool_call_id="call_0"),)
    )

  async def test_goal_ends_the_episode_with_reward_one(self):
    step = await self.play_anew(*SOLUTION)
    self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1.0))
    self.assertEqual(step.metrics["won/place"], 1.0)
    self.assertTrue(step.messages[0].content.startswith("You put the mug 1 in"))

  async def test_max_rounds_ends_the_episode(self):
    step = await self.play_anew(*SOLUTION[:3], max_rounds=3)
    self.assertEqual(
      (step.status, step.reward), (Status.TASK_LIMIT_REACHED, 0.0)
    )
    self.assertEqual(len(step.messages), 1)

  async def test_goal_in_the_last_round_counts(self):
    step = await self.play_anew(*SOLUTION, max_rounds=len(SOLUTION))
    self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1.0))

  async def test_answer_without_a_call_is_refused(self):
    step = await self.play_anew(PROSE)
    self.assertEqual(step.messages, (Message("user", NO_CALL),))
    self.assertIs(step.status, Status.RUNNING)

  async def test_malformed_calls_are_refused(self):
    session = await self.begin(max_rounds=100)
    for answer in (
      raw('{"action": "look"'),
      raw(""),
      raw("[]"),
      raw("{}"),
      raw('"look"'),
      raw('{"action": "\\ud800"}'),
      raw("[" * 5000),
      act(7),
      act(None),
      act(["look"]),
      act("look", tool=""),  # a call that was not read
    ):
      with self.subTest(answer=repr(answer)[:200]):
        step = await self.play(session, answer)
        self.assertEqual(step.messages, (Message("user", BAD_CALL),))
        self.assertIs(step.status, Status.RUNNING)

  async def test_names_of_tool_and_argument_do_not_matter(self):
    step = await self.play_anew(act("look", tool="x", key="y"))
    self.assertIn("you see nothing.", step.messages[0].content)

  async def test_only_the_first_call_counts(self):
    session = await self.begin()
    calls = tuple(
      ToolCall("take_action", json.dumps({"action": action}), id=str(i))
      for i, action in enumerate(("go to desk 1", "go to desk 2"))
    )
    step = await self.play(session, Message("assistant", tool_calls=calls))
    (reply,) = step.messages
    self.assertEqual(reply.tool_call_id, "0")
    self.assertTrue(reply.content.startswith("On the desk 1, "))

  async def test_nearest_action_is_played(self):
    step = await self.play_anew("Walk to DESK 1")
    self.assertTrue(step.messages[0].content.startswith("On the desk 1, "))

  async def test_action_without_a_match_is_idle(self):
    step = await self.play_anew("dance", max_rounds=1)
    self.assertTrue(step.messages[0].content.startswith("Nothing happens. "))
    self.assertEqual(step.metrics["num_idle_actions"], 1.0)

  async def test_three_equal_actions_end_the_episode_from_the_fourth_on(self):
    session = await self.begin()
    step = await self.play(session, "look", "look", "look")
    self.assertIs(step.status, Status.RUNNING)
    step = await self.play(session, "look")
    self.assertEqual(
      (step.status, step.reward), (Status.AGENT_INVALID_ACTION, 0.0)
    )

  async def test_repeats_are_counted_in_the_written_text(self):
    step = await self.play_anew("inventory", "look", "look ", "Look", "look")
    self.assertIs(step.status, Status.RUNNING)

  async def test_refused_answers_do_not_interrupt_repeats(self):
    step = await self.play_anew(
      "inventory", "look", "look", PROSE, raw("["), "look"
    )
    self.assertIs(step.status, Status.AGENT_INVALID_ACTION)

  async def test_bad_answer_does_not_change_the_final_status(self):
    for bad in (PROSE, raw("[")):
      step = await self.play_anew(bad, *SOLUTION)
      self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1.0))

  async def test_upstream_keeps_the_status_of_a_bad_answer(self):
    for answers, status in (
      ((PROSE,), Status.AGENT_VALIDATION_FAILED),
      ((raw("["),), Status.AGENT_INVALID_ACTION),
      ((raw("["), PROSE), Status.AGENT_VALIDATION_FAILED),
      ((), Status.COMPLETED),
    ):
      step = await self.play_anew(*answers, *SOLUTION, upstream_quirks=True)
      self.assertEqual((step.status, step.reward), (status, 1.0))

  async def test_goal_by_the_third_equal_action(self):
    for quirks, status in (
      (False, Status.COMPLETED),
      (True, Status.AGENT_INVALID_ACTION),
    ):
      session = await self.begin(upstream_quirks=quirks)
      await self.play(session, *SOLUTION[:4])
      # Set by hand: earlier in the game this text matches other actions.
      session._written += ["put mug 1 in/on desk 2"] * 2
      step = await self.play(session, SOLUTION[4])
      self.assertEqual((step.status, step.reward), (status, 1.0))
