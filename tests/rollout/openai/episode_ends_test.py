"""What an episode refuses by name, and what ends one."""

import asyncio
import unittest

from agentrl_jax.data.trajectory import Status
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.rollout.openai.episode_routes import HEADER
from tests.rollout.openai.agents_playing import (
  ASKED,
  TEMPERATURE,
  WAIT_S,
  Playing,
)


class EpisodeEndsTest(Playing):
  async def test_what_does_not_go_on_is_refused_by_name(self):
    playing = self.offer()
    id, client = await self.taken()
    said = (await self.say(client, [ASKED])).choices[0].message
    changed = {"role": "user", "content": "What is 3 + 4?"}
    branched = (409, "episode_branched")
    for messages in (
      [changed],
      [ASKED],
      [ASKED, said],
      [changed, said, ASKED],
      [ASKED, {"role": "assistant", "content": "No."}, ASKED],
    ):
      found = await self.refused(client, messages, max_tokens=3)
      self.assertEqual(found, branched)
    self.assertEqual(
      await self.refused(client, [ASKED, said, ASKED], n=2),
      (400, "unsupported_value"),
    )
    for fields in (dict(temperature=0.2), dict(top_p=0.9)):
      self.assertEqual(
        await self.refused(client, [ASKED, said, ASKED], **fields),
        (400, "unsupported_value"),
      )
    tool = {"type": "function", "function": {"name": "f", "description": "g"}}
    self.assertEqual(
      await self.refused(client, [ASKED, said, ASKED], tools=[tool]),
      (409, "episode_tools_changed"),
    )
    await self.say(client, [ASKED, said, ASKED], temperature=TEMPERATURE)
    await self.post(f"episodes/{id}", reward=0)
    self.assertEqual(len((await playing).turns), 2)

  async def test_two_calls_at_once_are_refused(self):
    self.offer()
    _, client = await self.taken()
    with self.served.driver.paused():
      first = asyncio.create_task(self.say(client, [ASKED], max_tokens=3))
      while not self.served.api.num_asked:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
      found = await self.refused(client, [ASKED], max_tokens=4)
      self.assertEqual(found, (409, "episode_busy"))
    await first

  async def test_limits_end_an_episode(self):
    await self.serve(rules=dict(max_turns=2, max_tokens=100))
    playing = self.offer()
    id, client = await self.taken()
    messages = [ASKED]
    for _ in range(2):
      said = await self.say(client, messages, max_tokens=500)
      self.assertLessEqual(said.usage.completion_tokens, 12)
      messages += [said.choices[0].message, ASKED]
    self.assertEqual(
      await self.refused(client, messages), (409, "episode_turn_limit")
    )
    await self.post(f"episodes/{id}", reward=0)
    await playing
    self.offer()
    _, client = await self.taken()
    long = {"role": "user", "content": "x" * 120}
    self.assertEqual(
      await self.refused(client, [long]), (400, "context_length_exceeded")
    )

  async def test_an_agent_that_is_gone_is_a_fault_of_its_environment(self):
    await self.serve(rules=dict(idle_timeout_s=0.2))
    playing = self.offer()
    id, client = await self.taken()
    await self.say(client, [ASKED], max_tokens=3)
    with self.assertRaisesRegex(EnvironmentFault, "agents.idle_timeout_s=0.2"):
      await playing
    self.assertEqual(self.served.episodes.counts["abandoned"], 1)
    self.assertEqual(
      await self.refused(client, [ASKED]), (410, "episode_ended")
    )
    status, said = await self.post(f"episodes/{id}", reward=1)
    self.assertEqual((status, said["error"]["code"]), (410, "episode_ended"))

  async def test_an_offer_that_is_taken_back_is_not_taken(self):
    playing = self.offer()
    await asyncio.sleep(0)
    self.assertEqual(self.served.episodes.num_offered, 1)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    self.assertEqual(await self.post("episodes", wait_s=0), (204, None))

  async def test_closing_tells_who_waits_and_hands_nothing_out(self):
    waiting = asyncio.create_task(self.post("episodes", wait_s=WAIT_S))
    while not self.served.episodes._changed._waiters:  # noqa: ASYNC110
      await asyncio.sleep(0.01)
    await self.served.episodes.close()
    self.assertEqual(await waiting, (204, None))
    self.offer()
    self.assertEqual(await self.post("episodes", wait_s=WAIT_S), (204, None))

  async def test_who_does_not_record_says_so(self):
    await self.serve(records=False)
    for status, said in (
      await self.post("episodes", wait_s=0),
      await self.post("episodes/any", reward=1),
    ):
      self.assertEqual(
        (status, said["error"]["code"]), (404, "no_episodes_here")
      )
    client = self.served.client(default_headers={HEADER: "any"})
    await self.enterAsyncContext(client)
    found = await self.refused(client, [ASKED])
    self.assertEqual(found, (404, "no_episodes_here"))

  async def test_ends_that_are_none_are_refused(self):
    playing = self.offer()
    id, client = await self.taken()
    for body, code in (
      (dict(reward=1), "episode_empty"),
      (dict(reward="much"), "invalid_value"),
      (dict(), "invalid_value"),
      (dict(reward=0, status="running"), "invalid_value"),
      (dict(reward=0, metrics={"a": "b"}), "invalid_value"),
      (dict(reward=0, score=1), "unknown_parameter"),
    ):
      status, said = await self.post(f"episodes/{id}", **body)
      self.assertEqual((status >= 400, said["error"]["code"]), (True, code))
    for _ in range(2):  # the answer to the first may have been lost
      status, _ = await self.post(
        f"episodes/{id}", reward=0, status="cancelled"
      )
      self.assertEqual(status, 200)
    self.assertEqual((await playing).status, Status.CANCELLED)
    status, said = await self.post("episodes/nobody", reward=1)
    self.assertEqual(
      (status, said["error"]["code"]), (404, "episode_not_found")
    )


if __name__ == "__main__":
  unittest.main()
