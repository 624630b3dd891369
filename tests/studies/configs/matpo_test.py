"""Tests that MATPO's experiment is what it says: whose context overflows.

Demonstrations without mistakes, as tokens of the run's own tokenizer.
"""

import asyncio
import functools

from absl.testing import absltest, parameterized

from agentrl_jax.controller.player import ExpertPlayer
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import EpisodeSpec, Status, Task
from launch.config.settings import read_settings
from launch.run.demonstrations import make_tokenizer
from launch.run.environments import loaded_environments
from studies.configs import matpo


@functools.cache
def settings():
  return read_settings(matpo.get_config())


@functools.cache
def codec():
  return ChatCodec(
    make_tokenizer(settings(), **matpo.get_config().tokenizer.to_dict())
  )


@functools.cache
def demonstrations(name, form, number=6):
  """Plays tasks that show the form; returns their trajectories."""
  with loaded_environments(settings().environments) as environments:
    player = ExpertPlayer(
      environments=environments,
      codec=codec(),
      limits=settings().episode,
      mistakes=dict.fromkeys(matpo.NUM_STEPS, {}),
      waits=settings().waits,
    )
    tasks = [Task(name, "train", index) for index in range(80)]
    chosen = [t for t in tasks if environments[name].form(t) == form][:number]

    async def play():
      return [
        await player.play(
          EpisodeSpec(task=task, group_id="g", attempt=0, seed=0)
        )
        for task in chosen
      ]

    return asyncio.run(play())


def after_prompt(trajectory):
  return trajectory.num_tokens - len(trajectory.turns[0].observation)


class ContextTest(parameterized.TestCase):
  @parameterized.parameters(
    ("short", "alone", Status.COMPLETED),
    ("long", "alone", Status.AGENT_CONTEXT_LIMIT),
    ("short", "planner", Status.COMPLETED),
    ("long", "planner", Status.COMPLETED),
    ("short", "worker", Status.COMPLETED),
    ("long", "worker", Status.COMPLETED),
  )
  def test_one_context_overflows_in_long_tasks_alone(self, name, form, status):
    played = demonstrations(name, form)
    self.assertLen(played, 6)
    for trajectory in played:
      self.assertIs(trajectory.status, status)

  def test_it_overflows_by_more_than_an_answer(self):
    """Reading the last page is what fails, whatever the answers' lengths."""
    page = len(demonstrations("long", "worker")[0].turns[1].observation)
    limit = settings().episode.max_tokens
    for cut in demonstrations("long", "alone"):
      self.assertLen(cut.turns, matpo.NUM_STEPS["long"])
      self.assertGreater(cut.num_tokens + page, limit + 10)

  def test_an_answer_may_be_repeated_where_the_context_is_enough(self):
    limit = settings().episode.max_tokens
    for name, form in (("short", "alone"), ("long", "planner")):
      for fits in demonstrations(name, form):
        self.assertLess(fits.num_tokens, limit - 30)

  def test_a_worker_answers_beyond_the_planner_s_last_token(self):
    """So that `positional` trains none of the answers."""
    for name in matpo.NUM_STEPS:
      planner = max(map(after_prompt, demonstrations(name, "planner")))
      for worker in demonstrations(name, "worker"):
        before_answer = after_prompt(worker) - len(worker.turns[-1].sampled)
        self.assertGreater(before_answer, planner)


class ArmsTest(absltest.TestCase):
  def test_arms_have_one_reward_rule_and_one_warm_start(self):
    configs = [matpo.get_config(arm) for arm in matpo.ARMS]
    for key in ("episode", "warm_start", "environments", "evaluation"):
      for other in configs[1:]:
        self.assertEqual(configs[0][key].to_dict(), other[key].to_dict())
    for config in configs:
      self.assertEqual(config.advantage.incomplete_reward, 0.0)
