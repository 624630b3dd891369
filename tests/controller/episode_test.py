"""Tests of `controller.episode`: limits, timeouts, grammars, exact tokens."""

import asyncio
import contextlib
import dataclasses
import itertools
import unittest
from unittest import mock

import numpy as np

from agentrl_jax.controller.cross_policy import CrossPolicy
from agentrl_jax.controller.episode import (
  Sampling,
  environments_own,
  play_expert,
  run_episode,
)
from agentrl_jax.controller.player import BaselinePlayer, ExpertTextPlayer
from agentrl_jax.data.records import Message, Status
from agentrl_jax.env.interface import Environment, Step
from agentrl_jax.errors import (
  ConfigError,
  DeadlineExceeded,
  EnvironmentFault,
  GeneratorFault,
  PromptTooLong,
  QueueClosed,
)
from environments.arithmetic.environment import ADD, ANSWER
from tests.clocks import until
from tests.controller.stage import (
  LIMITS,
  SAMPLED,
  Brittle,
  ScriptedEngine,
  a_task,
  an_episode,
  answer_of,
  codec,
)
from tests.settings import WAITS

REQUIRED = dataclasses.replace(SAMPLED, calls="required")


async def play(environment=None, engine=None, *, seed=7, **changes):
  settings = {
    "limits": LIMITS,
    "sampling": SAMPLED,
    "waits": WAITS,
    "choose_policy_slot": lambda seed, turn: 0,
  } | changes
  return await run_episode(
    an_episode(seed=seed),
    environment or Brittle(),
    engine or ScriptedEngine(),
    codec(),
    **settings,
  )


def within(**limits):
  """Plays with other limits."""
  return play(limits=dataclasses.replace(LIMITS, **limits))


class Stuck(Environment):
  """Never replies; tells whether its session was closed."""

  name = "stuck"

  def __init__(self):
    self.closed = False

  def indices(self, split):
    return range(1)

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    try:
      yield self
    finally:
      self.closed = True

  tools = ()

  async def reset(self):
    return await asyncio.get_running_loop().create_future()


