"""One attempt at one task, from the first observation to the last reward.

Read this first: it is the loop that all else feeds or feeds upon. Tokens go to
the engine and tokens come back; messages go to the environment. What an attempt
that breaks is worth, and whether to make another, is for `attempt` to decide.
"""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from agentrl_jax.controller.deadline import deadline
from agentrl_jax.controller.recorder import Attempt, Codec, Recorder
from agentrl_jax.data import seeds
from agentrl_jax.data.messages import Message, Tool
from agentrl_jax.data.trajectory import Status, Task, Trajectory
from agentrl_jax.env.interface import Environment, Expert, Session, Step
from agentrl_jax.errors import ConfigError, PromptTooLong
from agentrl_jax.rollout.api import Answer, Generator, SamplingSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
  """What ends an attempt before its environment does."""

  max_turns: int
  max_tokens: int  # prompt, observations and answers together
  max_answer_tokens: int  # of one answer, its stop token included

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if value < 1:
        raise ConfigError(f"episode.{name} is {value}; it must be at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeWaits:
  """How long an attempt waits for others, in seconds."""

  session_timeout_s: float = 300.0  # to open a session, and to close it
  reply_timeout_s: float = 300.0  # for the environment's reply
  answer_timeout_s: float = 600.0  # for the engine's answer

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if not value > 0:
        raise ConfigError(f"waits.{name}={value} must be more than 0 seconds")


# What an answer's calls are held to while it is sampled.
CALLS = {
  "free": "nothing: a call that cannot be read is the policy's mistake",
  "well_formed": "a call names a tool of the task and fits its schema",
  "required": "likewise, and every answer has at least one",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
  """How answers are drawn; as in `rollout.api.SamplingSpec`."""

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  calls: str = "free"

  def __post_init__(self) -> None:
    if self.calls not in CALLS:
      raise ConfigError(
        f"sampling.calls={self.calls!r} is not one of {', '.join(CALLS)}. Set "
        "it with --config.sampling.calls=<name>."
      )

  def spec(self, **fields: Any) -> SamplingSpec:
    """What the engine is asked; `fields` are those that are not settings."""
    settings = dataclasses.asdict(self)
    settings.pop("calls")
    return SamplingSpec(**settings, **fields)


GREEDY = Sampling(temperature=0.0)

# Maps the record and the room left, in tokens, to an answer.
_Ask = Callable[[Recorder, np.ndarray, int], Awaitable[Answer]]


async def run_episode(
  task: Task,
  environment: Environment,
  generator: Generator,
  codec: Codec,
  *,
  limits: EpisodeLimits,
  sampling: Sampling,
  choose_policy_slot: Callable[[int, int], int],
  seed: int,
  group_id: str,
  attempt: int,
  waits: EpisodeWaits = EpisodeWaits(),
) -> Trajectory:
  """Plays until the environment or a limit says stop.

  Raises `PromptTooLong` if the task's own text leaves no room for an answer:
  that is not the policy's doing. Faults of the environment and of the engine
  pass through. The session is left whatever happens, cancellation included.
  """

  async def ask(record: Recorder, prompt: np.ndarray, room: int) -> Answer:
    turn = record.num_turns
    spec = sampling.spec(
      policy_slot=choose_policy_slot(seed, turn),
      max_tokens=min(limits.max_answer_tokens, room),
      stop_tokens=codec.stop_tokens,
      seed=seeds.seed_of(seed, "turn", turn),
      # Attempts of one group share their prompt, so they go to one server.
      conversation=seeds.seed_of(group_id),
      grammar=record.grammar,
    )
    async with deadline(
      waits.answer_timeout_s,
      waiter=f"turn {turn} of attempt {attempt} in group {group_id}",
      holder=f"the rollout engine (policy slot {spec.policy_slot})",
      look_at="whether the engine decodes, and how many requests it holds",
    ):
      return await generator.generate(prompt, spec)

  played = Attempt(task=task, group_id=group_id, number=attempt, seed=seed)
  return await _play(
    played, environment, codec, ask, limits, waits, calls=sampling.calls
  )


async def play_expert(
  task: Task,
  environment: Environment,
  expert: Expert,
  codec: Codec,
  *,
  limits: EpisodeLimits,
  seed: int,
  group_id: str,
  attempt: int = 0,
  waits: EpisodeWaits = EpisodeWaits(),
) -> Trajectory:
  """Records a demonstration: the expert's answers as tokens of version -1.

  The environment is given what the policy's parser reads in those tokens, so a
  demonstration that can be learned from is one that was really played.
  """

  async def ask(record: Recorder, prompt: np.ndarray, room: int) -> Answer:
    sampled = codec.write(expert.answer(record.new_messages))[:room]
    zeros = np.zeros(len(sampled), np.float32)
    version = np.full(len(sampled), -1, np.int32)
    return Answer(sampled, zeros, zeros, version, policy_slot=0)

  played = Attempt(task=task, group_id=group_id, number=attempt, seed=seed)
  return await _play(played, environment, codec, ask, limits, waits)


async def _play(
  attempt: Attempt,
  environment: Environment,
  codec: Codec,
  ask: _Ask,
  limits: EpisodeLimits,
  waits: EpisodeWaits,
  calls: str = "free",
) -> Trajectory:
  async with open_session(environment, attempt, waits) as session:
    record = Recorder(attempt, codec, session.tools)
    step = await reply(session.reset(), attempt, waits)
    record.add_observation(step)
    status = step.status
    while status is Status.RUNNING:
      # Tools may come on the way, and are called from then on.
      record.grammar = _grammar(attempt, codec, session.tools, calls)
      message, status = await _answer(record, codec, ask, limits)
      if message is not None:
        step = await reply(session.step(message), attempt, waits)
        record.add_observation(step)
        status = step.status
  return record.trajectory(status)


def _grammar(
  attempt: Attempt, codec: Codec, tools: Sequence[Tool], calls: str
) -> str:
  """What the next answer has to follow, by `CALLS`."""
  if calls == "required" and not tools:
    raise ConfigError(
      f"sampling.calls='required' asks for a call in every answer, and "
      f"{attempt.task} has no tools: set --config.sampling.calls=well_formed, "
      f"or leave {attempt.task.name} out of tasks.names"
    )
  if calls == "free" or not tools:
    return ""
  choice = "required" if calls == "required" else "auto"
  return codec.call_grammar(tools, choice=choice)


async def _answer(
  record: Recorder, codec: Codec, ask: _Ask, limits: EpisodeLimits
) -> tuple[Message | None, Status]:
  """The answer to play, or no answer and the limit that forbids it.

  An answer that ran out of room is recorded, for the policy wrote it, but not
  played: the environment would take it for something that it is not.
  """
  if record.num_turns >= limits.max_turns:
    return None, Status.TASK_LIMIT_REACHED
  prompt = record.prompt
  room = limits.max_tokens - len(prompt)
  try:
    if room < 1:
      raise PromptTooLong(
        f"{len(prompt)} tokens stand before the answer, and episode.max_tokens"
        f" is {limits.max_tokens}; raise it or leave this task out"
      )
    answer = await ask(record, prompt, room)
  except PromptTooLong:
    if record.num_turns == 0:
      raise
    return None, Status.AGENT_CONTEXT_LIMIT
  message = record.add_action(prompt, answer)
  ended = answer.sampled[-1] in codec.stop_tokens
  if len(answer.sampled) >= room and not ended:
    return None, Status.AGENT_CONTEXT_LIMIT
  return message, Status.RUNNING


@contextlib.asynccontextmanager
async def open_session(
  environment: Environment, attempt: Attempt, waits: EpisodeWaits
) -> AsyncIterator[Session]:
  """A session that is opened in time and closed in time, whatever happens."""
  stack = contextlib.AsyncExitStack()
  where = f"{environment.name} {attempt.task.split} {attempt.task.index}"
  look_at = "the environment's containers or worker, and the load of its host"
  async with deadline(
    waits.session_timeout_s,
    waiter=f"attempt {attempt.number} in group {attempt.group_id}",
    holder=f"{where} to open",
    look_at=look_at,
  ):
    session = await stack.enter_async_context(
      environment.open(attempt.task, seed=attempt.seed)
    )
  try:
    yield session
  finally:
    async with deadline(
      waits.session_timeout_s,
      waiter=f"attempt {attempt.number} in group {attempt.group_id}",
      holder=f"{where} to close",
      look_at=look_at,
    ):
      await stack.aclose()


async def reply(
  stepping: Awaitable[Step], attempt: Attempt, waits: EpisodeWaits
) -> Step:
  """The environment's reply, in time."""
  task = attempt.task
  async with deadline(
    waits.reply_timeout_s,
    waiter=f"attempt {attempt.number} in group {attempt.group_id}",
    holder=f"{task.name} {task.split} {task.index} to reply",
    look_at="the session's log; a policy's own slow command should be ended"
    " by the environment before this",
  ):
    return await stepping
