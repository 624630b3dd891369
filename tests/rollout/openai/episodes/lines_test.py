"""An episode of several lines: forks, several agents, rewritten histories."""

import asyncio

import openai

from agentrl_jax.controller.cross_policy import NEVER
from agentrl_jax.data.records import EpisodeLimits, EpisodeSpec, Message
from agentrl_jax.rollout.openai.episodes.episode import Episode, EpisodeRules
from agentrl_jax.rollout.openai.episodes.offers import ROLE_HEADER
from agentrl_jax.rollout.openai.schema import ServingLimits
from tests.clocks import until
from tests.rollout import talking
from tests.rollout.openai.agents_playing import ASKED, TASK, Playing

QUESTION = Message("user", "What is 1 + 2?")
IDS = {"return_token_ids": True}
PLAN = {"role": "system", "content": "You plan."}
WRITE = {"role": "system", "content": "You write."}
SAME_CALL = {"Idempotency-Key": "call-1"}


def role(name):
  return {ROLE_HEADER: name}


class LinesTest(Playing):
  async def asyncSetUp(self):
    await self.serve(rules=dict(max_lines=4, max_turns=8))
    self.playing, self.id, self.client = await self.begin()
    self.streams = []  # of each call: its prompt and its answer

  async def call(self, messages, **fields):
    """Makes a call; returns its message, and keeps its tokens."""
    said = await self.say(
      self.client, messages, extra_body=IDS, max_tokens=5, **fields
    )
    choice = said.choices[0]
    self.streams.append([*said.prompt_token_ids, *choice.token_ids])
    return choice.message

  async def finish(self, **fields):
    return await self.end(self.playing, self.id, **fields)

  async def two_draws(self, messages):
    """Makes two calls at once, which differ in their seeds."""
    with self.served.driver.paused():
      calls = [
        asyncio.create_task(self.call(messages, seed=seed)) for seed in (1, 2)
      ]
      await until(lambda: self.served.api.num_calls == 2)
    await asyncio.gather(*calls)

  def check_tokens(self, played, ends):
    """Lines are the streams of their last calls, and no token is lost."""
    actual = [line.tokens.tolist() for line in played.lines]
    self.assertEqual(actual, [self.streams[n] for n in ends])
    sampled = [turn.sampled.tolist() for turn in played.turns]
    self.assertEqual(
      sampled,
      [
        x[len(x) - len(y) :] for x, y in zip(self.streams, sampled, strict=True)
      ],
    )

  def check_draws(self, played, streams):
    """Lines are these streams, of which those at once come in any order."""
    actual = [line.tokens.tolist() for line in played.lines]
    self.assertCountEqual(actual, streams)

  async def test_each_agent_has_a_line(self):
    plan, write = [PLAN, ASKED], [WRITE, ASKED]
    for _ in range(2):
      plan += [await self.call(plan, extra_headers=role("plan")), ASKED]
      write += [await self.call(write, extra_headers=role("write")), ASKED]
    played = await self.finish(role_rewards={"write": 0.5})
    self.check_tokens(played, [2, 3])
    self.assertEqual([line.role for line in played.lines], ["plan", "write"])
    self.assertEqual([line.numbers for line in played.lines], [(0, 2), (1, 3)])
    self.assertEqual(played.role_rewards, {"write": 0.5})
    numbers = [message["line"] for message in played.transcript]
    self.assertEqual(numbers, [0] * 5 + [1] * 5)

  async def test_a_rewritten_history_departs_from_the_last_answer_shared(self):
    first = await self.call([ASKED])
    second = await self.call([ASKED, first, ASKED])
    cut = {"role": "assistant", "content": "Shortened."}
    await self.call([ASKED, first, ASKED, cut, ASKED])
    played = await self.finish()
    self.check_tokens(played, [1, 2])
    kept, rewritten = (line.tokens.tolist() for line in played.lines)
    shared = len(self.streams[0])
    self.assertEqual(kept[:shared], rewritten[:shared])
    self.assertNotEqual(kept, rewritten)
    self.assertNotIn(second.content, played.transcript[-1]["content"])

  async def test_a_summary_starts_anew(self):
    first = await self.call([ASKED])
    summary = {"role": "user", "content": "So far: 1 + 2."}
    await self.call([summary])
    await self.call([ASKED, first, ASKED])
    self.check_tokens(await self.finish(), [2, 1])

  async def test_two_draws_at_one_history_are_two_lines(self):
    await self.two_draws([ASKED])
    self.check_draws(await self.finish(), self.streams)
    self.assertNotEqual(*self.streams)

  async def test_two_draws_after_an_answer_are_two_lines(self):
    first = await self.call([ASKED])
    await self.two_draws([ASKED, first, ASKED])
    played = await self.finish()
    self.check_draws(played, self.streams[1:])
    self.assertCountEqual([len(line.turns) for line in played.lines], [2, 1])

  async def test_another_agent_that_goes_on_has_a_line_of_its_own(self):
    first = await self.call([ASKED], extra_headers=role("plan"))
    await self.call([ASKED, first, ASKED], extra_headers=role("write"))
    played = await self.finish()
    self.check_tokens(played, [0, 1])
    self.assertEqual([line.role for line in played.lines], ["plan", "write"])
    self.assertEqual([len(line.turns) for line in played.lines], [1, 1])

  async def test_without_seeds_calls_at_once_differ(self):
    with self.served.driver.paused():
      calls = [
        asyncio.create_task(self.call([ASKED], extra_headers=role(name)))
        for name in ("a", "b")
      ]
      await until(lambda: self.served.api.num_calls == 2)
    await asyncio.gather(*calls)
    self.assertNotEqual(*self.streams)
    self.check_draws(await self.finish(), self.streams)

  async def test_a_call_repeated_gets_the_answer_of_its_own_line(self):
    planned = role("plan") | SAME_CALL
    first = await self.call([ASKED], extra_headers=planned)
    await self.call([WRITE, ASKED], extra_headers=role("write"))
    again = await self.call([ASKED], extra_headers=planned)
    self.assertEqual(first, again)
    self.assertEqual(len((await self.finish()).turns), 2)

  async def test_the_same_call_twice_at_once_is_refused(self):
    with self.served.driver.paused():
      first = asyncio.create_task(self.call([ASKED], extra_headers=SAME_CALL))
      await until(lambda: self.served.api.num_calls)
      with self.assertRaises(openai.ConflictError) as caught:
        await self.call([ASKED], extra_headers=SAME_CALL)
      self.assertEqual(caught.exception.code, "episode_busy")
    await first
    self.check_tokens(await self.finish(), [0])

  async def test_a_verdict_waits_for_the_calls(self):
    with self.served.driver.paused():
      first = asyncio.create_task(self.call([ASKED]))
      await until(lambda: self.served.api.num_calls)
      status, reply = await self.post(f"episodes/{self.id}", reward=1)
    self.assertEqual((status, reply["error"]["code"]), (409, "episode_busy"))
    await first
    await self.finish()

  async def test_lines_and_turns_have_limits(self):
    for number in range(4):
      await self.call([{"role": "user", "content": f"Line {number}."}])
    self.assertEqual(
      await self.refused(self.client, [ASKED]), (409, "episode_branched")
    )
    self.check_tokens(await self.finish(), range(4))

  async def test_calls_that_are_being_answered_count_for_the_limits(self):
    for rules, code in (
      (dict(max_lines=4, max_turns=2), "episode_turn_limit"),
      (dict(max_lines=2), "episode_branched"),
    ):
      await self.serve(rules=rules)
      self.playing, self.id, self.client = await self.begin()
      self.streams = []
      with self.served.driver.paused():
        calls = [
          asyncio.create_task(self.call([ASKED], seed=seed)) for seed in (1, 2)
        ]
        await until(lambda: self.served.api.num_calls == 2)
        actual = await self.refused(self.client, [PLAN, ASKED])
        self.assertEqual(actual, (409, code))
      await asyncio.gather(*calls)
      self.check_draws(await self.finish(), self.streams)

  async def test_a_call_that_hung_up_leaves_nothing(self):
    first = await self.call([ASKED])
    stream = await self.say(
      self.client, [ASKED, first, ASKED], stream=True, max_tokens=12
    )
    await anext(aiter(stream))
    await stream.close()
    await until(lambda: not self.served.api.num_calls)
    await self.call([ASKED, first, ASKED], seed=4)
    self.check_tokens(await self.finish(), [1])

  async def test_prompts_of_tokens_have_lines_too(self):
    async def complete(prompt):
      said = await self.client.completions.create(
        model="tiny", prompt=prompt, max_tokens=4, extra_body=IDS
      )
      self.streams.append([*prompt, *said.choices[0].token_ids])

    await complete([5, 6, 7])
    await complete([8, 9])
    await complete([*self.streams[0], 4])
    await complete([*self.streams[1], 4])
    self.check_tokens(await self.finish(), [2, 3])

  async def test_names_that_are_none_are_refused(self):
    for name in ("a b", "ä", "x" * 65, "a,b"):
      with self.assertRaises((openai.BadRequestError, UnicodeEncodeError)):
        await self.call([ASKED], extra_headers=role(name))
    await self.call([ASKED], extra_headers=role("plan"))
    for rewards in ({"write": 1}, {"plan": "much"}, {"plan": float("nan")}):
      status, _ = await self.post(
        f"episodes/{self.id}", reward=1, role_rewards=rewards
      )
      self.assertEqual(status, 400)
    await self.finish()

  async def test_a_role_without_an_episode_is_refused(self):
    async with self.served.client(default_headers=role("plan")) as client:
      status, _ = await self.refused(client, [ASKED])
    self.assertEqual(status, 400)
    await self.call([ASKED])
    await self.finish()


class ClaimTest(Playing):
  """Calls are read in threads, which go on after a client hung up."""

  def episode(self):
    return Episode(
      EpisodeSpec(task=TASK, group_id="g", attempt=0, seed=1),
      EpisodeRules(
        limits=EpisodeLimits(max_turns=4, max_tokens=100, max_answer_tokens=10),
        temperature=1.0,
        idle_timeout_s=9.0,
        max_lines=2,
      ),
      ServingLimits(context=100),
      NEVER,
    )

  async def test_a_call_that_is_over_claims_nothing(self):
    episode = self.episode()
    with episode.calling(b"1") as call:
      pass
    with self.assertRaisesRegex(Exception, "not answered yet"):
      call.prompt([QUESTION], (), talking.codec())
    self.assertIsNone(call.source)

  async def test_a_claim_is_given_back(self):
    episode = self.episode()
    with self.assertRaises(ValueError), episode.calling(b"1") as call:
      call.prompt([QUESTION], (), talking.codec())
      raise ValueError("the engine broke")
    with episode.calling(b"1") as call:
      call.prompt([QUESTION], (), talking.codec())
      self.assertEqual((call.number, call.starts_line), (0, True))
    self.assertEqual((episode.num_turns, episode.num_lines), (0, 0))