class EpisodeTest(unittest.IsolatedAsyncioTestCase):
  async def test_right_answers_complete_the_episode(self):
    trajectory = await play()
    self.assertIs(trajectory.status, Status.COMPLETED)
    self.assertEqual(trajectory.reward, 1.0)
    self.assertEqual([t.reward for t in trajectory.turns], [0.0, 1.0])
    roles = [m["role"] for m in trajectory.transcript]
    self.assertEqual(roles[:4], ["user", "assistant", "tool", "assistant"])

  async def test_each_prompt_is_the_tokens_before_it(self):
    engine = ScriptedEngine()
    trajectory = await play(engine=engine)
    before = np.empty(0, np.int32)
    for turn, (prompt, _) in zip(trajectory.turns, engine.asked, strict=True):
      before = np.concatenate([before, turn.observation])
      np.testing.assert_array_equal(prompt, before)
      before = np.concatenate([before, turn.sampled])
    np.testing.assert_array_equal(trajectory.lines[0].tokens, before)

  async def test_observations_render_only_what_is_new(self):
    trajectory = await play()
    question = trajectory.transcript[0]["content"]
    texts = [codec().decode(t.observation) for t in trajectory.turns]
    self.assertIn(question, texts[0])
    self.assertNotIn(question, texts[1])
    reply = trajectory.transcript[2]["content"]
    self.assertEqual(texts[1], f"<|tool|>{reply}<|end|><|assistant|>")

  async def test_sampled_ids_are_kept_though_the_text_has_other_ids(self):
    odd = [codec().encode(c)[0] for c in "What is"]
    self.assertNotEqual(odd, codec().encode("What is").tolist())

    class Odd(ScriptedEngine):
      async def generate(self, prompt, spec):
        return answer_of([*odd, spec.stop_tokens[0]])

    trajectory = await play(engine=Odd())
    self.assertEqual(trajectory.turns[0].sampled[:-1].tolist(), odd)
    self.assertEqual(trajectory.transcript[1]["content"], "What is")

  async def test_an_answer_cut_by_its_budget_gets_its_stop_token_later(self):
    trajectory = await within(max_answer_tokens=3)
    for turn in trajectory.turns:
      self.assertEqual(len(turn.sampled), 3)
    for turn in trajectory.turns[1:]:
      self.assertIn(turn.observation[0], codec().stop_tokens)

  async def test_turn_limit(self):
    trajectory = await within(max_turns=1)
    self.assertIs(trajectory.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(len(trajectory.turns), 1)

  async def test_context_limit_before_the_engine_is_asked(self):
    whole = await play()
    until_second = whole.num_tokens - len(whole.turns[1].sampled)
    limits = dataclasses.replace(LIMITS, max_tokens=until_second)
    engine = ScriptedEngine()
    trajectory = await play(engine=engine, limits=limits)
    self.assertIs(trajectory.status, Status.AGENT_CONTEXT_LIMIT)
    self.assertEqual(len(engine.asked), 1)
    self.assertEqual(len(trajectory.turns), 1)

  async def test_answer_that_runs_out_of_room_is_kept_but_not_played(self):
    whole = await play()
    num_prompt = len(whole.turns[0].observation)
    trajectory = await within(max_tokens=num_prompt + 2)
    self.assertIs(trajectory.status, Status.AGENT_CONTEXT_LIMIT)
    self.assertEqual(len(trajectory.turns[0].sampled), 2)
    self.assertEqual(trajectory.num_tokens, num_prompt + 2)
    self.assertEqual(len(trajectory.transcript), 2)  # no reply to it

  async def test_never_longer_than_allowed(self):
    whole = await play()
    num_prompt = len(whole.turns[0].observation)
    for max_tokens in range(num_prompt + 1, whole.num_tokens + 2):
      with self.subTest(max_tokens=max_tokens):
        trajectory = await within(max_tokens=max_tokens)
        self.assertLessEqual(trajectory.num_tokens, max_tokens)
        done = max_tokens >= whole.num_tokens
        self.assertEqual(trajectory.status is Status.COMPLETED, done)

  async def test_task_too_long_to_begin_is_not_the_policys_doing(self):
    environment = Brittle()
    limits = dataclasses.replace(LIMITS, max_tokens=5)
    with self.assertRaisesRegex(PromptTooLong, "episode.max_tokens"):
      await play(environment, limits=limits)
    self.assertEqual(environment.num_open, 0)

  async def test_engine_out_of_context_ends_a_begun_attempt(self):
    class Short(ScriptedEngine):
      async def generate(self, prompt, spec):
        if self.asked:
          raise PromptTooLong("the engine's context is full")
        return await super().generate(prompt, spec)

    trajectory = await play(engine=Short())
    self.assertIs(trajectory.status, Status.AGENT_CONTEXT_LIMIT)

  async def test_seeds_differ_by_turn_and_repeat(self):
    engines = [ScriptedEngine(), ScriptedEngine(), ScriptedEngine()]
    for engine, seed in zip(engines, (7, 7, 8), strict=True):
      await play(engine=engine, seed=seed)
    seeds = [[spec.seed for _, spec in e.asked] for e in engines]
    self.assertEqual(len(set(seeds[0])), 2)
    self.assertEqual(seeds[0], seeds[1])
    self.assertFalse(set(seeds[0]) & set(seeds[2]))

  async def test_sampling_reaches_the_engine(self):
    engine = ScriptedEngine()
    choose = CrossPolicy(draw_per="turn", weights=(0.0, 0.0, 1.0))
    trajectory = await play(
      engine=engine,
      sampling=Sampling(temperature=0.8, top_k=5, top_p=0.9, calls="free"),
      choose_policy_slot=choose,
    )
    spec = engine.asked[0][1]
    self.assertEqual((spec.temperature, spec.top_k, spec.top_p), (0.8, 5, 0.9))
    self.assertEqual(spec.stop_tokens, codec().stop_tokens)
    self.assertEqual([t.policy_slot for t in trajectory.turns], [2, 2])

  async def test_stuck_environment_is_named_and_left(self):
    environment = Stuck()
    waits = dataclasses.replace(WAITS, reply_timeout_s=1e-9)
    with self.assertRaisesRegex(DeadlineExceeded, "c train 0 to reply"):
      await play(environment, waits=waits)
    self.assertTrue(environment.closed)

  async def test_cancelled_episode_leaves_its_session(self):
    environment = Brittle()
    engine = ScriptedEngine(gate=asyncio.Event().wait)
    async with asyncio.TaskGroup() as tasks:
      episode = tasks.create_task(play(environment, engine))
      await until(lambda: engine.asked)
      self.assertEqual(environment.num_open, 1)
      episode.cancel()
    self.assertEqual(environment.num_open, 0)

  async def test_engine_that_answers_nonsense_is_at_fault(self):
    for answer in (answer_of([]), answer_of([1], logprob=np.nan)):

      class Broken(ScriptedEngine):
        async def generate(self, prompt, spec, answer=answer):
          return answer

      with self.assertRaises(GeneratorFault):
        await play(engine=Broken())


class Raising(Environment):
  """Acts in one of its methods; ends after the first answer otherwise."""

  name = "raising"
  mistakes = ()

  def __init__(self, where, act):
    self._where, self._act = where, act

  def indices(self, split):
    return range(1)

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    await self._in("open")
    try:
      yield self
    finally:
      await self._in("close")

  @property
  def tools(self):
    if self._where == "tools":
      self._act()
    return ()

  async def reset(self):
    await self._in("reset")
    return Step((Message("user", "What is 2 + 3?"),))

  async def step(self, answer):
    await self._in("step")
    return Step((), 1.0, Status.COMPLETED)

  def expert(self, task, *, seed, mistakes):
    if self._where == "expert":
      self._act()
    return self

  def answer(self, messages):
    if self._where == "answer":
      self._act()
    return Message("assistant", "!")

  async def _in(self, where):
    if self._where == where:
      result = self._act()
      if asyncio.iscoroutine(result):
        await result


def raising(error):
  def act():
    raise error

  return act


def scripted(environment, policy="constant"):
  return BaselinePlayer(
    environments={"arithmetic": environment},
    max_turns=3,
    policy=policy,
    waits=WAITS,
  )


class WithoutText(Exception):
  def __str__(self):
    raise ValueError("no text")


ERRORS = (
  ConnectionResetError("peer"),
  TimeoutError("the simulator"),
  KeyError("x"),
  AssertionError(),
  StopIteration(),
  StopAsyncIteration(),
  SystemExit(2),
  asyncio.CancelledError(),
  ExceptionGroup("several", [ValueError("a"), OSError("b")]),
  BaseExceptionGroup("several", [SystemExit(1), ValueError("a")]),
  RecursionError(),
  MemoryError(),
  WithoutText(),
  QueueClosed("a word of ours, and not about the environment"),
)


class EnvironmentsOwnTest(unittest.IsolatedAsyncioTestCase):
  """Errors of an environment's own methods are faults of the episode."""

  async def _play_expert(self, where, act):
    player = ExpertTextPlayer(
      environments={"arithmetic": Raising(where, act)},
      max_turns=3,
      mistakes={},
      waits=WAITS,
    )
    return await player.play(an_episode())

  async def test_errors_of_every_kind_in_every_method(self):
    methods = ("open", "reset", "step", "close", "tools", "expert", "answer")
    for where, error in itertools.product(methods, ERRORS):
      with (
        self.subTest(where=where, error=type(error)),
        self.assertRaisesRegex(EnvironmentFault, "of arithmetic raised"),
      ):
        await self._play_expert(where, raising(error))

  async def test_faults_and_config_errors_of_an_environment_pass(self):
    for error in (EnvironmentFault("a"), ConfigError("b")):
      for where in ("open", "reset", "step", "close"):
        with self.assertRaises(type(error)) as raised:
          await self._play_expert(where, raising(error))
        self.assertIs(raised.exception, error)

  def test_an_interrupt_passes(self):
    for error in (
      KeyboardInterrupt(),
      BaseExceptionGroup("", [ValueError(), KeyboardInterrupt()]),
    ):
      with (
        self.assertRaises(type(error)),
        environments_own("arithmetic", "step"),
      ):
        raise error

  async def test_what_is_no_reply_is_the_environment_s_fault(self):
    answerable = Step((Message("user", "?"),))
    for method, gives, message in (
      ("step", mock.AsyncMock(return_value=None), "a Step is due"),
      ("step", mock.AsyncMock(return_value=Step("text")), "a Message is due"),
      ("reset", mock.AsyncMock(return_value=Step(())), "reset of arithmetic"),
      ("reset", lambda: answerable, "raised TypeError"),  # no coroutine
      ("reset", None, "raised TypeError"),
    ):
      environment = Raising("", None)
      setattr(environment, method, gives)
      for playing in (
        play(environment),
        scripted(environment).play(an_episode()),
      ):
        with self.assertRaisesRegex(EnvironmentFault, message):
          await playing

  async def test_a_step_whose_messages_can_be_read_once(self):
    environment = Raising("", None)
    messages = iter((Message("user", "What is 2 + 3?"),))
    environment.reset = mock.AsyncMock(return_value=Step(messages))
    trajectory = await play(environment)
    self.assertEqual(trajectory.transcript[0]["content"], "What is 2 + 3?")

  async def test_an_answer_that_is_no_message_is_a_fault(self):
    environment = Raising("", None)
    environment.answer = mock.Mock(return_value="5")
    environment.policies = {"odd": lambda *, seed: environment}
    expert = play_expert(
      an_episode(),
      environment,
      environment,
      codec(),
      limits=LIMITS,
      waits=WAITS,
    )
    for playing in (
      expert,
      scripted(environment, policy="odd").play(an_episode()),
    ):
      with self.assertRaisesRegex(EnvironmentFault, "a Message is due"):
        await playing

  async def test_a_class_without_a_name_can_be_played(self):
    class Nameless(Raising):
      name = property()  # reading it raises AttributeError

    self.assertEqual((await play(Nameless("", None))).reward, 1.0)

  async def test_a_bug_of_ours_is_raised_though_closing_breaks(self):
    class Broken(ScriptedEngine):
      async def generate(self, prompt, sampling):
        raise ZeroDivisionError

    with self.assertRaises(ZeroDivisionError) as raised:
      await play(Raising("close", raising(OSError("gone"))), Broken())
    self.assertIn("OSError: gone", raised.exception.__notes__[0])

  async def test_a_cancellation_is_never_lost(self):
    async def wait_and_raise():
      try:
        waiting.set()
        await asyncio.get_running_loop().create_future()
      finally:
        raise OSError("on the way out")

    for where in ("open", "reset", "step", "close"):
      waiting = asyncio.Event()
      playing = asyncio.create_task(play(Raising(where, wait_and_raise)))
      await waiting.wait()
      playing.cancel()
      with self.assertRaises(asyncio.CancelledError):
        await playing
      self.assertTrue(playing.cancelled())

  async def test_a_deadline_is_told_though_the_environment_raises(self):
    async def wait_and_raise():
      try:
        await asyncio.get_running_loop().create_future()
      finally:
        raise OSError("on the way out")

    short = dataclasses.replace(
      WAITS, reply_timeout_s=1e-3, session_timeout_s=1e-3
    )
    for where in ("open", "reset", "step", "close"):
      with self.assertRaises(DeadlineExceeded):
        await play(Raising(where, wait_and_raise), waits=short)


class ExpertTest(unittest.IsolatedAsyncioTestCase):
  async def _play(self, limits=LIMITS):
    environment = Brittle()
    expert = environment.expert(a_task(), seed=1, mistakes={})
    return await play_expert(
      an_episode(seed=1),
      environment,
      expert,
      codec(),
      limits=limits,
      waits=WAITS,
    )

  async def test_a_demonstration_is_what_the_policy_should_write(self):
    trajectory = await self._play()
    self.assertIs(trajectory.status, Status.COMPLETED)
    self.assertEqual(trajectory.reward, 1.0)
    for turn in trajectory.turns:
      self.assertIn(turn.sampled[-1], codec().stop_tokens)
      self.assertTrue((turn.version == -1).all())
      self.assertFalse(turn.behavior_logprob.any())

  async def test_same_tokens_as_a_policy_that_says_the_same(self):
    np.testing.assert_array_equal(
      (await self._play()).lines[0].tokens, (await play()).lines[0].tokens
    )

  async def test_limits_hold_for_experts_too(self):
    limits = dataclasses.replace(LIMITS, max_turns=1)
    trajectory = await self._play(limits)
    self.assertIs(trajectory.status, Status.TASK_LIMIT_REACHED)


class CallContext(Brittle):
  """Has no tools, and takes any answer."""

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    async with super().open(task, seed=seed) as session:
      session.tools = ()
      session.step = self._step
      yield session

  async def _step(self, answer):
    return Step((), status=Status.COMPLETED)


class Growing(Brittle):
  """Has a tool more after the first answer, as BFCL's tasks may."""

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    async with super().open(task, seed=seed) as session:
      session.tools, step = (ADD,), session.step

      async def grown(answer):
        session.tools = (ADD, ANSWER)
        return await step(answer)

      session.step = grown
      yield session


class EpisodeCallsTest(unittest.IsolatedAsyncioTestCase):
  async def test_calls_follow_a_grammar_of_the_task_s_tools(self):
    for calls, choice in (("well_formed", "auto"), ("required", "required")):
      engine = ScriptedEngine()
      sampling = dataclasses.replace(SAMPLED, calls=calls)
      played = await play(engine=engine, sampling=sampling)
      wanted = codec().call_grammar((ADD, ANSWER), choice=choice)
      self.assertEqual([s.grammar for _, s in engine.asked], [wanted] * 2)
      self.assertEqual([t.grammar for t in played.turns], [wanted] * 2)
      # What it said is what the grammar says, so the learner can tell.
      read = codec().grammars(codec().vocab_size)
      for turn in played.turns:
        read.masks(turn.grammar, turn.sampled)
    free = await play(sampling=SAMPLED)
    self.assertEqual({turn.grammar for turn in free.turns}, {""})

  async def test_a_task_without_tools_has_nothing_to_call(self):
    context = CallContext()
    for calls in ("well_formed", "required"):  # of a run with other tasks, too
      sampling = dataclasses.replace(SAMPLED, calls=calls)
      played = await play(context, sampling=sampling)
      self.assertEqual([turn.grammar for turn in played.turns], [""])

  async def test_tools_that_come_on_the_way_are_called_from_then_on(self):
    engine = ScriptedEngine()
    played = await play(Growing(), engine=engine, sampling=REQUIRED)
    wanted = [
      codec().call_grammar(tools, choice="required")
      for tools in ((ADD,), (ADD, ANSWER))
    ]
    self.assertEqual([spec.grammar for _, spec in engine.asked], wanted)
    self.assertEqual([turn.grammar for turn in played.turns], wanted)
