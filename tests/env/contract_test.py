"""Tests that each kind of bad environment fails its test of the contract."""

import asyncio
import contextlib
import dataclasses
import itertools
import os
import re
import unittest
from unittest import mock

import pytest

from agentrl_jax.data.records import Message, Status, Tool, ToolCall
from agentrl_jax.env.adapters.reset_step import ResetStep
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.env.interface import Step
from agentrl_jax.errors import EnvironmentFault
from environments.arithmetic.environment import Arithmetic


class _Wrapped:
  """A session of arithmetic with one change."""

  def __init__(self, session):
    self._session = session
    self.tools = session.tools

  async def reset(self):
    return await self._session.reset()

  async def step(self, answer):
    return await self._session.step(answer)


class _Bad(Arithmetic):
  """Arithmetic whose sessions are `wrap`ped."""

  wrap = _Wrapped

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    async with super().open(task, seed=seed) as session:
      yield self.wrap(session)


class Shuffled(_Bad):
  counter = itertools.count()

  def indices(self, split):
    super().indices(split)
    first = next(self.counter)
    return range(first, first + 2000)


class Empty(_Bad):
  def indices(self, split):
    return super().indices(split)[:0]


class AnySplit(_Bad):
  def indices(self, split):
    return range(8)


class Leaking(_Bad):
  """Shows training tasks in the split test."""

  def find(self, task):
    return super().find(type(task)(task.name, "train", task.index))


GUESS = Tool(
  "guess",
  "Guesses.",
  {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
  },
)


class HiddenSecrets(ResetStep):
  """Tasks begin alike, and nothing tells how they are solved."""

  name = "secrets"
  tools = (GUESS,)
  num_secrets = 20

  def __init__(self):
    super().__init__(split_by="seed")

  def secret(self, seed):
    return seed % self.num_secrets

  def make(self, seed):
    game = mock.Mock(spec=["reset", "step"])
    game.reset.return_value = "Guess."
    game.step.side_effect = lambda number: (
      "So?",
      float(number == self.secret(seed)),
      number == self.secret(seed),
    )
    return game


class FewSecrets(HiddenSecrets):
  """Seeds are apart, and their twenty secrets are the same."""

  def expert(self, task, *, seed, mistakes):
    guesser = mock.Mock(spec=["answer"])
    secret = self.secret(self.seed_of(task))
    call = ToolCall("guess", f'{{"number": {secret}}}', "c")
    guesser.answer.return_value = Message("assistant", tool_calls=(call,))
    return guesser


class ManySecrets(FewSecrets):
  def problem(self, seed):
    return str(self.secret(seed))


class Changing(_Bad):
  counter = itertools.count()

  def find(self, task):
    index = task.index + next(self.counter)
    return super().find(type(task)(task.name, task.split, index))


class Choking(_Bad):
  class wrap(_Wrapped):
    async def step(self, answer):
      if answer.tool_calls and answer.tool_calls[0].name == "no_such_tool":
        raise KeyError
      return await super().step(answer)


def changing(change):
  """Arithmetic whose steps are changed by a function of step and answer."""

  class Changed(_Wrapped):
    async def step(self, answer):
      await asyncio.sleep(0)
      return change(await super().step(answer), answer)

  return type("Changing", (_Bad,), {"wrap": Changed})


def to_another_call(step, answer):
  """Replies to a call that was never made."""
  messages = [
    dataclasses.replace(m, tool_call_id="another") if m.role == "tool" else m
    for m in step.messages
  ]
  return dataclasses.replace(step, messages=tuple(messages))


def with_a_message(step, text):
  more = Message("user", str(text))
  return dataclasses.replace(step, messages=(*step.messages, more))


def echo(step, answer):
  said = Step((Message("user", answer.content),))
  return said if len(answer.content) > 1000 else step


def end_in_a_fault(step, answer):
  """Ends with a status that only faults of ours have."""
  is_over = step.status is not Status.RUNNING
  status = Status.TASK_ERROR if is_over else step.status
  return dataclasses.replace(step, status=status)


class Undying(_Bad):
  """Gives the last step again to answers after the end."""

  class wrap(_Wrapped):
    last = None

    async def step(self, answer):
      if self.last is None or self.last.status is Status.RUNNING:
        self.last = await super().step(answer)
      return self.last


