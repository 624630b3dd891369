"""The contract of environments, as tests to inherit.

  class MyEnvironmentTest(SessionContract, unittest.IsolatedAsyncioTestCase):
    def make_environment(self):
      return MyEnvironment(num_tasks=4)

Class attributes describe the environment. The contract plays a few tasks of
each split; properties of your own tasks need tests of your own.
"""

import asyncio
import gc
import itertools
import json
import os
import threading
import types
import typing
import unittest
import weakref
from collections.abc import Iterator, Sequence

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.interface import Environment, Session, Step
from agentrl_jax.env.tools import require_names_apart
from agentrl_jax.errors import ConfigError, EnvironmentFault

if typing.TYPE_CHECKING:
  _Base = unittest.IsolatedAsyncioTestCase
else:
  _Base = object  # so that the contract alone is not collected as a test


class SessionContract(_Base):
  """Tests of an environment; mix into a `TestCase`, first."""

  splits: Sequence[str] = ("train", "test")
  num_tasks = 8  # played of each split
  max_steps = 64  # longer than any episode
  top_reward = 1.0
  max_reply_chars = 20_000  # shorter than an echo of a huge answer
  # "observation" compares first observations across splits. For tasks that all
  # begin alike, "seed" compares solutions as well, and "nothing" says that both
  # splits have the same problems.
  split_by = "observation"

  def make_environment(self) -> Environment:
    """Makes a new environment, equal to the previous one."""
    raise NotImplementedError

  async def test_indices_are_stable(self) -> None:
    first, second = self.make_environment(), self.make_environment()
    for split in self.splits:
      with self.subTest(split=split):
        shown = first.indices(split)[:1000]
        self.assertTrue(shown, f"split {split} is empty")
        self.assertEqual(list(shown), list(second.indices(split)[:1000]))
        self.assertEqual(len(set(shown)), len(shown))

  async def test_unknown_split_is_refused(self) -> None:
    with self.assertRaises(ConfigError):
      self.make_environment().indices("no such split")

  async def test_content_is_a_function_of_the_task(self) -> None:
    first, second = self.make_environment(), self.make_environment()
    for task in self._tasks(first):
      with self.subTest(task=task):
        step = await _begin(first, task)
        self.assertEqual(step, await _begin(second, task))

  async def test_splits_share_no_problem(self) -> None:
    environment = self.make_environment()
    alike = self._shared(
      {
        task: (await _begin(environment, task)).messages
        for task in self._tasks(environment, num_tasks=32)
      }
    )
    if self.split_by == "observation":
      self.assertEqual(alike, [], "begin alike")
      return
    self.assertTrue(
      alike, "no first observation is in two splits: leave split_by out"
    )
    if self.split_by == "seed":
      same = self._shared(
        {
          task: await self._solution(environment, task)
          for task in self._tasks(environment, num_tasks=32)
        }
      )
      self.assertEqual(same, [], "have one solution, and begin alike")

  def _shared(self, texts: typing.Mapping[Task, object]) -> list[str]:
    """Names pairs of tasks of two splits that have the same text."""
    owner: dict[object, Task] = {}
    for task, text in texts.items():
      owner.setdefault(text, task)
    return [
      f"{owner[text]} and {task}"
      for task, text in texts.items()
      if owner[text].split != task.split
    ]

  async def _solution(self, environment: Environment, task: Task) -> str:
    """Returns what a policy could learn from one task and use in another."""
    try:
      return repr(await self._play_expert(environment, task))
    except NotImplementedError:
      self.fail(
        "tasks begin alike, so that their solutions have to be compared: give "
        "the environment an expert, or set split_by='nothing', which says that "
        "both splits have the same problems"
      )

  async def test_first_observation_can_be_answered(self) -> None:
    environment = self.make_environment()
    for task in self._tasks(environment):
      async with environment.open(task, seed=0) as session:
        require_names_apart(session.tools)
        step = await session.reset()
        self.assertIs(step.status, Status.RUNNING)
        self.assertEqual(step.reward, 0.0)
        self.assertNotEqual(step.messages[-1].role, "system")
        self._check(step, calls=())

  async def test_same_seed_same_session(self) -> None:
    first, second = self.make_environment(), self.make_environment()
    for task in self._tasks(first, num_tasks=2):
      steps = await self._play(first, task, seed=3)
      self.assertEqual(steps, await self._play(second, task, seed=3))

  async def test_nonsense_is_answered_not_raised(self) -> None:
    environment = self.make_environment()
    task = next(self._tasks(environment))
    async with environment.open(task, seed=0) as session:
      answers = list(_nonsense(session))
    for answer in answers:
      with self.subTest(answer=repr(answer)[:200]):
        async with environment.open(task, seed=0) as session:
          await session.reset()
          step = await session.step(answer)
        self._check(step, calls=answer.tool_calls)
        self.assertLess(step.reward, self.top_reward)

  async def test_nonsense_does_not_go_on_for_ever(self) -> None:
    environment = self.make_environment()
    for task in self._tasks(environment, num_tasks=2):
      steps = await self._play(environment, task, seed=1)
      self.assertIsNot(steps[-1].status, Status.RUNNING)
      self.assertLess(steps[-1].reward, self.top_reward)

  async def test_a_step_after_the_end_is_refused(self) -> None:
    environment = self.make_environment()
    task = next(self._tasks(environment))
    async with environment.open(task, seed=0) as session:
      await self._play_on(session)
      for answer in itertools.islice(_nonsense(session), 2):
        with self.assertRaises(EnvironmentFault):
          await session.step(answer)

  async def test_sessions_do_not_share_state(self) -> None:
    environment = self.make_environment()
    tasks = [*self._tasks(environment, num_tasks=2)] * 2
    alone = [await self._play(environment, task, seed=5) for task in tasks]
    together = await asyncio.gather(
      *(self._play(environment, task, seed=5) for task in tasks)
    )
    self.assertEqual(together, alone)

  async def test_leaving_early_frees_the_session(self) -> None:
    environment = self.make_environment()
    tasks = [*self._tasks(environment)]
    # Opens resources that every session shares.
    await self._abandon(environment, tasks[0])
    before = _resources()
    gc.collect()
    gc.freeze()  # makes the collections below fast
    self.addCleanup(gc.unfreeze)
    for task in tasks:
      left = await self._abandon(environment, task)
      gc.collect()
      self.assertIsNone(left(), f"the session of {task} is still referred to")
    for resource, count in _resources().items():
      self.assertLessEqual(count, before[resource], f"{resource} left open")

  async def test_error_inside_the_context_passes_through(self) -> None:
    environment = self.make_environment()
    task = next(self._tasks(environment))
    with self.assertRaises(ZeroDivisionError):
      async with environment.open(task, seed=0) as session:
        await session.reset()
        raise ZeroDivisionError
    await _begin(environment, task)

  async def test_expert_without_mistakes_reaches_the_top(self) -> None:
    environment = self.make_environment()
    self._require_expert(environment)
    for task in self._tasks(environment):
      with self.subTest(task=task):
        steps, _ = await self._play_expert(environment, task)
        last = steps[-1]
        self.assertIs(last.status, Status.COMPLETED)
        self.assertAlmostEqual(last.reward, self.top_reward)

  async def test_expert_with_the_same_seed_acts_the_same(self) -> None:
    first, second = self.make_environment(), self.make_environment()
    self._require_expert(first)
    erring = dict.fromkeys(first.mistakes, 0.5)
    for task in self._tasks(first, num_tasks=2):
      for seed, mistakes in ((0, {}), (1, erring), (2, erring)):
        with self.subTest(task=task, seed=seed, mistakes=bool(mistakes)):
          first_play, second_play = [
            await self._play_expert(e, task, seed=seed, mistakes=mistakes)
            for e in (first, second)
          ]
          self.assertEqual(first_play, second_play)

  async def test_expert_refuses_unknown_mistakes(self) -> None:
    environment = self.make_environment()
    self._require_expert(environment)
    if not environment.mistakes:  # a config that names some is refused
      self.skipTest(f"the expert of {environment.name} makes no mistakes")
    task = next(self._tasks(environment))
    with self.assertRaises(ConfigError):
      environment.expert(task, seed=0, mistakes={"no such mistake": 1.0})

  async def test_expert_knows_the_mistakes_that_are_listed(self) -> None:
    environment = self.make_environment()
    self._require_expert(environment)
    task = next(self._tasks(environment))
    for rate in (0.0, 1.0):
      for name in environment.mistakes:
        environment.expert(task, seed=0, mistakes={name: rate})
    for name in environment.mistakes:
      for rate in (-0.1, 1.1, float("nan")):
        with self.subTest(name=name, rate=rate), self.assertRaises(ConfigError):
          environment.expert(task, seed=0, mistakes={name: rate})

  def _tasks(
    self, environment: Environment, num_tasks: int | None = None
  ) -> Iterator[Task]:
    """Yields the first tasks of every split."""
    for split in self.splits:
      for index in environment.indices(split)[: num_tasks or self.num_tasks]:
        yield Task(environment.name, split, index)

  async def _play(
    self, environment: Environment, task: Task, *, seed: int
  ) -> list[Step]:
    async with environment.open(task, seed=seed) as session:
      return await self._play_on(session)

  async def _play_on(self, session: Session) -> list[Step]:
    """Answers with nonsense of all kinds until the episode ends."""
    steps = [await session.reset()]
    answers = itertools.cycle(_nonsense(session))
    while steps[-1].status is Status.RUNNING and len(steps) < self.max_steps:
      await asyncio.sleep(0)  # lets other sessions run
      steps.append(await session.step(next(answers)))
    return steps

  async def _play_expert(
    self,
    environment: Environment,
    task: Task,
    *,
    seed: int = 0,
    mistakes: typing.Mapping[str, float] = types.MappingProxyType({}),
  ) -> tuple[list[Step], list[Message]]:
    """Returns the steps, and the expert's answers between them."""
    expert = environment.expert(task, seed=seed, mistakes=mistakes)
    answers: list[Message] = []
    async with environment.open(task, seed=0) as session:
      steps = [await session.reset()]
      while steps[-1].status is Status.RUNNING and len(steps) < self.max_steps:
        answers.append(expert.answer(steps[-1].messages))
        steps.append(await session.step(answers[-1]))
        self._check(steps[-1], calls=answers[-1].tool_calls)
    return steps, answers

  def _require_expert(self, environment: Environment) -> None:
    task = next(self._tasks(environment))
    try:
      environment.expert(task, seed=0, mistakes={})
    except NotImplementedError as error:
      self.skipTest(str(error))

  async def _abandon(
    self, environment: Environment, task: Task
  ) -> weakref.ref[Session]:
    async with environment.open(task, seed=0) as session:
      await session.reset()
      return weakref.ref(session)

  def _check(self, step: Step, *, calls: Sequence[ToolCall]) -> None:
    """Asserts invariants of every step after an answer with these calls."""
    self.assertTrue(
      step.status is Status.RUNNING or step.status.is_policys_doing
    )
    self.assertTrue(0.0 <= step.reward <= self.top_reward, step.reward)
    if step.status is Status.RUNNING:
      self.assertTrue(step.messages, "there is no message to answer")
    for message in step.messages:
      self.assertIn(message.role, ("system", "user", "tool"))
      self.assertLessEqual(len(message.content), self.max_reply_chars)
      if message.role == "tool":
        self.assertIn(message.tool_call_id, [call.id for call in calls])


