"""Tests of environments of functions, and of a twin of arithmetic."""

import asyncio
import dataclasses
import json
import math
import random
import threading
import types
import typing
import unittest
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.adapters.functions import (
  NOT_PLAYED,
  FinalAnswer,
  FunctionEnvironment,
  PolicyMistake,
)
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError, EnvironmentFault
from tests.clocks import Clock, until
from tests.env.adapters import sums_of_functions

TASK = Task("arithmetic", "train", 0)


def call(name, /, **arguments):
  return Message(
    "assistant", tool_calls=(ToolCall(name, json.dumps(arguments), "c1"),)
  )


async def play(environment, answers, task=TASK):
  """Returns the tools and the steps of an episode of these answers."""
  async with environment.open(task, seed=0) as session:
    steps = [await session.reset()]
    for answer in answers:
      if steps[-1].status is not Status.RUNNING:
        break
      steps.append(await session.step(answer))
    return session.tools, steps


class TwinContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return sums_of_functions.Arithmetic()


@dataclasses.dataclass
class Bag:
  size: int
  items: list[int] = dataclasses.field(default_factory=list)


async def put(item: int, state: Bag) -> str:
  """Puts a number into the bag."""
  before = list(state.items)
  await asyncio.sleep(0)
  if state.items != before:
    raise AssertionError("another episode has the same bag")
  if len(state.items) == state.size:
    raise PolicyMistake(f"the bag holds {state.size}")
  state.items.append(item)
  return f"It holds {state.items}."


def count(state: Bag) -> dict[str, int]:
  """Counts the numbers."""
  return {"count": len(state.items)}


def close(last: int, state: Bag, fill: bool = False) -> str | FinalAnswer:
  """Closes the bag, if it is full."""
  if fill:
    state.items += [0] * (state.size - len(state.items))
  missing = state.size - len(state.items)
  return FinalAnswer(last) if not missing else f"{missing} are missing."


def all_right(answer: int, items: list[int], state: Bag) -> float:
  return (items[-1] == answer) / state.size


class Packing(FunctionEnvironment[Bag]):
  name = "packing"
  functions = (put, count, close)
  reward = all_right

  def draw(self, rng):
    return Bag(rng.randint(1, 10**6))

  def question(self, state):
    return f"Fill the bag, which holds {state.size}."


class SmallPacking(Packing):
  def draw(self, rng):
    return Bag(3)

  def generate(self, split, index):
    return Bag(3)


class PackingContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  max_reply_chars = 10**6

  def make_environment(self):
    return Packing()


@pytest.mark.slow
class BlockingContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    environment = sums_of_functions.Arithmetic()
    environment.blocking = True
    return environment


class StateTest(unittest.IsolatedAsyncioTestCase):
  async def test_an_episode(self):
    _, steps = await play(
      SmallPacking(),
      [
        call("put", item=4),
        call("count"),
        call("close", last=4),
        call("put", item=5),
        call("put", item=6),
        call("put", item=7),
        call("close", last=6),
      ],
    )
    self.assertEqual(
      [m.content for step in steps[1:] for m in step.messages],
      [
        "It holds [4].",
        '{"count": 1}',
        "2 are missing.",
        "It holds [4, 5].",
        "It holds [4, 5, 6].",
        "Error: the bag holds 3",
      ],
    )
    self.assertEqual(steps[-1].reward, 1 / 3)
    self.assertIs(steps[-1].status, Status.COMPLETED)

  async def test_nothing_is_left_of_an_episode(self):
    environment = Packing()
    first = await play(environment, [call("put", item=1)] * 3)
    environment.find(TASK).items.append(7)  # as an expert might
    self.assertEqual(await play(environment, [call("put", item=1)] * 3), first)

  async def test_a_question_that_changes_the_state_changes_its_own_copy(self):
    class Careless(Packing):
      def question(self, state):
        state.items.append(1)
        return f"{state.size} {state.items}"

    environment = Careless()
    for _ in range(2):
      _, steps = await play(environment, [])
      self.assertRegex(steps[0].messages[0].content, r"^\d+ \[1\]$")

  async def test_a_state_that_cannot_be_copied(self):
    class Locked(Packing):
      def draw(self, rng):
        bag = super().draw(rng)
        bag.items = threading.Lock()
        return bag

      def question(self, state):
        return "The same."

      def generate(self, split, index):
        return self.draw(random.Random(0))

    with self.assertRaisesRegex(ConfigError, "cannot be copied"):
      await play(Locked(), [])


