"""Sessions reply as upstream's do: recorded episodes are replayed exactly."""

import itertools
import json
import re
import unittest

from agentrl_jax.data.records import Message, Status, ToolCall
from environments.options import PageStyle
from environments.webshop import prompts
from environments.webshop.environment import COMPACT
from environments.webshop.session import ShoppingSession, parsed_again
from tests.environments.webshop import shelf, transcripts


def a_session(
  catalogue, goal, *, max_rounds=20, upstream_quirks=False, **style
):
  return ShoppingSession(
    catalogue,
    goal,
    style=PageStyle(**style),
    system_prompt=prompts.UPSTREAM,
    tools=prompts.make_tools(described=True),
    max_rounds=max_rounds,
    upstream_quirks=upstream_quirks,
  )


class ReplayTest(unittest.IsolatedAsyncioTestCase):
  maxDiff = None

  async def replay(self, **options):
    """Replays the recorded episodes, and returns them."""
    episodes = transcripts.load()
    for number, episode in enumerate(episodes):
      shop = transcripts.ShownShop(episode)
      goal = transcripts.a_goal(shop.instruction)
      session = a_session(shop.catalogue(), goal, **options)
      with self.subTest(episode=number):
        self.assertEqual((await session.reset()).messages, episode.opening)
        for answer, reply in episode.rounds:
          step = await session.step(answer)
          self.assertEqual(step.messages, reply)
        self.assertEqual(step.status is Status.COMPLETED, not reply)
        if episode.is_complete:
          self.assertEqual(step.status.value, episode.status)
    return episodes

  async def test_recorded_episodes(self):
    episodes = await self.replay()
    self.assertGreater(sum(len(e.rounds) for e in episodes), 700)
    self.assertGreater(sum(e.is_complete for e in episodes), 120)

  async def test_recorded_episodes_with_upstreams_quirks(self):
    self.assertGreater(len(await self.replay(upstream_quirks=True)), 190)


class QuirksTest(unittest.IsolatedAsyncioTestCase):
  def test_actions_are_parsed_as_upstreams_pattern_does(self):
    pattern = re.compile(r"(.+)\[(.+)\]")
    for length in range(5):
      for letters in itertools.product("[]a\n", repeat=length):
        action = f"click[{''.join(letters)}]"
        match = pattern.match(action)
        expected = match.groups() if match else ("", "")
        self.assertEqual(parsed_again(action), expected, action)
    # The pattern needs half an hour for this one.
    self.assertEqual(parsed_again("click[" + "[" * 250_000), ("", ""))

  async def test_a_call_that_was_not_read_is_none(self):
    catalogue, goal = shelf.a_shop_with_brackets()
    session = a_session(catalogue, goal)
    await session.reset()
    step = await session.step(calling(("", '{"name": "search_action"}')))
    self.assertEqual(step.messages[0].content, prompts.UNREADABLE_CALL)

  async def test_an_option_with_brackets_cannot_be_chosen(self):
    catalogue, goal = shelf.a_shop_with_brackets()
    for quirks, reward in ((False, 1.0), (True, 2 / 3)):
      session = a_session(catalogue, goal, upstream_quirks=quirks)
      await session.reset()
      await session.step(search("cable"))
      for value in (goal.product.id, "white [2 m]", "buy now"):
        step = await session.step(click(value))
      with self.subTest(quirks=quirks):
        self.assertAlmostEqual(step.reward, reward)


def calling(*calls):
  """Makes an answer with calls, each a tool's name and JSON arguments."""
  return Message(
    "assistant",
    tool_calls=tuple(
      ToolCall(name, arguments, id=f"c{i}")
      for i, (name, arguments) in enumerate(calls)
    ),
  )


def search(keywords):
  return calling(("search_action", json.dumps({"keywords": keywords})))


def click(value):
  return calling(("click_action", json.dumps({"value": value})))


NO_CALL = Message("assistant", "i would buy the red one")
NO_ARGUMENTS = calling(("click_action", "{}"))
UNKNOWN_TOOL = calling(("wait", '{"seconds": 3}'))
BUTTONS = (
  "\n\nAvailable Actions:\n{'has_search_bar': True, 'clickables': ['search']}"
)
START = (
  f"WebShop [SEP] Instruction: [SEP] {shelf.GOAL.instruction} [SEP] Search"
)


