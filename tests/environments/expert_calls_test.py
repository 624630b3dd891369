"""What experts answer is what the grammars of their tools' calls allow."""

import unittest

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.trajectory import Status, Task
from environments.alfworld.environment import ALFWorld
from environments.arithmetic.environment import Arithmetic
from environments.dbbench.environment import DBBench
from environments.knowledgegraph.environment import KnowledgeGraph
from environments.webshop.environment import WebShop
from tests.data.chat import families
from tests.data.chat.family_template_test import codec_of
from tests.data.grammar import call_grammars

NUM_TASKS = 3


def codecs():
  yield ChatCodec(train_tokenizer(families.TEXTS, vocab_size=300))
  yield from (codec_of(f"small_{name}") for name in families.SMALL)


async def answers_of(environment):
  """Everything that its expert says, each with the tools that it has."""
  for index in environment.indices("train")[:NUM_TASKS]:
    task = Task(environment.name, "train", index)
    expert = environment.expert(task, seed=0, mistakes={})
    async with environment.open(task, seed=0) as session:
      step = await session.reset()
      while step.status is Status.RUNNING:
        answer = expert.answer(step.messages)
        yield answer, session.tools
        step = await session.step(answer)


class ExpertCallsTest(unittest.IsolatedAsyncioTestCase):
  async def test_every_answer_is_allowed(self):
    for environment in (
      Arithmetic(),
      ALFWorld(),
      DBBench(),
      KnowledgeGraph(),
      WebShop(),
    ):
      said = [pair async for pair in answers_of(environment)]
      await environment.close()
      self.assertTrue(any(answer.tool_calls for answer, _ in said))
      for codec in codecs():
        read = codec.grammars(codec.vocab_size)
        for answer, tools in said:
          choice = "required" if answer.tool_calls else "auto"
          grammar = codec.call_grammar(tools, choice=choice)
          self.assertTrue(
            call_grammars.allows(read, grammar, codec.write(answer)),
            (environment.name, answer),
          )


if __name__ == "__main__":
  unittest.main()
