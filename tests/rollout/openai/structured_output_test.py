"""Structured output requested with the real `openai` package.

The policy is random, so a well-formed answer is due to its grammar.
"""

import json
from typing import Literal

import numpy as np
import openai
import pydantic
import pytest

from agentrl_jax.data.records import tool_from_json
from tests.data.grammar import call_grammars
from tests.rollout import talking
from tests.rollout.openai.agents_playing import TEMPERATURE, Playing
from tests.rollout.openai.chatting import ASKED, Asking

COLOURS = ["red", "green"]


def function(name, schema, **more):
  described = {"name": name, "parameters": {"type": "object", **schema}, **more}
  return {"type": "function", "function": described}


PAINT = function(
  "paint",
  {
    "properties": {
      "colour": {"enum": COLOURS},
      "coats": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["colour"],
  },
)
STOP = function("stop", {})
TOOLS = [PAINT, STOP]
NAMED = {"type": "function", "function": {"name": "stop"}}


class Picture(pydantic.BaseModel):
  """Schema of an answer in JSON."""

  colour: Literal["red", "green"]
  is_dry: bool


def allowed(mode, *names):
  tools = [{"type": "function", "function": {"name": name}} for name in names]
  return {
    "type": "allowed_tools",
    "allowed_tools": {"mode": mode, "tools": tools},
  }


def strict(tool):
  return {**tool, "function": {**tool["function"], "strict": True}}


class CallsTest(Asking):
  async def asyncSetUp(self):
    self.served = await self.enterAsyncContext(talking.Talking())

  async def test_a_call_has_the_grammar_of_what_it_asks_for(self):
    both, stop = (
      [tool_from_json(tool) for tool in tools] for tools in (TOOLS, [STOP])
    )
    write = talking.codec().call_grammar
    for fields, grammar in (
      (dict(tools=[PAINT, strict(STOP)]), write(both)),
      (dict(parallel_tool_calls=False), write(both, parallel=False)),
      (dict(tool_choice=allowed("auto", "paint", "stop")), write(both)),
      (dict(tool_choice="required"), write(both, choice="required")),
      (
        dict(tool_choice="required", parallel_tool_calls=False),
        write(both, choice="required", parallel=False),
      ),
      (dict(tool_choice=NAMED), write(stop, choice="required", parallel=False)),
      (
        dict(tool_choice=allowed("required", "stop")),
        write(stop, choice="required"),
      ),
    ):
      policy = talking.Scripted()
      policy.says = ["No.<|end|>"]
      served = await self.enterAsyncContext(talking.Talking(generator=policy))
      reply = await served.openai.chat.completions.create(
        model="tiny", messages=[ASKED], **dict(tools=TOOLS) | fields
      )
      self.assertEqual(reply.choices[0].message.content, "No.")
      self.assertEqual([spec.grammar for spec in policy.specs], [grammar])

  async def test_plain_calls_have_no_grammar(self):
    policy = talking.Scripted()
    served = await self.enterAsyncContext(talking.Talking(generator=policy))
    asked = (
      dict(tools=TOOLS),
      dict(tools=[strict(STOP)], tool_choice="none"),
      dict(parallel_tool_calls=False),
      dict(response_format={"type": "text"}, tools=TOOLS),
    )
    for fields in asked:
      policy.says = ["No.<|end|>"]
      await served.openai.chat.completions.create(
        model="tiny", messages=[ASKED], **fields
      )
    self.assertEqual([s.grammar for s in policy.specs], [""] * len(asked))

  async def test_logprobs_are_of_both_distributions(self):
    reply = await self.ask(
      [ASKED], tools=TOOLS, tool_choice=NAMED, max_tokens=200
    )
    (choice,) = reply.choices
    prompt = reply.prompt_token_ids
    raw = talking.raw_logprobs(10, prompt + choice.token_ids)
    np.testing.assert_allclose(
      choice.raw_logprobs, raw[len(prompt) - 1 :], atol=1e-5
    )
    behavior = np.array(choice.behavior_logprobs)
    self.assertTrue((behavior >= np.array(choice.raw_logprobs) - 1e-5).all())
    self.assertEqual(behavior[0], 0)  # <tool_call>, and nothing else

  async def test_an_answer_cut_short_is_text(self):
    (choice,) = (
      await self.ask([ASKED], tools=TOOLS, tool_choice=NAMED, max_tokens=5)
    ).choices
    self.assertEqual(choice.finish_reason, "length")
    self.assertIsNone(choice.message.tool_calls)
    self.assertIn("<tool_call>", choice.message.content)

  async def test_unsupported_fields_are_named(self):
    odd = {"properties": {"a": {"type": "text", "pattern": "(?!b)"}}}
    tools = [function("odd", odd), strict(STOP)]  # only one is promised
    for choice in ("auto", "required"):
      await self.ask([ASKED], tools=tools, tool_choice=choice, max_tokens=5)
    named = dict(tools=TOOLS, tool_choice=NAMED)
    an_object = {"type": "json_object"}
    for param, fields in (
      ("tool_choice", dict(tool_choice="required")),
      ("tool_choice", dict(tools=TOOLS, tool_choice="often")),
      ("tool_choice", dict(tools=[PAINT], tool_choice=NAMED)),
      ("tool_choice", dict(tools=TOOLS, tool_choice=allowed("auto"))),
      ("tool_choice", dict(tools=TOOLS, tool_choice=allowed("none", "stop"))),
      ("tools", dict(tools=[strict(function("odd", odd))])),
      ("tools[0].strict", dict(tools=[function("f", {}, strict=1)])),
      ("ignore_eos", named | dict(extra={"ignore_eos": True})),
      ("response_format", dict(response_format={"type": "xml"})),
      ("response_format", dict(response_format={"type": "json_schema"})),
      ("response_format", dict(response_format=an_object, tools=TOOLS)),
    ):
      with self.subTest(fields), self.assertRaises(openai.BadRequestError) as e:
        await self.ask([ASKED], **fields)
      self.assertEqual(e.exception.param, param)
      self.assertEqual(e.exception.type, "invalid_request_error")


class JsonTest(Asking):
  async def asyncSetUp(self):
    self.served = await self.enterAsyncContext(talking.Talking())

  async def test_an_answer_is_what_a_model_of_pydantics_says(self):
    reply = await self.served.openai.chat.completions.parse(
      model="tiny", messages=[ASKED], response_format=Picture, n=4, seed=1
    )
    for choice in reply.choices:
      self.assertIsInstance(choice.message.parsed, Picture)
    self.assertEqual({c.finish_reason for c in reply.choices}, {"stop"})

  @pytest.mark.slow
  async def test_an_answer_is_an_object(self):
    reply = await self.ask(
      [ASKED],
      response_format={"type": "json_object"},
      tools=TOOLS,
      tool_choice="none",
      n=8,
    )
    ended = [c for c in reply.choices if c.finish_reason == "stop"]
    self.assertTrue(ended)
    for choice in ended:
      self.assertIsInstance(json.loads(choice.message.content), dict)


class EpisodesTest(Playing):
  async def test_a_turn_says_which_grammar_it_followed(self):
    playing, id, client = await self.begin()
    reply = await self.say(client, [ASKED], tools=TOOLS, tool_choice=NAMED)
    message = reply.choices[0].message.model_dump(exclude_none=True)
    await self.say(client, [ASKED, message, ASKED], tools=TOOLS)
    first, second = (await self.end(playing, id)).turns
    stop = tool_from_json(STOP)
    self.assertEqual(
      first.grammar,
      talking.codec().call_grammar([stop], choice="required", parallel=False),
    )
    self.assertEqual(second.grammar, "")
    self.assertIn("<tool_call>", talking.codec().decode(first.sampled))

  async def test_a_turn_has_the_log_probabilities_that_the_learner_finds(self):
    playing, id, client = await self.begin()
    await self.say(client, [ASKED], tools=TOOLS, tool_choice="required")
    (turn,) = (await self.end(playing, id)).turns
    logits_TV = talking.logits(10, [*turn.observation, *turn.sampled])
    logits_AV = logits_TV[len(turn.observation) - 1 :]
    masks_AW = talking.grammars().masks(turn.grammar, turn.sampled)
    allowed_AV = call_grammars.bits_of(masks_AW)[:, : logits_AV.shape[1]]
    masked_AV = np.where(allowed_AV, logits_AV, -np.inf) / TEMPERATURE
    np.testing.assert_allclose(
      turn.behavior_logprob,
      talking.logprobs_of(masked_AV, turn.sampled),
      atol=1e-5,
    )
    np.testing.assert_allclose(
      turn.raw_logprob, talking.logprobs_of(logits_AV, turn.sampled), atol=1e-5
    )
