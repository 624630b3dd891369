"""Whole objectives, as configs name them, make an update."""

import dataclasses

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.model.policy import Policy
from configs.ablations import objectives
from launch.config.settings import read_settings
from tests.train import small


class ObjectivesTest(parameterized.TestCase):
  # One of each way through the code; `settings_test` reads them all.
  @parameterized.parameters("cispo", "decoupled", "turn_ppo")
  def test_makes_an_update(self, arm):
    self.require_update(arm)

  @parameterized.parameters("agentrl", "gspo_token", "pass_at_k")
  @pytest.mark.full
  def test_others_make_an_update_too(self, arm):
    self.require_update(arm)

  def require_update(self, arm):
    settings = read_settings(objectives.get_config(arm))
    loss = dataclasses.replace(settings.loss, token_chunk=8)
    model = dataclasses.replace(
      small.MODEL, value_head=settings.model.value_head
    )
    # Half of the four attempts that there are.
    teams = min(settings.advantage.k, 2)
    advantage = dataclasses.replace(settings.advantage, k=teams)
    preparation = small.make_preparation(
      model=model, loss=loss, advantage=advantage
    )
    policy, learner = small.make_learner(model=model, loss=loss)
    params = Policy(model).init(jax.random.key(0))
    state = learner.init(params)
    groups = small.make_groups(full_marks=True)
    lessons, report = preparation.lessons(groups, state.params)
    self.assertGreater(report["batch/trained_tokens"], 20)
    state, metrics = learner.update(state, lessons)
    for name, value in metrics.items():
      self.assertTrue(np.isfinite(value), name)
    moved = jax.tree.map(
      lambda a, b: np.abs(a - b).max() > 0, state.params, params
    )
    self.assertTrue(moved["layers"]["attention"]["q"]["kernel"])
    if model.value_head:
      self.assertTrue(moved["critic"]["bias"])


if __name__ == "__main__":
  absltest.main()