class RulesTest(unittest.IsolatedAsyncioTestCase):
  maxDiff = None

  async def play(self, *answers, **settings):
    session = a_session(shelf.CATALOGUE, shelf.GOAL, **settings)
    await session.reset()
    return [await session.step(answer) for answer in answers]

  async def test_a_round_without_a_call_lists_the_actions(self):
    (step,) = await self.play(NO_CALL)
    text = f"Observation:\n{prompts.NO_CALL}{BUTTONS}"
    self.assertEqual(step.messages, (Message("user", text),))
    self.assertIs(step.status, Status.RUNNING)

  async def test_an_unreadable_call_gets_an_error_and_the_page(self):
    page = Message("user", f"Observation:\n{START}{BUTTONS}")
    for arguments in ("{}", "{", "[]", "7", "null", "[" * 9000):
      with self.subTest(arguments=arguments[:9]):
        (step,) = await self.play(calling(("click_action", arguments)))
        error = Message("user", "No valid tool call found from agent.")
        self.assertEqual(step.messages, (error, page))

  async def test_an_unknown_tool_changes_nothing(self):
    (step,) = await self.play(UNKNOWN_TOOL)
    text = f"Observation:\n{START}{BUTTONS}"
    self.assertEqual(step.messages, (Message("user", text),))

  async def test_only_the_first_call_is_run(self):
    both = calling(
      ("search_action", '{"keywords": "shirt"}'),
      ("click_action", '{"value": "back to search"}'),
    )
    (step,) = await self.play(both)
    self.assertIn("Page 1 (Total results: 2)", step.messages[0].content)
    self.assertEqual(step.messages[0].tool_call_id, "c0")

  async def test_the_first_argument_counts_with_any_name(self):
    (step,) = await self.play(calling(("search_action", '{"text": "lamp"}')))
    self.assertIn("b3", step.messages[0].content)

  async def test_an_impossible_click_shows_the_same_page(self):
    (step,) = await self.play(click("buy now"))
    text = f"Action: click[buy now]\n\nObservation:\n{START}{BUTTONS}"
    self.assertEqual(step.messages, (Message("tool", text, tool_call_id="c0"),))
    self.assertEqual((step.status, step.reward), (Status.RUNNING, 0.0))

  async def test_a_purchase_ends_the_session_with_a_reward(self):
    *before, last = await self.play(
      search("slim fit shirt"), click("b1"), click("red"), click("large"),
      click("buy now"),
    )  # fmt: skip
    self.assertEqual([s.reward for s in before], [0.0] * 4)
    self.assertEqual(last.messages, ())
    self.assertIs(last.status, Status.COMPLETED)
    self.assertEqual(last.reward, 1.0)
    self.assertEqual(last.metrics["success"], 1.0)

  async def test_a_wrong_purchase_has_a_partial_reward(self):
    last = (await self.play(search("shirt"), click("b2"), click("buy now")))[-1]
    self.assertIs(last.status, Status.COMPLETED)
    # Of 1 attribute, 2 options and the price.
    self.assertAlmostEqual(last.reward, 1 / 4)
    self.assertEqual(last.metrics["success"], 0.0)

  async def test_rounds_run_out(self):
    for last, num_errors in (
      (NO_CALL, 0),
      (UNKNOWN_TOOL, 0),
      (click("search"), 0),
      (NO_ARGUMENTS, 1),  # upstream sends the error first
    ):
      with self.subTest(last=last):
        *_, end = await self.play(search("lamp"), last, max_rounds=2)
        self.assertIs(end.status, Status.TASK_LIMIT_REACHED)
        self.assertEqual(end.reward, 0.0)
        self.assertEqual(end.metrics, {"success": 0.0})
        limit = Message("tool", "Task limit reached.", tool_call_id="c0")
        self.assertEqual(end.messages[-1], limit)
        self.assertEqual(len(end.messages), num_errors + 1)

  async def test_buying_in_the_last_round_counts(self):
    answers = [search("lamp"), click("b3"), click("buy now")]
    last = (await self.play(*answers, max_rounds=3))[-1]
    self.assertIs(last.status, Status.COMPLETED)

  async def test_a_huge_action_is_shortened_in_the_reply(self):
    (step,) = await self.play(search("x" * 100_000))
    self.assertLess(len(step.messages[0].content), 2_000)

  async def test_half_a_surrogate_pair_can_be_sent_on(self):
    (step,) = await self.play(
      calling(("search_action", r'{"keywords": "\ud800"}'))
    )
    step.messages[0].content.encode()


class StyleTest(unittest.IsolatedAsyncioTestCase):
  async def contents(self, **style):
    session = a_session(shelf.CATALOGUE, shelf.GOAL, **style)
    steps = [await session.reset()]
    for answer in (search("slim fit shirt"), click("b1"), click("red")):
      steps.append(await session.step(answer))
    return [step.messages[-1].content for step in steps]

  async def test_compact_pages_say_what_is_needed_once(self):
    style = {k: v for k, v in COMPACT.items() if k in PageStyle.__annotations__}
    self.assertEqual(
      await self.contents(**style),
      [
        f"WebShop\nInstruction:\n{shelf.GOAL.instruction}\nSearch",
        "Page 1 (Total results: 2)\nb2\nvelora slim fit shirt\n$50.0\n"
        "b1\nnordan slim fit shirt\n$20.0",
        "color\nred\nblue\nsize\nsmall\nlarge\nnordan slim fit shirt\n"
        "Price: $20.0\nBuy Now",
        "color: red\nBuy Now",
      ],
    )

  async def test_each_option_takes_away_what_it_names(self):
    full = await self.contents()
    for style, gone in (
      ("repeat_instruction", shelf.GOAL.instruction),
      ("list_actions", "Available Actions"),
      ("show_headings", "Action: "),
      ("show_navigation", "Back to Search"),
      ("show_subpages", "Features"),
    ):
      with self.subTest(style=style):
        item = (await self.contents(**{style: False}))[2]
        self.assertIn(gone, full[2])
        self.assertNotIn(gone, item)
        self.assertIn("nordan slim fit shirt", item)
