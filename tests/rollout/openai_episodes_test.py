"""Agents of the real `openai` package play, and are recorded to the token."""

import asyncio
import unittest

import aiohttp
import numpy as np
import openai

from agentrl_jax.controller.attempt import RetryLimits
from agentrl_jax.controller.group import GroupLimits, run_group
from agentrl_jax.controller.monitor import Monitor
from agentrl_jax.controller.recorder import Attempt, tokens_of
from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.rollout.openai_episode_api import HEADER
from tests.rollout import talking

TASK = Task("sums", "train", 7)
ASKED = {"role": "user", "content": "What is 1 + 2?"}
WAIT_S = 20.0


TEMPERATURE = 0.9


class OpenAIEpisodesTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    await self.serve()

  async def serve(self, *, rules=(), **options):
    rules = dict(temperature=TEMPERATURE) | dict(rules)
    talk = talking.Talking(rules=rules, **options)
    self.served = await self.enterAsyncContext(talk)
    self.http = await self.enterAsyncContext(
      aiohttp.ClientSession(f"{self.served.url}/v1/")
    )

  def offer(self, number=0, seed=5):
    attempt = Attempt(task=TASK, group_id="g", number=number, seed=seed)
    playing = asyncio.create_task(self.served.episodes.play(attempt))
    self.addCleanup(playing.cancel)
    return playing

  async def post(self, path, **body):
    async with self.http.post(path, json=body) as response:
      return (
        response.status,
        await response.json() if response.status != 204 else None,
      )

  async def taken(self, **options):
    """An episode's id, and a client that knows of it by a header alone."""
    status, episode = await self.post("episodes", wait_s=WAIT_S)
    self.assertEqual(status, 200)
    self.assertEqual(
      episode["task"], {"name": "sums", "split": "train", "index": 7}
    )
    client = self.served.client(
      default_headers={HEADER: episode["id"]}, **options
    )
    await self.enterAsyncContext(client)
    return episode["id"], client

  async def say(self, client, messages, **fields):
    return await client.chat.completions.create(
      model="tiny", messages=messages, **fields
    )

  async def refused(self, client, messages, **fields):
    with self.assertRaises(openai.APIStatusError) as caught:
      await self.say(client, messages, **fields)
    return caught.exception.status_code, caught.exception.code

  async def play(self, turns=3, **fields):
    id, client = await self.taken()
    messages, prompts = [ASKED], []
    for turn in range(turns):
      said = await self.say(
        client, messages, extra_body={"return_token_ids": True}, **fields
      )
      prompts.append((said.prompt_token_ids, said.choices[0].token_ids))
      reply = {"role": "user", "content": f"Again, {turn}."}
      messages += [said.choices[0].message, reply]
    await self.post(f"episodes/{id}", reward=0.5, metrics={"success": 1})
    return prompts

  async def test_what_was_played_is_what_was_sampled(self):
    playing = self.offer()
    prompts = await self.play(turns=4)
    played = await playing
    stream: list[int] = []
    for turn, (prompt, sampled) in zip(played.turns, prompts, strict=True):
      self.assertEqual(stream + turn.observation.tolist(), prompt)
      self.assertEqual(turn.sampled.tolist(), sampled)
      self.assertEqual(turn.version.tolist(), [10] * len(sampled))
      stream = prompt + sampled
      raw = talking.raw_logprobs(10, stream)[-len(sampled) :]
      np.testing.assert_allclose(turn.raw_logprob, raw, atol=1e-5)
      self.assertFalse(np.array_equal(turn.raw_logprob, turn.behavior_logprob))
    self.assertEqual(tokens_of(played).tolist(), stream)
    self.assertEqual([t.reward for t in played.turns], [0, 0, 0, 0.5])
    self.assertEqual((played.reward, played.status), (0.5, Status.COMPLETED))
    self.assertEqual(played.metrics, {"success": 1.0})
    self.assertEqual(
      (played.task, played.group_id, played.seed), (TASK, "g", 5)
    )
    self.assertEqual(len(played.transcript), 8)

  async def test_a_seed_makes_the_same_attempt_again(self):
    found = []
    for seed in (5, 5, 6):
      playing = self.offer(seed=seed)
      await self.play(turns=2)
      found.append(tokens_of(await playing).tolist())
    self.assertEqual(found[0], found[1])
    self.assertNotEqual(found[0], found[2])

  async def test_streams_and_token_ids_are_recorded_too(self):
    playing = self.offer()
    id, client = await self.taken()
    prompt: list[int] = [5, 6, 7]
    for turn in range(2):
      stream = await client.completions.create(
        model="tiny@slot1",
        prompt=prompt,
        max_tokens=4 + turn,
        stream=True,
        extra_body={"return_token_ids": True},
      )
      async for chunk in stream:
        prompt = prompt + chunk.choices[0].token_ids
      prompt = [*prompt, 9]
    await self.post(f"episodes/{id}", reward=1, status="task limit reached")
    played = await playing
    self.assertEqual(tokens_of(played).tolist(), prompt[:-1])
    self.assertEqual([t.slot for t in played.turns], [1, 1])
    self.assertEqual(played.status, Status.TASK_LIMIT_REACHED)

  async def test_a_group_is_played_at_once_and_goes_where_groups_go(self):
    grouped = asyncio.create_task(
      run_group(
        TASK,
        self.served.episodes,
        GroupLimits(size=6, deadline_s=WAIT_S),
        RetryLimits(max_retries=0),
        Monitor(),
        group_id="g",
        seed=1,
      )
    )
    told = await asyncio.gather(*(self.play() for _ in range(6)))
    group = await grouped
    self.assertEqual(sorted(t.attempt for t in group.trajectories), [*range(6)])
    recorded = {tuple(tokens_of(t)) for t in group.trajectories}
    self.assertEqual(recorded, {(*p[-1][0], *p[-1][1]) for p in told})
    self.assertEqual(len(recorded), 6)
    self.assertEqual(self.served.episodes.num_played, 0)

  async def test_a_call_repeated_word_for_word_gets_the_recorded_answer(self):
    playing = self.offer()
    id, client = await self.taken()
    first = await self.say(client, [ASKED], max_tokens=5)
    again = await self.say(client, [ASKED], max_tokens=5)
    self.assertEqual(first.choices, again.choices)
    stats = self.served.driver.engine.stats()
    self.assertEqual(sum(stats.num_sampled), first.usage.completion_tokens)
    await self.post(f"episodes/{id}", reward=0)
    self.assertEqual(len((await playing).turns), 1)

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
    with self.served.driver.held():
      first = asyncio.create_task(self.say(client, [ASKED], max_tokens=3))
      while not self.served.api.num_asked:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
      found = await self.refused(client, [ASKED], max_tokens=4)
      self.assertEqual(found, (409, "episode_busy"))
    await first

  async def test_who_hangs_up_asks_again_from_where_it_was(self):
    playing = self.offer()
    id, client = await self.taken()
    stream = await self.say(client, [ASKED], stream=True, max_tokens=12)
    await anext(aiter(stream))
    await stream.close()
    while self.served.api.num_asked:  # noqa: ASYNC110
      await asyncio.sleep(0.01)
    await self.say(client, [ASKED], max_tokens=6)
    await self.post(f"episodes/{id}", reward=0)
    played = await playing
    self.assertEqual([len(t.sampled) for t in played.turns], [6])

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
    await self.serve(rules=dict(idle_s=0.2))
    playing = self.offer()
    id, client = await self.taken()
    await self.say(client, [ASKED], max_tokens=3)
    with self.assertRaisesRegex(EnvironmentFault, "agents.idle_s=0.2"):
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