def end(value: int) -> FinalAnswer:
  """Ends it."""
  return FinalAnswer(value)


def look(state: Bag) -> int:
  """Looks."""
  return state.size


def define(
  *, state=Bag, functions=(end, look), reward=lambda size: 0.0, **namespace
):
  """Defines an environment as a module would."""
  namespace = {
    "name": "made",
    "functions": functions,
    "reward": reward,
    "draw": lambda self, rng: Bag(rng.randrange(1000)),
    "question": lambda self, state: f"{state.size}?",
    **namespace,
  }
  return types.new_class(
    "Made",
    (FunctionEnvironment[state],),
    exec_body=lambda body: body.update(namespace),
  )


class RewardTest(unittest.IsolatedAsyncioTestCase):
  async def _step(self, reward, answer=None, **options):
    environment = define(reward=reward, **options)()
    _, steps = await play(environment, [answer or call("end", value=5)])
    return steps[-1]

  async def test_gets_what_it_names(self):
    def from_state(state):
      return state.size / 1000

    def from_all(answer, size, items, state):
      return answer + (size == state.size) + len(items)

    async def later(answer):
      await asyncio.sleep(0)
      return answer

    def of_keyword(*, answer):
      return answer

    self.assertGreater((await self._step(from_state)).reward, 0)
    for reward, value in ((from_all, 6.0), (later, 5.0), (of_keyword, 5.0)):
      self.assertEqual((await self._step(reward)).reward, value)
    self.assertEqual((await self._step(staticmethod(later))).reward, 5.0)

  async def test_numbers_of_all_kinds(self):
    for value, expected in (
      (True, 1.0),
      (1, 1.0),
      (0.25, 0.25),
      (np.float32(0.5), 0.5),
      (np.bool_(True), 1.0),
      (Fraction(1, 2), 0.5),
    ):
      with self.subTest(value=repr(value)):
        step = await self._step(_giving(value))
        self.assertEqual(step.reward, expected)
        self.assertIs(type(step.reward), float)

  async def test_a_reward_that_is_no_finite_number_is_a_fault(self):
    for value in (
      math.nan,
      math.inf,
      -math.inf,
      np.float32("nan"),
      None,
      "1",
      [1.0],
      {"reward": 1},
      1j,
      np.zeros(1),
    ):
      with (
        self.subTest(value=repr(value)),
        self.assertRaisesRegex(
          EnvironmentFault, "made, the reward function: .*is no number"
        ),
      ):
        await self._step(_giving(value))

  async def test_a_bug_of_the_reward_is_a_fault(self):
    def buggy(answer):
      return 1 / (answer - 5)

    def mistaken(answer):
      raise PolicyMistake("not so")

    for reward in (buggy, mistaken):
      with self.assertRaisesRegex(EnvironmentFault, "the reward function"):
        await self._step(reward)

  async def test_turns_run_out(self):
    def of_answer(answer):
      return 1.0

    def of_answer_or_none(answer=None):
      return 0.5 if answer is None else 1.0

    for reward, expected in (
      (of_answer, 0.0),
      (of_answer_or_none, 0.5),
      (_giving(0.75), 0.75),
    ):
      step = await self._step(reward, call("look"), max_turns=1)
      self.assertEqual(
        (step.reward, step.status), (expected, Status.TASK_LIMIT_REACHED)
      )
      self.assertEqual(len(step.messages), 1)


def _giving(value):
  def given(size):
    return value

  return given


def silent():
  """Refuses without a reason."""
  raise PolicyMistake("")


def leave():
  """Leaves the process."""
  raise SystemExit(1)


def stop():
  """Stops."""
  raise StopIteration


async def divide():
  """Divides."""
  return 1 // 0


def value():
  """Reads a text carelessly."""
  return int("seven")


