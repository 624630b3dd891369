"""Tests of wrapped objects with `reset` and `step`."""

import asyncio
import dataclasses
import json
import threading
import types
import unittest
from unittest import mock

from agentrl_jax.data.records import Message, Status, Task, Tool, ToolCall
from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.env.adapters.reset_step import (
  NOT_PLAYED,
  Outcome,
  ResetStep,
  Rules,
  read_outcome,
)
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError, EnvironmentFault
from tests.clocks import Clock, turns_of_the_loop, until


class Nothing(ResetStep):
  name = "nothing"
  tools = ()

  def make(self, seed):
    return None


class RulesTest(unittest.TestCase):
  def test_rewards_are_scaled(self):
    rewards = (1.0, -3.0, 0.5)
    for rules, value in (
      (Rules(), -1.5),
      (Rules(returns="last"), 0.5),
      (Rules(reward_range=(-2, 2)), 0.125),
      (Rules(reward_range=(0, 2)), 0.0),
      (Rules(reward_range=(-3, -2)), 1.0),
    ):
      with self.subTest(rules=rules):
        self.assertEqual(rules.value(rewards), value)

  def test_no_rewards_are_worth_0(self):
    self.assertEqual(Rules(reward_range=(-10, 0)).value(()), 0.0)

  def test_bad_settings_are_refused(self):
    for options in (
      {"num_tasks": 0},
      {"max_rounds": 0},
      {"step_limit_s": 0},
      {"returns": "mean"},
      {"split_by": "luck"},
      {"reward_range": (1.0, 1.0)},
      {"no_such_rule": 1},
    ):
      with self.subTest(options=options), self.assertRaises(ConfigError):
        Nothing(**options)

  def test_reads_outcomes_of_every_form(self):
    for result, expected in (
      (("o", 1, True, False, {}), (1.0, True, False)),
      (("o", 1, False, True, {}), (1.0, False, True)),
      (("o", 1, True, {}), (1.0, True, False)),
      (("o", 1, True, {"TimeLimit.truncated": True}), (1.0, False, True)),
      (("o", 1, False), (1.0, False, False)),
      (_result(reward=1, done=True), (1.0, True, False)),
      (_result(reward=None, done=False), (0.0, False, False)),
    ):
      outcome = read_outcome(result)
      with self.subTest(result=str(result)):
        self.assertEqual(outcome.observation, "o")
        self.assertEqual(
          (outcome.reward, outcome.terminated, outcome.truncated), expected
        )

  def test_unknown_outcomes_are_refused(self):
    for result in (None, "text", ("o", 1), 7):
      with (
        self.subTest(result=result),
        self.assertRaisesRegex(TypeError, "override `outcome`"),
      ):
        read_outcome(result)


def _result(observation="o", **fields):
  return types.SimpleNamespace(observation=observation, **fields)


GUESS = Tool(
  "guess",
  "Guesses a number from 0 to 99.",
  {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
    "additionalProperties": False,
  },
)


class Game:
  """A game that knows nothing of this framework."""

  def __init__(self, seed):
    self.secret = seed % 100
    self.hint = f"Somewhere near {seed % 100_003}."
    self.is_closed = False
    self.threads = {threading.get_ident()}

  def reset(self):
    self.threads.add(threading.get_ident())
    return self.hint

  def step(self, number):
    self.threads.add(threading.get_ident())
    if not 0 <= number < 100:
      raise ValueError(f"{number} is not from 0 to 99")
    if number == 66:
      raise KeyError("the machine room")
    if number == 67:
      raise SystemExit(0)
    right = number == self.secret
    return ("right" if right else "wrong"), float(right), right, {}

  def close(self):
    self.threads.add(threading.get_ident())
    self.is_closed = True


class AsyncGame(Game):
  async def reset(self):
    await asyncio.sleep(0)
    return super().reset()

  async def step(self, number):
    await asyncio.sleep(0)
    return super().step(number)

  async def close(self):
    await asyncio.sleep(0)
    super().close()


