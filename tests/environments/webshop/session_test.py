"""Sessions answer as upstream's do: real episodes, replayed to the byte."""

import unittest

from agentrl_jax.data.trajectory import Status
from environments.webshop import prompts
from environments.webshop.pages import PageStyle
from environments.webshop.session import ShoppingSession
from tests.environments.webshop import transcripts


def a_session(shop, *, max_rounds=20, **style):
  return ShoppingSession(
    shop.catalogue(),
    transcripts.a_goal(shop.instruction),
    style=PageStyle(**style),
    system_prompt=prompts.UPSTREAM,
    tools=prompts.make_tools(described=True),
    max_rounds=max_rounds,
  )


class ReplayTest(unittest.IsolatedAsyncioTestCase):
  maxDiff = None

  async def test_real_episodes_are_answered_to_the_byte(self):
    episodes = transcripts.load()
    for number, episode in enumerate(episodes):
      session = a_session(transcripts.ShownShop(episode))
      with self.subTest(episode=number):
        self.assertEqual((await session.reset()).messages, episode.opening)
        for answer, told in episode.rounds:
          step = await session.step(answer)
          self.assertEqual(step.messages, told)
        self.assertEqual(step.status is Status.COMPLETED, not told)
    self.assertGreater(sum(len(e.rounds) for e in episodes), 700)
    self.assertGreater(sum(e.is_whole for e in episodes), 120)
