"""Plays whole episodes, for the tests of several files."""

from agentrl_jax.data.records import Status


async def play(environment, task, *, expert=None, seed=0, mistakes=None):
  """Returns the steps of an episode of the environment's expert, or another."""
  if expert is None:
    expert = environment.expert(task, seed=seed, mistakes=mistakes or {})
  _, steps, _ = await play_with(environment, task, expert, seed=seed)
  return steps


async def play_with(environment, task, expert, *, seed=0):
  """Plays an episode; returns the session, the steps and the answers."""
  steps, answers = [], []
  async with environment.open(task, seed=seed) as session:
    steps.append(await session.reset())
    while steps[-1].status is Status.RUNNING:
      answers.append(expert.answer(steps[-1].messages))
      steps.append(await session.step(answers[-1]))
  return session, steps, answers


async def play_answers(environment, task, *answers, seed=0):
  """Returns the first step of an episode, and those after the answers."""
  async with environment.open(task, seed=seed) as session:
    return [
      await session.reset(),
      *[await session.step(answer) for answer in answers],
    ]