class Guessing(ResetStep):
  name = "guessing"
  tools = (GUESS,)
  instructions = "Guess the number."
  game = Game

  def make(self, seed):
    self.last = self.game(seed)
    return self.last


class AsyncGuessing(Guessing):
  game = AsyncGame


def a_guess(number, id="c1"):
  return ToolCall("guess", json.dumps({"number": number}), id)


def answer(*calls):
  return Message("assistant", tool_calls=calls)


class GuessingContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return Guessing(max_rounds=40)


class BlockingContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return Guessing(max_rounds=40, blocking=True)


class SplitBySeedTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  """Separates games that all begin alike by their secrets."""

  split_by = "seed"

  class Alike(Guessing):
    seeds = ()

    def make(self, seed):
      self.seeds = (*self.seeds, seed)
      return super().make(seed)

    def begin(self, wrapped, seed):
      super().begin(wrapped, seed)
      return "Begin."

    def problem(self, seed):
      return str(seed % 100)

    def expert(self, task, *, seed, mistakes):
      right = a_guess(self.seed_of(task) % 100)
      return mock.Mock(answer=lambda *_: answer(right))

  class One(Alike):
    def problem(self, seed):
      return "one"

  def make_environment(self):
    return self.Alike(split_by="seed", max_rounds=4)

  async def test_no_secret_is_on_both_sides(self):
    for split in SPLITS:
      environment = self.make_environment()
      for index in range(40):
        task = Task("x", split, index)
        async with environment.open(task, seed=0):
          self.assertEqual(environment.seeds[-1], environment.seed_of(task))
      problems = {str(seed % 100) for seed in environment.seeds}
      self.assertEqual({split_of(problem) for problem in problems}, {split})
      self.assertEqual(len(set(environment.seeds)), 40)

  async def test_one_problem_is_too_few_for_two_splits(self):
    environment = self.One(split_by="seed")
    task = Task("x", "test" if split_of("one") == "train" else "train", 0)
    with self.assertRaisesRegex(ConfigError, "none of 64 problems falls into"):
      environment.seed_of(task)
    with self.assertRaisesRegex(ConfigError, "none of 64 problems falls into"):
      async with environment.open(task, seed=0):
        pass


class GuessingTestCase(unittest.IsolatedAsyncioTestCase):
  def _open(self, environment):
    return environment.open(Task("guessing", "train", 0), seed=0)


