"""Helpers of BFCL's tests: skips without packages, complete episodes."""

import importlib.util
import unittest

from agentrl_jax.data.records import Status


def require_packages() -> None:
  """Skips the test where bfcl-eval, or what it imports, is not installed."""
  for name in ("bfcl_eval", "mpmath"):
    if importlib.util.find_spec(name) is None:
      raise unittest.SkipTest(
        f"{name} is not installed; see environments/bfcl/README.md"
      )


async def play(environment, task, expert):
  """Plays an episode; returns the session, the steps and the answers."""
  steps, answers = [], []
  async with environment.open(task, seed=0) as session:
    steps.append(await session.reset())
    while steps[-1].status is Status.RUNNING:
      answers.append(expert.answer(steps[-1].messages))
      steps.append(await session.step(answers[-1]))
  return session, steps, answers