class Sharing(_Bad):
  """Counts the turns of each environment's episodes together."""

  def __init__(self):
    super().__init__()
    counter = itertools.count()
    changed = changing(lambda step, _: with_a_message(step, next(counter)))
    self.wrap = changed.wrap


class Keeping(_Bad):
  """Keeps references to its sessions."""

  kept = []

  def wrap(self, session):
    self.kept.append(_Wrapped(session))
    return self.kept[-1]


class Dripping(_Bad):
  """Leaves a file open for each session."""

  def wrap(self, session):
    self.__dict__.setdefault("files", []).append(os.open(os.devnull, 0))
    return _Wrapped(session)


class Swallowing(_Bad):
  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    async with super().open(task, seed=seed) as session:
      with contextlib.suppress(ZeroDivisionError):
        yield session


class Ambiguous(_Bad):
  """Has two tools of one name."""

  class wrap(_Wrapped):
    def __init__(self, session):
      super().__init__(session)
      self.tools = (*session.tools, session.tools[0])


class Forgiving(_Bad):
  def expert(self, task, *, seed, mistakes):
    return super().expert(task, seed=seed, mistakes={})


class Boastful(_Bad):
  """Lists a mistake that its expert cannot make."""

  mistakes = (*Arithmetic.mistakes, "slow_answer")


class Unlimited(_Bad):
  """Its expert takes any number as a probability."""

  def expert(self, task, *, seed, mistakes):
    rates = {name: min(max(rate, 0), 1) for name, rate in mistakes.items()}
    return super().expert(task, seed=seed, mistakes=rates)


class Moody(_Bad):
  """Its expert ignores the seed of its mistakes."""

  counter = itertools.count()

  def expert(self, task, *, seed, mistakes):
    return super().expert(task, seed=next(self.counter), mistakes=mistakes)


class Beginner(_Bad):
  """Its expert acts differently each time, and makes no mistakes."""

  counter = itertools.count()

  def expert(self, task, *, seed, mistakes):
    names = ["skipped_add"] if next(self.counter) % 2 else []
    return super().expert(
      task, seed=seed, mistakes={**mistakes, **dict.fromkeys(names, 1.0)}
    )


class _Told(_Wrapped):
  """A sum that is asked without tools, and answered in text."""

  tools = ()

  def __init__(self, session):
    super().__init__(session)
    self.tools = ()
    self._is_over = False

  async def reset(self):
    step = await super().reset()
    self.right = str(
      sum(map(int, re.findall(r"\d+", step.messages[-1].content)))
    )
    return step

  async def step(self, answer):
    if self._is_over:
      raise EnvironmentFault("a step after the end")
    self._is_over = True
    return Step((), self.reward(answer.content), Status.COMPLETED)

  def reward(self, text):
    return float(text == self.right)


class _ToldToAnyone(_Told):
  def reward(self, text):
    return 1.0


class _ToldForEver(_Told):
  async def step(self, answer):
    return Step((Message("user", "Again?"),))


class WithoutTools(_Bad):
  wrap = _Told
  mistakes = ()

  def expert(self, task, *, seed, mistakes):
    return _Speaker(self.find(task).a + self.find(task).b)


class _Speaker:
  def __init__(self, value):
    self._value = value

  def answer(self, messages):
    return Message("assistant", str(self._value))