class PlayTest(GuessingTestCase):
  async def test_an_episode(self):
    for environment in (
      Guessing(),
      AsyncGuessing(),
      Guessing(blocking=True),
      AsyncGuessing(blocking=True),
    ):
      async with self._open(environment) as session:
        first = await session.reset()
        game = environment.last
        self.assertEqual(
          first.messages[0].content, f"Guess the number.\n\n{game.hint}"
        )
        wrong = await session.step(answer(a_guess((game.secret + 1) % 50)))
        self.assertEqual(
          (wrong.messages[0].content, wrong.reward), ("wrong", 0.0)
        )
        right = await session.step(answer(a_guess(game.secret)))
      self.assertEqual(
        (right.messages[0].content, right.reward, right.status),
        ("right", 1.0, Status.COMPLETED),
      )
      self.assertTrue(game.is_closed)

  async def test_the_policy_is_answered(self):
    async with self._open(Guessing()) as session:
      await session.reset()
      for said, expected in (
        (Message("assistant", "7"), "Call a tool: guess."),
        (answer(a_guess(100)), "Error: 100 is not from 0 to 99"),
        (answer(ToolCall("guess", "{", "c1")), "Error: the arguments of"),
        (answer(ToolCall("ask", "{}", "c1")), "Error: there is no tool"),
      ):
        step = await session.step(said)
        self.assertIn(expected, step.messages[0].content)
        self.assertEqual((step.reward, step.status), (0.0, Status.RUNNING))

  async def test_one_call_is_played_at_a_time(self):
    environment = Guessing()
    async with self._open(environment) as session:
      await session.reset()
      secret = environment.last.secret
      step = await session.step(
        answer(a_guess((secret + 1) % 50, "a"), a_guess(secret, "b"))
      )
    self.assertEqual(
      step.messages,
      (
        Message("tool", "wrong", tool_call_id="a"),
        Message("tool", NOT_PLAYED, tool_call_id="b"),
      ),
    )

  async def test_rounds_run_out(self):
    async with self._open(Guessing(max_rounds=2)) as session:
      await session.reset()
      first = await session.step(Message("assistant", "hm"))
      second = await session.step(Message("assistant", "hm"))
    self.assertIs(first.status, Status.RUNNING)
    self.assertIs(second.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(second.metrics, {"num_actions": 0.0, "return": 0.0})

  async def test_errors_are_faults_and_the_object_is_closed(self):
    for options in ({}, {"blocking": True}):
      for number, error in ((66, "KeyError"), (67, "SystemExit")):
        environment = Guessing(**options)
        with self.assertRaisesRegex(EnvironmentFault, f"guessing: {error}"):
          async with self._open(environment) as session:
            await session.reset()
            await session.step(answer(a_guess(number)))
        self.assertTrue(environment.last.is_closed)

  async def test_refusals_can_be_chosen(self):
    environment = Guessing()
    environment.refusals = (KeyError,)
    async with self._open(environment) as session:
      await session.reset()
      step = await session.step(answer(a_guess(66)))
      self.assertEqual(step.messages[0].content, "Error: 'the machine room'")
      with self.assertRaisesRegex(EnvironmentFault, "ValueError: 100 is not"):
        await session.step(answer(a_guess(100)))

  async def test_an_object_that_cannot_be_made_is_a_fault(self):
    class Broken(Guessing):
      def make(self, seed):
        raise OSError("no such display")

    with self.assertRaisesRegex(EnvironmentFault, "OSError: no such display"):
      async with self._open(Broken()):
        pass

  async def test_a_reward_that_is_not_finite_is_a_fault(self):
    environment = Guessing()
    async with self._open(environment) as session:
      environment.last.step = lambda number: ("?", float("nan"), False)
      with self.assertRaisesRegex(EnvironmentFault, "reward=nan"):
        await session.step(answer(a_guess(1)))


class HabitsTest(GuessingTestCase):
  """Objects with other conventions for observations and ends."""

  async def _first_and_last(self, environment, number):
    async with self._open(environment) as session:
      first = await session.reset()
      return first, await session.step(answer(a_guess(number)))

  async def test_results_with_names(self):
    @dataclasses.dataclass
    class Seen:
      text: str

    class Named:
      def __init__(self, seed):
        self._seed = seed

      def reset(self):
        return _result(Seen(f"seed {self._seed}"), reward=None, done=False)

      def step(self, number):
        return _result(Seen("the end"), reward=0.5, done=True)

    class Environment(Guessing):
      game = Named

    first, last = await self._first_and_last(Environment(), 1)
    self.assertRegex(
      first.messages[0].content, r'\AGuess the number\.\n\n{"text": "seed \d+"}'
    )
    self.assertEqual(last.messages[0].content, '{"text": "the end"}')
    self.assertEqual((last.reward, last.status), (0.5, Status.COMPLETED))

  async def test_reads_observations_from_the_object(self):
    class Quiet:
      def __init__(self, seed):
        self._said = f"seed {seed}"

      def reset(self, num_players):
        assert num_players == 1

      def get_observation(self):
        return 0, self._said

      def step(self, number):
        self._said = f"{number} it was"
        return True, {}

      def rewards(self):
        return {0: 1}

    class Environment(Guessing):
      game = Quiet

      def begin(self, wrapped, seed):
        wrapped.reset(num_players=1)
        return wrapped.get_observation()[1]

      def outcome(self, wrapped, result):
        done, _ = result
        reward = wrapped.rewards()[0] if done else 0
        return Outcome(wrapped.get_observation()[1], reward, done)

    first, last = await self._first_and_last(Environment(), 7)
    self.assertIn("seed", first.messages[0].content)
    self.assertEqual(last.messages[0].content, "7 it was")
    self.assertEqual((last.reward, last.status), (1, Status.COMPLETED))


class ThreadTest(GuessingTestCase):
  async def test_one_thread_makes_plays_and_closes(self):
    environment = Guessing(blocking=True)
    async with self._open(environment) as session:
      await session.reset()
      await session.step(answer(a_guess(1)))
      game = environment.last
    self.assertEqual(len(game.threads), 1)
    self.assertNotIn(threading.get_ident(), game.threads)

  async def test_a_step_that_does_not_return_is_left_behind(self):
    environment = Guessing(blocking=True, step_limit_s=60.0)
    stuck, entered = threading.Event(), threading.Event()

    def step(number):
      entered.set()
      stuck.wait()

    before = set(threading.enumerate())

    async def play():
      async with self._open(environment) as session:
        environment.last.step = step
        await session.step(answer(a_guess(1)))

    with self.assertLogs("agentrl_jax.env.adapters.executors", "WARNING"):
      playing = asyncio.create_task(play())
      await until(entered.is_set)
      await Clock().forward(61.0)
      with self.assertRaisesRegex(EnvironmentFault, "within 60 s"):
        await playing
    game = environment.last
    self.assertFalse(game.is_closed)
    (thread,) = (
      thread
      for thread in set(threading.enumerate()) - before
      if not thread.name.startswith("asyncio_")
    )
    stuck.set()
    await asyncio.to_thread(thread.join, 10)
    self.assertTrue(game.is_closed)

  async def test_leaving_while_it_plays_closes_it(self):
    environment = Guessing(blocking=True)
    free, entered = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def step(number):
      loop.call_soon_threadsafe(entered.set)
      free.wait()
      return "late", 0.0, False

    async def play():
      async with self._open(environment) as session:
        environment.last.step = step
        await session.step(answer(a_guess(1)))

    playing = asyncio.create_task(play())
    await entered.wait()
    playing.cancel()
    await asyncio.sleep(0)
    free.set()
    with self.assertRaises(asyncio.CancelledError):
      await playing
    self.assertTrue(environment.last.is_closed)

  async def test_a_coroutine_has_the_deadline_whatever_is_refused(self):
    for refusals in (Guessing.refusals, (Exception,)):
      environment = AsyncGuessing(step_limit_s=60.0)
      environment.refusals = refusals
      with self.subTest(refusals=refusals):
        async with self._open(environment) as session:
          environment.last.step = lambda number: asyncio.Event().wait()
          playing = asyncio.create_task(session.step(answer(a_guess(1))))
          await turns_of_the_loop()
          self.assertFalse(playing.done())
          await Clock().forward(61.0)
          with self.assertRaisesRegex(EnvironmentFault, "within 60 s"):
            await playing


class ActionTest(unittest.TestCase):
  def _action(self, properties, arguments):
    environment = Guessing()
    environment.tools = (
      Tool("guess", "", {"type": "object", "properties": properties}),
    )
    return environment.action("guess", arguments)

  def test_one_argument_is_given_alone(self):
    self.assertEqual(self._action({"x": {}}, {"x": 3}), 3)

  def test_others_are_given_by_name(self):
    two = {"x": {}, "y": {}}
    self.assertEqual(self._action(two, {"x": 3}), {"x": 3})
    self.assertEqual(self._action(two, {"x": 3, "y": 4}), {"x": 3, "y": 4})
    self.assertEqual(self._action({"x": {}}, {}), {})
