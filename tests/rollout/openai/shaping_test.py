"""Penalties, biases and alternatives, requested with the `openai` package."""

import math

import numpy as np
import openai
import pytest

from tests.rollout import talking
from tests.rollout.openai.agents_playing import ASKED, Playing
from tests.rollout.openai.chatting import IDS
from tests.rollout.openai.structured_output_test import PAINT

PROCESSED = {"logprobs_mode": "processed_logprobs"}


def texts(ids):
  return [talking.codec().decode([id]) for id in ids]


class OpenAIShapingTest(Playing):
  async def ask(self, *, extra=(), **fields):
    settings = dict(seed=3, max_tokens=12, model=talking.NAME) | fields
    return await self.served.openai.chat.completions.create(
      messages=[ASKED], extra_body=IDS | dict(extra), **settings
    )

  def expected(self, reply, n, **settings):
    """Returns log-probabilities of all tokens at each place, raw and drawn."""
    choice = reply.choices[n]
    tokens = reply.prompt_token_ids + choice.token_ids
    raw_TV = talking.logits(10, tokens)[-len(choice.token_ids) :]
    drawn_TV = raw_TV.astype(np.float64)
    for place, _ in enumerate(choice.token_ids):
      for token in set(choice.token_ids[:place]):
        count = choice.token_ids[:place].count(token)
        drawn_TV[place, token] -= settings.get("frequency_penalty", 0) * count
        drawn_TV[place, token] -= settings.get("presence_penalty", 0)
    for token, bias in settings.get("logit_bias", {}).items():
      drawn_TV[:, int(token)] += bias
    drawn_TV /= settings.get("temperature", 1)
    return [
      x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (raw_TV, drawn_TV)
    ]

  async def test_each_choice_has_counts_and_alternatives_of_its_own(self):
    settings = dict(
      frequency_penalty=1.5,
      presence_penalty=-0.5,
      logit_bias={"65": 3, "70": 2.5, "81": 0},
      temperature=0.8,
    )
    for mode, extra in enumerate(({}, PROCESSED)):
      reply = await self.ask(
        **settings, n=3, logprobs=True, top_logprobs=20, extra=extra
      )
      for n, choice in enumerate(reply.choices):
        actual = self.expected(reply, n, **settings)
        for place, token in enumerate(choice.logprobs.content):
          logprob_V = actual[mode][place]
          chosen = choice.token_ids[place]
          self.assertAlmostEqual(token.logprob, logprob_V[chosen], places=3)
          best = np.argsort(-logprob_V, kind="stable")[:20]
          np.testing.assert_allclose(
            [top.logprob for top in token.top_logprobs],
            logprob_V[best],
            atol=1e-3,
          )
          self.assertEqual(token.top_logprobs[0].token, texts(best)[0])
      drawn = [x for c in reply.choices for x in c.behavior_logprobs]
      rows = [self.expected(reply, n, **settings)[1] for n in range(3)]
      target = [
        row[place, token]
        for row, choice in zip(rows, reply.choices, strict=True)
        for place, token in enumerate(choice.token_ids)
      ]
      np.testing.assert_allclose(drawn, target, atol=1e-3)

  @pytest.mark.slow
  async def test_a_stream_has_the_same(self):
    settings = dict(
      presence_penalty=2, temperature=0.7, logprobs=True, top_logprobs=3
    )
    whole = (await self.ask(**settings)).choices[0].logprobs.content
    stream = await self.ask(**settings, stream=True)
    pieces = [
      token
      async for chunk in stream
      if chunk.choices and chunk.choices[0].logprobs
      for token in chunk.choices[0].logprobs.content
    ]
    self.assertEqual(
      [token.model_dump() for token in pieces],
      [token.model_dump() for token in whole],
    )

  async def test_completions_have_theirs(self):
    reply = await self.served.openai.completions.create(
      model=f"{talking.NAME}@policy_slot1",
      prompt="the",
      max_tokens=6,
      logprobs=5,
      seed=1,
      frequency_penalty=0.1,
    )
    actual = reply.choices[0].logprobs
    for text, logprob, top in zip(
      actual.tokens, actual.token_logprobs, actual.top_logprobs, strict=True
    ):
      self.assertIn(text, top)
      self.assertLessEqual(len(top), 6)
      self.assertGreaterEqual(max(top.values()), logprob)
    unknown = {str(talking.codec().vocab_size): 1}
    for fields, named in (
      (dict(logprobs=6), "from 0 to 5"),
      (dict(logit_bias=unknown), "logit_bias"),
    ):
      with self.assertRaisesRegex(openai.BadRequestError, named):
        await self.served.openai.completions.create(
          model=talking.NAME, prompt="the", **fields
        )

  async def test_tokens_without_probability_are_left_out(self):
    """Greedy decoding and JSON have no place for minus infinity."""
    reply = await self.ask(
      temperature=0, logprobs=True, top_logprobs=4, extra=PROCESSED
    )
    for token in reply.choices[0].logprobs.content:
      self.assertEqual([top.logprob for top in token.top_logprobs], [0.0])
      self.assertEqual(token.top_logprobs[0].token, token.token)
      self.assertTrue(math.isfinite(token.logprob))

  @pytest.mark.slow
  async def test_a_bias_works_within_a_grammar_and_not_against_it(self):
    colours = {"red": {"r": 100.0, "g": 0.0}, "green": {"r": 0.0, "g": 100.0}}
    for target, biases in colours.items():
      bias = {
        str(talking.tokenizer().token_to_id(letter)): x
        for letter, x in biases.items()
      }
      reply = await self.ask(
        tools=[PAINT],
        tool_choice={"type": "function", "function": {"name": "paint"}},
        max_tokens=120,
        logit_bias=bias | {str(id): -100 for id in talking.codec().stop_tokens},
        frequency_penalty=0.5,
        logprobs=True,
        top_logprobs=5,
        extra=PROCESSED,
      )
      self.assertEqual(reply.choices[0].finish_reason, "tool_calls")
      (call, *_) = reply.choices[0].message.tool_calls
      self.assertIn(f'"{target}"', call.function.arguments)
      for token in reply.choices[0].logprobs.content:
        total = sum(math.exp(top.logprob) for top in token.top_logprobs)
        self.assertLess(total, 1.001)
        self.assertGreater(len(token.top_logprobs), 0)

  @pytest.mark.slow
  async def test_an_episode_is_drawn_from_the_policy_alone(self):
    playing, id, client = await self.begin()
    for name, value in (
      ("frequency_penalty", 0.5),
      ("presence_penalty", 0.5),
      ("logit_bias", {"5": 1}),
    ):
      with self.assertRaisesRegex(openai.BadRequestError, name) as caught:
        await self.say(client, [ASKED], **{name: value})
      self.assertEqual(caught.exception.param, name)
      self.assertIn("what the learner computes", str(caught.exception))
    # Alternatives are only told, and told again if the answer was lost.
    fields = dict(
      logprobs=True, top_logprobs=3, max_tokens=4, frequency_penalty=0
    ) | {"extra_headers": {"Idempotency-Key": "call-1"}}
    first = await self.say(client, [ASKED], **fields)
    again = await self.say(client, [ASKED], **fields)
    self.assertEqual(first.choices, again.choices)
    tops = [len(t.top_logprobs) for t in first.choices[0].logprobs.content]
    self.assertEqual(set(tops), {3})
    (turn,) = (await self.end(playing, id)).turns
    self.assertEqual(len(turn.sampled), len(tops))
