"""Agents of the real `openai` package play, and are recorded to the token."""

import asyncio

import numpy as np
import pytest

from agentrl_jax.controller.cross_policy import CrossPolicy
from agentrl_jax.controller.groups.group import (
  GroupLimits,
  RetryLimits,
  run_group,
)
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.records import Status
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.rollout.openai.episodes.offers import HEADER
from tests.clocks import Clock, until
from tests.rollout import talking
from tests.rollout.openai.agents_playing import (
  ASKED,
  TASK,
  TEMPERATURE,
  WAIT_S,
  Playing,
)

RETRY = {"X-Stainless-Retry-Count": "1"}


class EpisodesTest(Playing):
  async def test_the_record_has_the_sampled_tokens(self):
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
    self.assertEqual(played.lines[0].tokens.tolist(), stream)
    self.assertEqual([t.reward for t in played.turns], [0, 0, 0, 0.5])
    self.assertEqual((played.reward, played.status), (0.5, Status.COMPLETED))
    self.assertEqual(played.metrics, {"success": 1.0})
    self.assertEqual(
      (played.task, played.group_id, played.seed), (TASK, "g", 5)
    )
    self.assertEqual(len(played.transcript), 8)
    self.assertEqual(played.policy_slot_weights, ())

  async def test_what_the_answers_did_is_on_record(self):
    scripted = talking.Scripted()
    await self.serve(generator=scripted, rules={"max_answer_tokens": 60})
    good, bad = ('{"name": "add", "arguments": {}}', '{"name": "add", ')
    scripted.says = [
      f"<tool_call>{good}</tool_call><|end|>",
      f"<tool_call>{bad}</tool_call><|end|>",  # text to the agent
      "three<|end|>",
      "the answer " * 60,
      f"<tool_call>{bad}</tool_call><|end|>",
    ]
    function = {"name": "add", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    playing, id, client = await self.begin()
    messages = [ASKED]
    for _ in range(4):
      said = await self.say(client, messages, tools=tools)
      reply = {"role": "user", "content": "Again."}
      if calls := said.choices[0].message.tool_calls:
        reply = {"role": "tool", "tool_call_id": calls[0].id, "content": "3"}
      messages += [said.choices[0].message, reply]
    turns = (await self.end(playing, id)).turns
    self.assertEqual(
      [turn.calls for turn in turns], [("",), ("malformed JSON",), (), ()]
    )
    self.assertEqual([t.is_cut for t in turns], [False, False, False, True])
    playing = self.offer()
    await self.play(turns=1)  # without tools
    self.assertIsNone((await playing).turns[0].calls)

  async def test_weights_of_the_run_s_draws_are_on_record(self):
    draw = CrossPolicy(draw_per="turn", weights=(0.5, 0.5))
    await self.serve(draw=draw)
    playing = self.offer()
    await self.play(turns=4)
    played = await playing
    self.assertEqual(played.policy_slot_weights, (0.5, 0.5))
    policy_slots = [turn.policy_slot for turn in played.turns]
    self.assertEqual(policy_slots, [draw(5, n) for n in range(4)])
    self.assertEqual(set(policy_slots), {0, 1})

  async def test_no_weights_where_the_agent_named_a_policy_slot(self):
    draw = CrossPolicy(draw_per="turn", weights=(0.5, 0.5))
    await self.serve(draw=draw)
    playing, id, client = await self.begin()
    messages = [ASKED]
    for model in ("tiny@policy_slot1", "tiny"):
      reply = await client.chat.completions.create(
        model=model, messages=messages
      )
      messages += [reply.choices[0].message, ASKED]
    played = await self.end(playing, id)
    self.assertEqual(played.policy_slot_weights, ())

  async def test_a_seed_makes_the_same_attempt_again(self):
    actual = []
    for seed in (5, 5, 6):
      playing = self.offer(seed=seed)
      await self.play(turns=2)
      actual.append((await playing).lines[0].tokens.tolist())
    self.assertEqual(actual[0], actual[1])
    self.assertNotEqual(actual[0], actual[2])

  async def test_streams_and_token_ids_are_recorded_too(self):
    playing, id, client = await self.begin()
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
    played = await self.end(playing, id, status="task limit reached")
    self.assertEqual(played.lines[0].tokens.tolist(), prompt[:-1])
    self.assertEqual([t.policy_slot for t in played.turns], [1, 1])
    self.assertEqual(played.status, Status.TASK_LIMIT_REACHED)

  async def test_a_group_is_played_at_once_and_goes_where_groups_go(self):
    grouped = asyncio.create_task(
      run_group(
        TASK,
        self.served.episodes,
        GroupLimits(size=6, deadline_s=WAIT_S),
        RetryLimits(max_retries=0, backoff_s=0.0),
        Monitor(),
        group_id="g",
        seed=1,
      )
    )
    result = await asyncio.gather(*(self.play() for _ in range(6)))
    group = await grouped
    self.assertEqual(sorted(t.attempt for t in group.trajectories), [*range(6)])
    recorded = {tuple(t.lines[0].tokens) for t in group.trajectories}
    self.assertEqual(recorded, {(*p[-1][0], *p[-1][1]) for p in result})
    self.assertEqual(len(recorded), 6)
    self.assertEqual(self.served.episodes.num_played, 0)

  async def test_one_call_is_sampled_twice_on_purpose(self):
    await self.serve(rules=dict(max_lines=8, max_turns=9))
    playing, id, client = await self.begin()
    # The package says that it repeats nothing; no seed is invented.
    several = await asyncio.gather(
      *(self.say(client, [ASKED], max_tokens=9) for _ in range(3))
    )
    texts = [said.choices[0].message.content for said in several]
    self.assertEqual(len(set(texts)), 3)
    repeated = await self.say(
      client, [ASKED], max_tokens=9, extra_headers=RETRY
    )
    self.assertIn(repeated.choices[0].message.content, texts)
    # A key of one's own goes before the package's count.
    for key, is_new in (("a", True), ("a", False), ("b", True)):
      head = {"Idempotency-Key": key}
      said = await self.say(
        client, [ASKED], max_tokens=9, extra_headers=head | RETRY
      )
      text = said.choices[0].message.content
      self.assertEqual(text not in texts, is_new)
      texts.append(text)
    # Other clients say nothing: the same body is the same call.
    body = dict(model="tiny", messages=[ASKED], max_tokens=8)
    bare = [
      await self.post(f"/episodes/{id}/v1/chat/completions", **body)
      for _ in range(2)
    ]
    self.assertEqual(*[reply["choices"] for _, reply in bare])
    # Best of several: the agent goes on with one of them.
    chosen = several[1].choices[0].message
    await self.say(client, [ASKED, chosen, ASKED], max_tokens=5)
    played = await self.end(playing, id)
    self.assertEqual((len(played.lines), len(played.turns)), (6, 7))

  @pytest.mark.slow
  async def test_a_call_can_be_repeated_after_hanging_up(self):
    playing, id, client = await self.begin()
    stream = await self.say(client, [ASKED], stream=True, max_tokens=12)
    await anext(aiter(stream))
    await stream.close()
    await until(lambda: not self.served.api.num_calls)
    await self.say(client, [ASKED], max_tokens=6)
    await self.post(f"episodes/{id}", reward=0)
    played = await playing
    self.assertEqual([len(t.sampled) for t in played.turns], [6])


class EpisodeEndsTest(Playing):
  async def test_calls_that_do_not_continue_are_refused_by_name(self):
    playing, id, client = await self.begin()
    reply = (await self.say(client, [ASKED])).choices[0].message
    changed = {"role": "user", "content": "What is 3 + 4?"}
    branched = (409, "episode_branched")
    for messages in (
      [changed],
      [ASKED],
      [ASKED, reply],
      [changed, reply, ASKED],
      [ASKED, {"role": "assistant", "content": "No."}, ASKED],
    ):
      actual = await self.refused(client, messages, max_tokens=3)
      self.assertEqual(actual, branched)
    self.assertEqual(
      await self.refused(client, [ASKED, reply, ASKED], n=2),
      (400, "unsupported_value"),
    )
    for fields in (dict(temperature=0.2), dict(top_p=0.9)):
      self.assertEqual(
        await self.refused(client, [ASKED, reply, ASKED], **fields),
        (400, "unsupported_value"),
      )
    tool = {"type": "function", "function": {"name": "f", "description": "g"}}
    self.assertEqual(
      await self.refused(client, [ASKED, reply, ASKED], tools=[tool]),
      (409, "episode_tools_changed"),
    )
    await self.say(client, [ASKED, reply, ASKED], temperature=TEMPERATURE)
    self.assertEqual(len((await self.end(playing, id)).turns), 2)

  async def test_two_calls_at_once_are_refused(self):
    *_, client = await self.begin()
    with self.served.driver.paused():
      first = asyncio.create_task(self.say(client, [ASKED], max_tokens=3))
      await until(lambda: self.served.api.num_calls)
      actual = await self.refused(client, [ASKED], max_tokens=4)
      self.assertEqual(actual, (409, "episode_busy"))
    await first

  async def test_limits_end_an_episode(self):
    await self.serve(rules=dict(max_turns=2, max_tokens=100))
    playing, id, client = await self.begin()
    messages = [ASKED]
    for _ in range(2):
      reply = await self.say(client, messages, max_tokens=500)
      self.assertLessEqual(reply.usage.completion_tokens, 12)
      messages += [reply.choices[0].message, ASKED]
    self.assertEqual(
      await self.refused(client, messages), (409, "episode_turn_limit")
    )
    await self.end(playing, id)
    *_, client = await self.begin()
    long = {"role": "user", "content": "x" * 120}
    self.assertEqual(
      await self.refused(client, [long]), (400, "context_length_exceeded")
    )

  async def test_an_agent_that_is_gone_is_a_fault_of_its_environment(self):
    await self.serve(rules=dict(idle_timeout_s=600.0))
    playing, id, client = await self.begin()
    clock = Clock()
    await clock.forward(500.0)
    await self.refused(client, [ASKED], n=2)
    await clock.forward(500.0)  # a call starts the time again
    self.assertFalse(playing.done())
    await clock.forward(101.0)
    with self.assertRaisesRegex(EnvironmentFault, "agents.idle_timeout_s=600"):
      await playing
    self.assertEqual(self.served.episodes.counts["abandoned"], 1)
    self.assertEqual(
      await self.refused(client, [ASKED]), (410, "episode_ended")
    )
    status, reply = await self.post(f"episodes/{id}", reward=1)
    self.assertEqual((status, reply["error"]["code"]), (410, "episode_ended"))

  async def test_giving_up_at_a_limit_is_the_policy_s_doing(self):
    """Else it would learn to be cut where it expects a low reward."""
    cut, whole, long = "the answer " * 9, "three<|end|>", "x" * 500
    blamed, spared = Status.AGENT_CONTEXT_LIMIT, Status.CANCELLED
    for says, refused, status, expected in (
      ([cut], "", spared, blamed),
      ([whole, cut], "", spared, blamed),
      ([cut, whole], "", spared, spared),  # the agent went on
      ([whole], "", spared, spared),
      ([whole], long, spared, blamed),
      ([], long, spared, spared),  # the task's own text is too long
      ([whole] * 3, "4", spared, Status.TASK_LIMIT_REACHED),
      ([cut], "", Status.TASK_ERROR, Status.TASK_ERROR),  # it names the culprit
      ([cut], "", Status.COMPLETED, Status.COMPLETED),
      ([cut], "", None, blamed),  # it is gone
    ):
      with self.subTest(says=says, refused=refused[:1], status=status):
        scripted = talking.Scripted()
        scripted.says = list(says)
        rules = dict(max_lines=4, max_turns=3)
        await self.serve(generator=scripted, rules=rules)
        playing, id, client = await self.begin()
        for n in range(len(says)):
          await self.say(client, [ASKED] * (n + 1))
        if refused:
          await self.refused(client, [{"role": "user", "content": refused}])
        if status is None:
          await Clock().forward(601.0)
        for _ in range(2 * bool(status)):  # the answer may have been lost
          body = dict(reward=1, status=status.value, error="too long")
          _, reply = await self.post(f"episodes/{id}", **body)
          self.assertEqual(reply["status"], expected.value)
        played = await playing
        self.assertEqual(
          (played.status, len(played.turns)), (expected, len(says))
        )
        is_masked = not expected.is_policys_doing
        self.assertEqual("too long" in played.fault, is_masked)
        is_scored = not is_masked and expected is not status
        self.assertEqual(played.reward, not is_scored)
        self.assertEqual(self.served.episodes.counts["cut"], is_scored)
        actual, _ = await self.post(f"episodes/{id}", reward=2)
        self.assertEqual(actual, 410)

  async def test_a_call_beside_a_cut_answer_does_not_undo_it(self):
    class Gated(talking.Scripted):
      async def generate(self, prompt, spec):
        is_first = not self.prompts
        answer = await super().generate(prompt, spec)
        if is_first:
          await gate.wait()
        return answer

    gate, scripted = asyncio.Event(), Gated()
    scripted.says = ["three<|end|>", "the answer " * 9]
    await self.serve(generator=scripted, rules=dict(max_lines=2))
    playing, id, client = await self.begin()
    slow = asyncio.create_task(self.say(client, [ASKED]))
    await until(lambda: scripted.prompts)
    await self.say(client, [ASKED, ASKED])
    gate.set()
    self.assertEqual((await slow).choices[0].finish_reason, "stop")
    played = await self.end(playing, id, status="cancelled")
    self.assertIs(played.status, Status.AGENT_CONTEXT_LIMIT)

  async def test_a_fault_has_what_the_agent_and_its_program_said(self):
    self.served.episodes._last_lines = lambda: "ValueError: no such page"
    for said, expected in (
      ("page 7 is gone", "'page 7 is gone'"),
      ("", "no `"),
    ):
      playing, id, client = await self.begin()
      body = dict(status="cancelled", error=said)
      fault = (await self.end(playing, id, **body)).fault
      self.assertRegex(fault, f"gave {expected}.*; 0 calls.*\\n.*no such page")
    with self.assertLogs("agentrl_jax.rollout.openai", "WARNING") as logs:
      for _ in range(2):  # the first is enough
        playing, id, client = await self.begin()
        await self.say(client, [ASKED], max_tokens=3)
        await self.end(playing, id, **body)
    (line,) = logs.output
    self.assertRegex(line, r"cut after 3 tokens \(episode.max_answer_tokens=12")

  async def test_an_offer_that_is_taken_back_is_not_taken(self):
    playing = self.offer()
    await asyncio.sleep(0)
    self.assertEqual(self.served.episodes.num_offered, 1)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    self.assertEqual(await self.post("episodes", wait_s=0), (204, None))

  async def test_closing_tells_who_waits_and_hands_nothing_out(self):
    waiting = asyncio.create_task(self.post("episodes", wait_s=WAIT_S))
    await until(lambda: self.served.episodes._changed._waiters)
    await self.served.episodes.close()
    self.assertEqual(await waiting, (204, None))
    self.offer()
    self.assertEqual(await self.post("episodes", wait_s=WAIT_S), (204, None))

  async def test_agents_that_cannot_go_on_end_every_wait(self):
    offered, (taken, *_) = self.offer(1), await self.begin()
    self.served.episodes.fail(ConfigError("no such program"))
    for playing in (offered, taken, self.offer(2)):
      with self.assertRaisesRegex(ConfigError, "no such program"):
        await asyncio.wait_for(playing, WAIT_S)

  async def test_servers_without_episodes_refuse_them(self):
    await self.serve(records=False)
    for status, reply in (
      await self.post("episodes", wait_s=0),
      await self.post("episodes/any", reward=1),
    ):
      self.assertEqual(
        (status, reply["error"]["code"]), (404, "no_episodes_here")
      )
    client = self.served.client(default_headers={HEADER: "any"})
    await self.enterAsyncContext(client)
    actual = await self.refused(client, [ASKED])
    self.assertEqual(actual, (404, "no_episodes_here"))

  async def test_ends_that_are_none_are_refused(self):
    _, id, _ = await self.begin()
    for body, code in (
      (dict(reward=1), "episode_empty"),
      (dict(reward="much"), "invalid_value"),
      (dict(), "missing_required_parameter"),
      (dict(reward=0, status="running"), "invalid_value"),
      (dict(reward=0, metrics={"a": "b"}), "invalid_value"),
      (dict(reward=0, metrics={"a": 1e39}), "invalid_value"),
      (dict(reward=0, metrics={"a": 10**400}), "invalid_value"),
      (dict(reward=0, role_rewards={"a": -1e39}), "invalid_value"),
      (dict(reward=0, score=1), "unknown_parameter"),
    ):
      status, reply = await self.post(f"episodes/{id}", **body)
      self.assertEqual((status >= 400, reply["error"]["code"]), (True, code))
    status, reply = await self.post("episodes/nobody", reward=1)
    self.assertEqual(
      (status, reply["error"]["code"]), (404, "episode_not_found")
    )
