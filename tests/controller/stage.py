"""Small parts for the controller's tests; some of them break on purpose.

The environment is `environments.arithmetic`, the codec is a `ChatCodec`; the
engine is scripted, but answers in tokens as a real one does.
"""

import asyncio
import contextlib
import functools
import random

import numpy as np

from agentrl_jax.controller.episode import Sampling
from agentrl_jax.controller.groups.group import GroupLimits, RetryLimits
from agentrl_jax.controller.player import PolicyPlayer
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.records import (
  EpisodeLimits,
  EpisodeSpec,
  Group,
  Message,
  Status,
  Task,
  ToolCall,
  Trajectory,
  Turn,
)
from agentrl_jax.env.interface import Environment, Session
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.rollout.api import Completion, SamplingParams
from environments.arithmetic.environment import Arithmetic
from tests.clocks import turns_of_the_loop
from tests.settings import WAITS

LIMITS = EpisodeLimits(max_turns=8, max_tokens=2048, max_answer_tokens=256)
GROUP = GroupLimits(size=4, deadline_s=60)
SAMPLED = Sampling(temperature=1.0, top_k=0, top_p=1.0, calls="free")
RETRIES = RetryLimits(max_retries=2, backoff_s=0)


@functools.cache
def codec() -> ChatCodec:
  return ChatCodec(train_tokenizer(["What is the sum?"], vocab_size=280))


class ScriptedEngine:
  """Plays arithmetic in tokens: right with probability `skill`, by the seed.

  `gate`, if given, is awaited before every answer, and `asked` counts them.
  """

  num_policy_slots = 3

  def __init__(self, *, skill: float = 1.0, version: int = 0, gate=None):
    self.skill = skill
    self.version = version
    self.gate = gate
    self.asked: list[tuple[np.ndarray, SamplingParams]] = []

  async def generate(self, prompt, sampling: SamplingParams) -> Completion:
    self.asked.append((np.array(prompt), sampling))
    await asyncio.sleep(0)
    if self.gate is not None:
      await self.gate()
    right = random.Random(sampling.seed).random() < self.skill
    message = self._play(codec().decode(prompt), right)
    sampled = codec().write(message)[: sampling.max_tokens]
    return answer_of(
      sampled, version=self.version, policy_slot=sampling.policy_slot
    )

  def _play(self, said: str, right: bool) -> Message:
    if not right:
      return Message("assistant", "I do not know.")
    question = said.rsplit("What is ", 1)[1].split("?")[0]
    a, b = (int(term) for term in question.split(" + "))
    replied = f"<|tool|>{a + b}<|end|>" in said
    name, arguments = (
      ("answer", f'{{"value": {a + b}}}')
      if replied
      else ("add", f'{{"a": {a}, "b": {b}}}')
    )
    return Message("assistant", tool_calls=(ToolCall(name, arguments),))


def answer_of(sampled, *, version=0, policy_slot=0, logprob=-0.5) -> Completion:
  n = len(sampled)
  return Completion(
    sampled=np.asarray(sampled, np.int32),
    behavior_logprob=np.full(n, logprob, np.float32),
    raw_logprob=np.full(n, logprob, np.float32),
    version=np.full(n, version, np.int32),
    policy_slot=policy_slot,
  )


class Brittle(Environment):
  """Arithmetic that breaks at random, and knows how many sessions are open.

  Faults have their own dice, so that a retry with the same seed may succeed.
  """

  name = "arithmetic"

  def __init__(self, *, fault_rate: float = 0.0, seed: int = 0):
    self._inner = Arithmetic()
    self._rate = fault_rate
    self._dice = random.Random(seed)
    self.num_open = 0
    self.most_open = 0
    self.num_faults = 0

  def indices(self, split):
    return self._inner.indices(split)

  def expert(self, task, *, seed, mistakes):
    return self._inner.expert(task, seed=seed, mistakes=mistakes)

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    self.may_break("open")
    self.num_open += 1
    self.most_open = max(self.most_open, self.num_open)
    try:
      async with self._inner.open(task, seed=seed) as session:
        yield _BrittleSession(self, session)
    finally:
      try:
        await asyncio.sleep(0)  # closing waits, as closing does
      finally:
        self.num_open -= 1

  def may_break(self, where: str) -> None:
    if self._dice.random() < self._rate:
      self.num_faults += 1
      raise EnvironmentFault(f"broke at {where}, as told")


class _BrittleSession(Session):
  def __init__(self, environment: Brittle, inner: Session):
    self._environment = environment
    self._inner = inner
    self.tools = inner.tools

  async def reset(self):
    self._environment.may_break("reset")
    return await self._inner.reset()

  async def step(self, answer):
    await asyncio.sleep(0)
    self._environment.may_break("step")
    return await self._inner.step(answer)


def a_player(environment=None, engine=None, **changes) -> PolicyPlayer:
  return PolicyPlayer(
    environments={"arithmetic": environment or Brittle()},
    generator=engine or ScriptedEngine(),
    codec=codec(),
    **{"limits": LIMITS, "sampling": SAMPLED, "waits": WAITS} | changes,
  )


def a_task(index: int = 0) -> Task:
  return Task("arithmetic", "train", index)


def an_episode(index: int = 0, *, seed: int = 7) -> EpisodeSpec:
  return EpisodeSpec(task=a_task(index), group_id="g", attempt=0, seed=seed)


def a_trajectory(
  *, version=0, tokens=4, status=Status.COMPLETED, reward=1.0, attempt=0
) -> Trajectory:
  answer = answer_of(range(tokens), version=version)
  turn = Turn(
    np.arange(3, dtype=np.int32),
    answer.sampled,
    answer.behavior_logprob,
    answer.raw_logprob,
    answer.version,
  )
  return Trajectory(
    a_task(), "g", attempt, attempt, (turn,), status, reward=reward
  )


def a_group(position: int = 0, *, version=0, tokens=4) -> Group:
  members = tuple(
    a_trajectory(version=version, tokens=tokens, attempt=n) for n in range(2)
  )
  return Group(f"{position:08d}", a_task(position), members)


async def started(coroutine) -> asyncio.Task:
  """Starts a task, and lets everything run that can."""
  task = asyncio.create_task(coroutine)
  await turns_of_the_loop()
  return task
