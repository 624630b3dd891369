"""Tests that the StarPO arms' tokens are those of its tasks."""

import asyncio

from absl.testing import absltest

from agentrl_jax.data.records import Task
from agentrl_jax.env.loading import load_environment
from studies.configs import starpo
from studies.environments.bandit.environment import NAMES
from tests.environments.playing import play_answers


async def _first_texts(config, name):
  entry = config.environments[name]
  environment = load_environment(entry.target, entry.options.to_dict())
  texts = []
  for index in range(8):
    task = Task(environment.name, "train", index)
    (step,) = await play_answers(environment, task)
    texts += [message.content for message in step.messages]
  return texts


class StarpoTest(absltest.TestCase):
  def test_whole_tokens_are_in_the_texts(self):
    config = starpo.get_config()
    texts = "".join(
      text
      for name in config.tasks.names
      for text in asyncio.run(_first_texts(config, name))
    )
    of_calls = [token for token in starpo.WHOLE_TOKENS if '"' in token]
    self.assertLen(of_calls, 3)
    others = {*starpo.WHOLE_TOKENS} - {*of_calls} - {*starpo.NAMES}
    self.assertLen(others, 5)
    for token in others:
      self.assertIn(token, texts)

  def test_names_are_those_of_the_machines(self):
    self.assertEqual(starpo.NAMES, NAMES)
    self.assertContainsSubset(NAMES, starpo.WHOLE_TOKENS)

  def test_the_better_machine_is_risky_in_one_bandit_alone(self):
    config = starpo.get_config()
    chances = {
      name: config.environments[name].options.chance
      for name in ("bandit", "lucky")
    }
    self.assertGreater(chances["bandit"], 0.1)
    self.assertLess(chances["lucky"], 0.1)
