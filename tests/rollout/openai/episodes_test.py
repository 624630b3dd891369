"""Agents of the real `openai` package play, and are recorded to the token."""

import asyncio
import unittest

import numpy as np

from agentrl_jax.controller.attempt import RetryLimits
from agentrl_jax.controller.group import GroupLimits, run_group
from agentrl_jax.controller.monitor import Monitor
from agentrl_jax.controller.policies import CrossPolicy
from agentrl_jax.controller.recorder import tokens_of
from agentrl_jax.data.trajectory import Status
from tests.rollout import talking
from tests.rollout.openai.agents_playing import ASKED, TASK, WAIT_S, Playing


class EpisodesTest(Playing):
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
    self.assertEqual(played.policy_slot_weights, ())

  async def test_weights_of_the_run_s_draws_are_on_record(self):
    draw = CrossPolicy(draw_per="turn", weights=(0.5, 0.5))
    await self.serve(draws={"draw_for": lambda task: draw})
    playing = self.offer()
    await self.play(turns=4)
    played = await playing
    self.assertEqual(played.policy_slot_weights, (0.5, 0.5))
    policy_slots = [turn.policy_slot for turn in played.turns]
    self.assertEqual(policy_slots, [draw(5, n) for n in range(4)])
    self.assertEqual(set(policy_slots), {0, 1})

  async def test_no_weights_where_the_agent_named_a_policy_slot(self):
    draw = CrossPolicy(draw_per="turn", weights=(0.5, 0.5))
    await self.serve(draws={"draw_for": lambda task: draw})
    playing, (id, client) = self.offer(), await self.taken()
    messages = [ASKED]
    for model in ("tiny@policy_slot1", "tiny"):
      said = await client.chat.completions.create(
        model=model, messages=messages
      )
      messages += [said.choices[0].message, ASKED]
    await self.post(f"episodes/{id}", reward=1)
    self.assertEqual((await playing).policy_slot_weights, ())

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
        model="tiny@policy_slot1",
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
    self.assertEqual([t.policy_slot for t in played.turns], [1, 1])
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


if __name__ == "__main__":
  unittest.main()
