"""Tests that grammars of tool calls allow all answers of the experts."""

import unittest

import pytest

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.records import Status, Task
from environments.alfworld.environment import ALFWorld
from environments.arithmetic.environment import Arithmetic
from environments.dbbench.environment import DBBench
from environments.knowledgegraph.environment import KnowledgeGraph
from environments.webshop.environment import WebShop
from tests.data.chat import families
from tests.data.chat.family_template_test import codec_of
from tests.data.grammar import call_grammars

ENVIRONMENTS = (Arithmetic, ALFWorld, DBBench, KnowledgeGraph, WebShop)
NUM_TASKS = 3


def codecs():
  yield ChatCodec(train_tokenizer(families.TEXTS, vocab_size=300))
  yield from (codec_of(f"small_{name}") for name in families.WITH_GRAMMARS)


async def answers_of(environment):
  """Yields every answer of the expert with the tools of that moment."""
  for index in environment.indices("train")[:NUM_TASKS]:
    task = Task(environment.name, "train", index)
    expert = environment.expert(task, seed=0, mistakes={})
    async with environment.open(task, seed=0) as session:
      step = await session.reset()
      while step.status is Status.RUNNING:
        answer = expert.answer(step.messages)
        yield answer, session.tools
        step = await session.step(answer)


async def assert_allowed(environments):
  """Asserts that grammars allow what experts answer."""
  for environment in environments:
    answers = [pair async for pair in answers_of(environment)]
    await environment.close()
    assert any(answer.tool_calls for answer, _ in answers)
    for codec in codecs():
      grammars = codec.grammars(codec.vocab_size)
      for answer, tools in answers:
        choice = "required" if answer.tool_calls else "auto"
        grammar = codec.call_grammar(tools, choice=choice)
        assert call_grammars.allows(grammars, grammar, codec.write(answer)), (
          environment.name,
          answer,
        )


class ExpertCallsTest(unittest.IsolatedAsyncioTestCase):
  async def test_grammars_allow_every_answer_of_arithmetic(self):
    await assert_allowed([Arithmetic()])

  @pytest.mark.slow
  async def test_grammars_allow_every_answer(self):
    await assert_allowed(make() for make in ENVIRONMENTS)
