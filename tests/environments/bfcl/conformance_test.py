"""Compares verdicts with BFCL's own checker, on gold runs and on wrong ones."""

import collections
import random
import unittest

import pytest

from agentrl_jax.data.records import Status, Task
from environments.bfcl import BFCL
from environments.bfcl.calls import Call
from environments.bfcl.expert import MISTAKES, GoldExpert, gold_calls
from environments.bfcl.suite import CATEGORIES
from tests.environments.bfcl import upstream
from tests.environments.bfcl.packages import require_packages
from tests.environments.playing import play_with


class GoldTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    require_packages()
    self.environment = BFCL()

  @pytest.mark.slow
  async def test_every_gold_run_scores_one(self):
    for category in CATEGORIES:
      indices = self.environment.indices(category)
      self.assertEqual(len(indices), 200)
      for index in indices:
        task = Task("bfcl", category, index)
        expert = self.environment.expert(task, seed=0, mistakes={})
        _, steps, _ = await play_with(self.environment, task, expert)
        with self.subTest(task=task):
          self.assertEqual(
            (steps[-1].status, steps[-1].reward), (Status.COMPLETED, 1.0)
          )

  async def test_one_call_per_answer_scores_one(self):
    for category in CATEGORIES:
      for index in range(0, 200, 10):
        task = Task("bfcl", category, index)
        problem = self.environment.find(task)
        expert = _OneByOne(gold_calls(problem))
        _, steps, answers = await play_with(self.environment, task, expert)
        with self.subTest(task=task):
          self.assertEqual(steps[-1].reward, 1.0)
          self.assertIsNone(upstream.verdict(problem, answers))


class MutatedTest(unittest.IsolatedAsyncioTestCase):
  """Runs with a mistake or a needless call."""

  def setUp(self):
    require_packages()
    self.environment = BFCL()

  @pytest.mark.slow
  async def test_verdicts_equal_upstreams(self):
    await self._compare(range(0, 200, 10), seeds=(0,))

  @pytest.mark.full
  async def test_verdicts_equal_upstreams_on_all_tasks(self):
    await self._compare(range(200), seeds=range(5))

  async def _compare(self, indices, seeds):
    verdicts = collections.Counter()
    for category in CATEGORIES:
      for index in indices:
        task = Task("bfcl", category, index)
        problem = self.environment.find(task)
        for mistake, seed in ((m, s) for m in _MISTAKES for s in seeds):
          expert = _expert(self.environment, task, mistake, seed)
          session, steps, answers = await play_with(
            self.environment, task, expert
          )
          expected = upstream.verdict(problem, answers)
          with self.subTest(task=task, mistake=mistake, seed=seed):
            verdict = session.failure and session.failure.value
            self.assertEqual(verdict, expected)
            self.assertEqual(steps[-1].reward, float(expected is None))
          verdicts[mistake, expected] += 1
    self._check_spread(verdicts)

  def _check_spread(self, verdicts):
    """Checks that every verdict occurred, and that most runs were wrong."""
    self.assertEqual(
      {verdict for _, verdict in verdicts},
      {
        None,
        "empty_turn_model_response",
        "instance_state_mismatch",
        "execution_response_mismatch",
      },
    )
    for mistake in _MISTAKES:
      runs = {v: n for (m, v), n in verdicts.items() if m == mistake}
      wrong = sum(n for v, n in runs.items() if v is not None)
      with self.subTest(mistake=mistake):
        self.assertGreater(wrong / sum(runs.values()), 0.6, runs)


_EXTRA_CALL = "extra_call"  # gold and then calls that change the state
_MISTAKES = (*MISTAKES, _EXTRA_CALL)
_STATE_CHANGES = {  # one call for each class
  "GorillaFileSystem": ("touch", (), {"file_name": "unasked.txt"}),
  "MathAPI": ("add", (), {"a": 1, "b": 1}),  # it has no state
  "MessageAPI": ("add_contact", (), {"user_name": "Nobody"}),
  "TwitterAPI": ("follow_user", (), {"username_to_follow": "nobody"}),
  "TicketAPI": ("ticket_login", (), {"username": "nobody", "password": "none"}),
  "TradingBot": ("add_to_watchlist", (), {"stock": "ZETA"}),
  "TravelAPI": (
    "set_budget_limit",
    (),
    {"access_token": "0", "budget_limit": 7},
  ),
  "VehicleControlAPI": ("set_navigation", (), {"destination": "nowhere"}),
}


def _expert(environment, task, mistake, seed):
  if mistake != _EXTRA_CALL:
    return environment.expert(task, seed=seed, mistakes={mistake: 1.0})
  problem = environment.find(task)
  turns = [list(turn) for turn in gold_calls(problem)]
  turn = random.Random(f"{problem.id}/{seed}").randrange(len(turns))
  turns[turn] += [Call(*_STATE_CHANGES[name]) for name in problem.classes]
  return GoldExpert(turns)


class _OneByOne:
  """Plays the gold calls, each in its own answer."""

  def __init__(self, turns):
    self._answers = iter(
      [
        calls
        for turn in turns
        for calls in (*([call] for call in turn), ())  # the last ends the turn
      ]
    )

  def answer(self, messages):
    return GoldExpert([next(self._answers)]).answer(messages)
