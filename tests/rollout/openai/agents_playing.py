"""Base class of tests in which agents of the real `openai` package play."""

import asyncio
import unittest

import aiohttp
import openai

from agentrl_jax.data.records import EpisodeSpec, Task
from agentrl_jax.rollout.openai.episodes.offers import HEADER
from tests.rollout import talking

TASK = Task("sums", "train", 7)
ASKED = {"role": "user", "content": "What is 1 + 2?"}
WAIT_S = 20.0


TEMPERATURE = 0.9


class Playing(unittest.IsolatedAsyncioTestCase):
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
    attempt = EpisodeSpec(task=TASK, group_id="g", attempt=number, seed=seed)
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
    """Takes an episode; returns its id, and a client that sends it."""
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

  async def begin(self):
    """Offers an episode and takes it; returns its future, id and client."""
    playing = self.offer()
    return playing, *await self.taken()

  async def end(self, playing, id, **fields):
    """Ends an episode, by default with a reward of 1; returns its record."""
    status, body = await self.post(f"episodes/{id}", **{"reward": 1} | fields)
    self.assertEqual(status, 200, body)
    return await playing

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