COUNTER = itertools.count()
NONSENSE = "nonsense_is_answered_not_raised"
SOLVED = "expert_without_mistakes_reaches_the_top"
# Each flaw, with the test that notices it.
FLAWS = (
  (Shuffled, "indices_are_stable"),
  (Empty, "indices_are_stable"),
  (AnySplit, "unknown_split_is_refused"),
  (Changing, "content_is_a_function_of_the_task"),
  (Leaking, "splits_share_no_problem"),
  (Ambiguous, "first_observation_can_be_answered"),
  (Choking, NONSENSE),
  (changing(echo), NONSENSE),
  (changing(to_another_call), NONSENSE),
  (changing(lambda step, _: dataclasses.replace(step, reward=1.0)), NONSENSE),
  (changing(lambda step, _: dataclasses.replace(step, messages=())), NONSENSE),
  (
    changing(lambda step, _: with_a_message(step, next(COUNTER))),
    "same_seed_same_session",
  ),
  (
    changing(lambda step, _: Step((Message("user", "Go on."),))),
    "nonsense_does_not_go_on_for_ever",
  ),
  (Undying, "a_step_after_the_end_is_refused"),
  (Sharing, "sessions_do_not_share_state"),
  (Keeping, "leaving_early_frees_the_session"),
  (Dripping, "leaving_early_frees_the_session"),
  (Swallowing, "error_inside_the_context_passes_through"),
  (changing(lambda step, _: dataclasses.replace(step, reward=0.0)), SOLVED),
  (changing(end_in_a_fault), SOLVED),
  (Moody, "expert_with_the_same_seed_acts_the_same"),
  (Beginner, "expert_with_the_same_seed_acts_the_same"),
  (Forgiving, "expert_refuses_unknown_mistakes"),
  (Boastful, "expert_knows_the_mistakes_that_are_listed"),
  (Unlimited, "expert_knows_the_mistakes_that_are_listed"),
)


def run_contract(make, test, **attributes):
  class Case(SessionContract, unittest.IsolatedAsyncioTestCase):
    def make_environment(self):
      return make()

  for name, value in attributes.items():
    setattr(Case, name, value)
  result = unittest.TestResult()
  Case(f"test_{test}").run(result)
  return result


class SessionContractTest(unittest.TestCase):
  @pytest.mark.slow
  def test_each_flaw_is_noticed(self):
    for n, (environment, test) in enumerate(FLAWS):
      with self.subTest(n, environment=environment.__name__, test=test):
        result = run_contract(environment, test)
        self.assertFalse(result.wasSuccessful())
        for file in getattr(environment, "files", ()):
          os.close(file)

  @pytest.mark.slow
  def test_the_same_tests_pass_without_the_flaw(self):
    for test in sorted({test for _, test in FLAWS}):
      with self.subTest(test=test):
        result = run_contract(_Bad, test)
        self.assertTrue(result.wasSuccessful(), result)

  def test_every_test_of_the_contract_is_tried(self):
    tests = {name for name in dir(SessionContract) if name.startswith("test_")}
    tried = {f"test_{test}" for _, test in FLAWS}
    self.assertEqual(tests, tried)

  def test_splits_of_tasks_that_begin_alike_are_compared_by_solutions(self):
    for environment, passing in (
      (Arithmetic, ["observation"]),
      (Leaking, ["nothing"]),
      (FewSecrets, ["nothing"]),
      (ManySecrets, ["seed", "nothing"]),
      (HiddenSecrets, ["nothing"]),
    ):
      passes = []
      for split_by in ("observation", "seed", "nothing"):
        result = run_contract(
          environment, "splits_share_no_problem", split_by=split_by
        )
        if result.wasSuccessful():
          passes.append(split_by)
      with self.subTest(environment=environment.__name__):
        self.assertEqual(passes, passing)

  def test_an_environment_without_tools_passes(self):
    for name in sorted(dir(SessionContract)):
      if name.startswith("test_"):
        result = run_contract(WithoutTools, name.removeprefix("test_"))
        with self.subTest(test=name):
          self.assertTrue(
            result.wasSuccessful(), result.errors + result.failures
          )

  def test_flaws_of_environments_without_tools_are_noticed(self):
    for flaw, test in (
      (_ToldToAnyone, "nonsense_is_answered_not_raised"),
      (_ToldForEver, "nonsense_does_not_go_on_for_ever"),
    ):
      with self.subTest(flaw=flaw.__name__):
        bad = type(flaw.__name__, (WithoutTools,), {"wrap": flaw})
        self.assertFalse(run_contract(bad, test).wasSuccessful())

  def test_an_environment_without_an_expert_skips(self):
    class NoExpert(Arithmetic):
      def expert(self, task, *, seed, mistakes):
        raise NotImplementedError("none here")

    result = run_contract(NoExpert, "expert_without_mistakes_reaches_the_top")
    self.assertEqual([why for _, why in result.skipped], ["none here"])