def unwritable():
  """Returns an object."""
  return object()


def undeclared():
  """Ends, and does not say so."""
  return FinalAnswer(1)


class PlayTest(unittest.IsolatedAsyncioTestCase):
  async def _play(self, function, *answers, **options):
    environment = define(functions=(function, end), **options)()
    _, steps = await play(environment, answers)
    return steps

  async def test_one_call_is_played_at_a_time(self):
    calls = [
      ToolCall("put", '{"item": 1}', "a"),
      ToolCall("put", '{"item": 2}', "b"),
      ToolCall("close", '{"last": 2, "fill": true}', "c"),
    ]
    _, steps = await play(
      SmallPacking(), [Message("assistant", tool_calls=tuple(calls))]
    )
    self.assertEqual(
      steps[-1].messages,
      (
        Message("tool", "It holds [1].", tool_call_id="a"),
        Message("tool", NOT_PLAYED, tool_call_id="b"),
        Message("tool", NOT_PLAYED, tool_call_id="c"),
      ),
    )
    self.assertIs(steps[-1].status, Status.RUNNING)

  async def test_a_mistake_of_the_policy_is_a_message(self):
    def refuse() -> FinalAnswer:
      """Refuses."""
      raise PolicyMistake("use 1 to 9")

    (_, step) = await self._play(refuse, call("refuse"))
    self.assertEqual(step.messages[0].content, "Error: use 1 to 9")
    self.assertEqual((step.status, step.reward), (Status.RUNNING, 0.0))

  async def test_a_bug_is_a_fault_that_names_the_function(self):
    for function, text in (
      (silent, "the policy needs a text"),
      (leave, "SystemExit"),
      (stop, "StopIteration"),
      (divide, "ZeroDivisionError"),
      (value, "ValueError: invalid literal"),
      (unwritable, "object, which is not JSON"),
      (undeclared, "which its annotation does not have"),
    ):
      for blocking in (False, True):
        with (
          self.subTest(function=function.__name__, blocking=blocking),
          self.assertRaisesRegex(
            EnvironmentFault, f"made, function {function.__name__}: .*{text}"
          ),
        ):
          await self._play(function, call(function.__name__), blocking=blocking)

  async def test_results_are_text_or_json(self):
    for result, text in (
      ("a \u20ac", "a \u20ac"),
      (None, "null"),
      (True, "true"),
      (0.5, "0.5"),
      ([1, "\u20ac"], '[1, "\u20ac"]'),
      (Bag(2, [1]), '{"size": 2, "items": [1]}'),
      (Status.RUNNING, '"running"'),
    ):

      def give(result=result):
        return result

      def get():
        """Gets it."""
        return give()  # noqa: B023 - called at once

      _, step = await self._play(get, call("get"))
      self.assertEqual(step.messages[0].content, text)

  async def test_a_reward_has_a_deadline(self):
    entered = asyncio.Event()

    async def hang(answer):
      entered.set()
      await asyncio.Event().wait()

    playing = asyncio.create_task(
      self._play(look, call("end", value=1), reward=hang)
    )
    await until(entered.is_set)
    await Clock().forward(61.0)
    with self.assertRaisesRegex(EnvironmentFault, "within 60 s"):
      await playing


def _as_text(self, state):
  return str(state)


@dataclasses.dataclass
class Shared:
  size: int
  log: ClassVar[list[str]] = []


def undescribed(number):
  """Takes it."""


def of_a_text(state: str):
  return 1.0


