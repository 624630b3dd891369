"""Tests of the toy environments that those of `environments/` have too."""

import pytest

from studies.environments.bandit import Bandit
from studies.environments.frozen_lake import FrozenLake
from studies.environments.pages.environment import Pages
from tests.environments.expert_calls_test import assert_allowed
from tests.environments.scripted_test import ScriptedTestCase

# Policies that win more often than `TRIVIAL_SUCCESS`; the READMEs warn of them.
EASY_TASKS = {
  ("bandit", "constant"),
  ("bandit", "first"),
  ("bandit", "random"),
  ("bandit", "reckoner"),
  ("frozen_lake", "down_then_right"),
  ("frozen_lake", "next_cell"),
  ("frozen_lake", "planner"),
  ("pages", "follow_links"),
}


class ToysTest(ScriptedTestCase):
  async def test_grammars_allow_every_answer(self):
    await assert_allowed([Bandit()])

  @pytest.mark.slow
  async def test_grammars_allow_every_answer_of_the_others(self):
    await assert_allowed([FrozenLake(), Pages()])

  @pytest.mark.slow
  async def test_baselines_rarely_win(self):
    for make in (Bandit, FrozenLake, Pages):
      await self.assert_hard(make(), EASY_TASKS)