async def _begin(environment: Environment, task: Task) -> Step:
  async with environment.open(task, seed=0) as session:
    return await session.reset()


def _nonsense(session: Session) -> Iterator[Message]:
  """Yields answers that no session may fail on."""
  yield Message("assistant", "")
  yield Message("assistant", "\x00 {not json \u20ac")
  yield Message("assistant", "x" * 100_000)
  yield _call("no_such_tool", "{}")
  yield _call("", '{"name": "a call that was not read", "args": {}}')
  for tool in session.tools:
    for arguments in _bad_arguments(tool.parameters.get("properties", {})):
      yield _call(tool.name, arguments)
  if session.tools:
    first = session.tools[0].name
    yield Message("assistant", tool_calls=(ToolCall(first, "{"),) * 9)
  else:  # answered in text, which such a session often reads as a number
    for text in (
      "nan",
      "1e999",
      "²",
      "9" * 5000,
      "[" * 5000,
      "\n",
      "\\boxed{}",
      "<answer></answer>",
      "####",
      "null",
      "[]",
      "{}",
      " ".join(map(str, range(10_000))),  # has the right number, too
    ):
      yield Message("assistant", text)


def _bad_arguments(properties: typing.Mapping[str, object]) -> Iterator[str]:
  yield from ("", "{", "null", "[]", '"text"', "7", "NaN", "[" * 5000)
  yield "{}"
  yield '{"no such argument": 1}'
  values: list[object] = [None, True, -1, 1e300, 10**30, [], {}, "", "\x00"]
  for value in [*values, "'\"`$(;%_"]:
    yield json.dumps(dict.fromkeys(properties, value))
  yield json.dumps(dict.fromkeys(properties, "x" * 100_000))
  yield json.dumps(dict.fromkeys(properties, "\ud800"))
  yield json.dumps(dict.fromkeys(properties, [["\x00"]]))


def _call(name: str, arguments: str) -> Message:
  return Message("assistant", tool_calls=(ToolCall(name, arguments, "call_0"),))


def _resources() -> dict[str, int]:
  """Counts resources that the garbage collector does not free."""
  return {
    "file descriptors": len(os.listdir("/dev/fd")),
    "threads": sum(
      not thread.name.startswith("asyncio_")  # the event loop's pool may grow
      for thread in threading.enumerate()
    ),
    "tasks": len(asyncio.all_tasks()),
  }