# What a definition may not have, and what it is told.
REFUSED = (
  *(
    ({"functions": x}, "a tuple of one or more") for x in ((), end, "end", None)
  ),
  ({"functions": (end, end)}, "two tools have one name"),
  ({"functions": (undescribed,)}, "function undescribed, parameter number"),
  *(({"state": x}, "is no dataclass") for x in (dict, int, typing.Any)),
  *(
    ({"state": dataclasses.make_dataclass("Odd", [(x, int)])}, f"field '{x}'")
    for x in ("state", "answer")
  ),
  ({"state": Shared}, "Shared.log is a list of the class"),
  *(({"reward": x}, "allowed is a plain function") for x in (1.0, None, print)),
  *(
    ({"reward": x}, "arguments are given by name")
    for x in (lambda **x: 1.0, lambda *x: 1.0, lambda answer, /: 1.0)
  ),
  (
    {"reward": lambda prediction, size: 1.0},
    "asks for 'prediction'; there are answer, state, size, it",
  ),
  ({"reward": lambda anwser: 1.0}, "'anwser'.*did you mean answer"),
  ({"reward": lambda sizes=3: 1.0}, "'sizes'.*did you mean size"),
  ({"reward": lambda self, answer: 1.0}, "'self' .is it a method"),
  ({"reward": of_a_text}, "gets the episode's state, a Bag"),
  (
    {"functions": (look,), "reward": lambda answer: 1.0},
    "no episode could ever earn",
  ),
)


class DefinitionTest(unittest.IsolatedAsyncioTestCase):
  def test_what_cannot_be_played_is_refused_when_the_class_is_defined(self):
    for changes, text in REFUSED:
      with (
        self.subTest(str(changes)),
        self.assertRaisesRegex(ConfigError, text),
      ):
        define(**changes)
    define(functions=(look,), reward=_giving(1.0))

  def test_a_function_may_have_the_name_of_a_field_or_of_an_argument(self):
    def size(answer: int, size: int) -> int:
      """Adds."""
      return answer + size

    tools = define(functions=(size,), reward=_giving(1.0)).function_tools
    self.assertEqual(
      list(tools["size"].tool.parameters["properties"]), ["answer", "size"]
    )

  def test_a_missing_class_attribute_is_named(self):
    class NoReward(FunctionEnvironment[Bag]):
      name, functions = "x", (end,)
      rewards = _giving(1.0)

    class NoFunctions(FunctionEnvironment[Bag]):
      name, reward = "x", _giving(1.0)

    class NoState(FunctionEnvironment):
      name, functions, reward = "x", (end,), lambda: 1.0

    for kind, text in (
      (NoReward, "NoReward does not define `reward` .did you mean rewards"),
      (NoFunctions, "NoFunctions does not define `functions`"),
      (NoState, "NoState does not say which dataclass"),
    ):
      with self.assertRaisesRegex(ConfigError, text):
        kind()

  def test_options_are_checked(self):
    for options in ({"max_turns": 0}, {"num_tasks": 0}):
      with self.subTest(options=options), self.assertRaises(ConfigError):
        Packing(**options)
    with self.assertRaises(ConfigError):
      define(step_limit_s=0.0)()

  def test_a_subclass_changes_a_part(self):
    class Other(sums_of_functions.Arithmetic):
      functions = (sums_of_functions.answer,)

    self.assertEqual([*Other.function_tools], ["answer"])
    self.assertEqual(len(sums_of_functions.Arithmetic.function_tools), 2)

    with self.assertRaisesRegex(ConfigError, "asks for 'c'"):

      class Wrong(sums_of_functions.Arithmetic):
        def reward(c):
          return 1.0

  async def test_tasks_may_be_loaded(self):
    class Loaded(Packing):
      def load(self, loaded):
        return Bag(loaded)

    environment = Loaded(loaded={"dev": [3, 5]})
    self.assertEqual(environment.indices("dev"), range(2))
    _, steps = await play(environment, [], Task("packing", "dev", 1))
    self.assertIn("holds 5.", steps[0].messages[0].content)

  async def test_bad_tasks_are_refused(self):
    for namespace, text in (
      ({"question": lambda self, state: "Always."}, "1000 questions"),
      ({"question": lambda self, state: ""}, "`question` returned ''"),
      ({"question": lambda self, state: None}, "`question` returned None"),
      (
        {"draw": lambda self, rng: rng.random(), "question": _as_text},
        "is 0.*a FunctionEnvironment of",
      ),
      ({"draw": FunctionEnvironment.draw}, "does not define `draw`"),
      ({"question": FunctionEnvironment.question}, "not define `question`"),
    ):
      environment = define(**namespace)()
      with self.subTest(text), self.assertRaisesRegex(ConfigError, text):
        for index in range(2):
          for split in ("train", "test"):
            await play(environment, [], Task("made", split, index))
