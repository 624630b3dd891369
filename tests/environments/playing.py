"""Plays whole episodes, for the tests of several files."""

from agentrl_jax.data.records import Status


async def play(environment, task, *, expert=None, seed=0, mistakes=None):
  """Returns the steps of an episode of the environment's expert, or another."""
  if expert is None:
    expert = environment.expert(task, seed=seed, mistakes=mistakes or {})
  async with environment.open(task, seed=seed) as session:
    steps = [await session.reset()]
    while steps[-1].status is Status.RUNNING:
      steps.append(await session.step(expert.answer(steps[-1].messages)))
  return steps
