"""Plays one episode, from the first observation to the last reward.

Start reading the controller here: the loop passes tokens between the recorder
and the engine, and messages between the codec and the environment. `group`
decides about retries and about the worth of an episode that breaks.

`environments_own` is the line between an environment and the framework: all
that raises inside the environment's own methods is a fault of the episode, and
all that raises elsewhere is a bug of ours, which ends the run.
"""

import asyncio
import contextlib
import dataclasses
import traceback
from collections.abc import (
  AsyncIterator,
  Awaitable,
  Callable,
  Iterator,
  Sequence,
)
from typing import Any

import numpy as np

from agentrl_jax import tracing
from agentrl_jax.controller.subagent import (
  NOT_MADE,
  PLANNER,
  WORKER,
  SubagentConfig,
)
from agentrl_jax.controller.waiting import deadline
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.recorder import ChatLine, ChatRecord
from agentrl_jax.data.records import (
  EpisodeLimits,
  EpisodeSpec,
  Message,
  Status,
  Tool,
  Trajectory,
  seed_of,
  status_after,
)
from agentrl_jax.env.interface import Environment, Expert, Session, Step
from agentrl_jax.env.tools import ToolMistake
from agentrl_jax.errors import (
  ConfigError,
  DeadlineExceeded,
  EnvironmentFault,
  GeneratorFault,
  PromptTooLong,
)
from agentrl_jax.keys import Section, key, seconds
from agentrl_jax.rollout.api import Completion, Generator, SamplingParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeWaits(Section, section="waits"):
  """Timeouts of an episode, in seconds; the `waits` section of the config."""

  session_timeout_s: float = seconds(
    300.0, "wait for its environment to open, and to close"
  )
  reply_timeout_s: float = seconds(
    300.0, "wait for each reply of the environment"
  )
  answer_timeout_s: float = seconds(600.0, "wait for each answer of the engine")


# Constraints on the calls of an answer while it is sampled.
CALLS = {
  "free": "nothing: a call that cannot be read is the policy's mistake",
  "well_formed": "a call names a tool of the task and fits its schema",
  "required": "likewise, and every answer has one at least; a task without"
  " tools is answered in text",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(Section, section="sampling"):
  """Sampling parameters of answers; as in `rollout.api.SamplingParams`."""

  temperature: float = key(0.8, "of answers in training")
  top_k: int = 0  # training needs all tokens
  top_p: float = 1.0
  calls: str = key(
    "free",
    "grammar of tool calls, in training and evaluation: free, well_formed (a "
    "tool's name, arguments that fit its schema), or required (the same, and "
    "at least one call per answer). A task without tools has no grammar",
    one_of=CALLS,
  )

  def params(self, **fields: Any) -> SamplingParams:
    """Returns parameters of a request: these settings, and `fields`."""
    settings = dataclasses.asdict(self)
    settings.pop("calls")
    return SamplingParams(**settings, **fields)


# Maps a line, the turn's number in the episode, the prompt and the number of
# tokens left to an answer.
_Ask = Callable[[ChatLine, int, np.ndarray, int], Awaitable[Completion]]


async def run_episode(
  spec: EpisodeSpec,
  environment: Environment,
  generator: Generator,
  codec: ChatCodec,
  *,
  limits: EpisodeLimits,
  sampling: Sampling,
  choose_policy_slot: Callable[[int, int], int],
  waits: EpisodeWaits,
  subagent: SubagentConfig | None = None,
) -> Trajectory:
  """Plays until the environment or a limit ends the episode.

  Raises `PromptTooLong` if the task's own text leaves no room for an answer,
  which is not the policy's fault. Faults of the environment and of the engine
  pass through. The session is closed in any case, cancellation included.
  """

  async def ask(
    line: ChatLine, turn: int, prompt: np.ndarray, room: int
  ) -> Completion:
    request = sampling.params(
      policy_slot=choose_policy_slot(spec.seed, turn),
      max_tokens=min(limits.max_answer_tokens, room),
      stop_tokens=codec.stop_tokens,
      seed=seed_of(spec.seed, "turn", turn),
      # Episodes of one group share their prompt, so they go to one server.
      conversation=seed_of(spec.group_id),
      grammar=line.grammar,
    )
    facts: dict[str, tracing.Value] = {
      "gen_ai.operation.name": "chat",
      "gen_ai.request.max_tokens": request.max_tokens,
      "gen_ai.usage.input_tokens": len(prompt),
      "agentrl.turn": turn,
      "agentrl.policy_slot": request.policy_slot,
    }
    with tracing.span("chat", facts) as span:
      async with deadline(
        waits.answer_timeout_s,
        waiter=f"turn {turn} of {_name(spec)}",
        holder=f"the rollout engine (policy slot {request.policy_slot})",
        look_at="whether the engine decodes, and how many requests it holds",
      ):
        answer = await generator.generate(prompt, request)
      span.set_attribute("gen_ai.usage.output_tokens", len(answer.sampled))
      if len(answer.version):
        span.set_attribute("agentrl.version.oldest", int(answer.version.min()))
      return answer

  return await _play(
    spec, environment, codec, ask, limits, waits, sampling.calls, subagent
  )


async def play_expert(
  spec: EpisodeSpec,
  environment: Environment,
  expert: Expert,
  codec: ChatCodec,
  *,
  limits: EpisodeLimits,
  waits: EpisodeWaits,
) -> Trajectory:
  """Records a demonstration: the expert's answers as tokens of version -1.

  The environment is given the message that the policy's parser reads in those
  tokens: a demonstration that can be learned from is one that was played.
  """

  async def ask(
    line: ChatLine, turn: int, prompt: np.ndarray, room: int
  ) -> Completion:
    with environments_own(spec.task.name, "expert"):
      message = require_message(expert.answer(line.new_messages))
    sampled = codec.write(message)[:room]
    zeros = np.zeros(len(sampled), np.float32)
    version = np.full(len(sampled), -1, np.int32)
    return Completion(sampled, zeros, zeros, version, policy_slot=0)

  return await _play(spec, environment, codec, ask, limits, waits, calls="free")


async def first_prompt(
  spec: EpisodeSpec,
  environment: Environment,
  codec: ChatCodec,
  *,
  waits: EpisodeWaits,
  subagent: SubagentConfig | None = None,
) -> np.ndarray:
  """Returns the tokens that an episode shows the policy first.

  Opens a session for it. Raises `ConfigError` for a chat template that cannot
  show the task.
  """
  async with open_session(environment, spec, waits) as session:
    step = await begin(session, spec, waits)
    tools = tools_of(session, spec)
    if subagent is not None and subagent.tool:
      tools = subagent.tools(tools)
    return codec.start(step.messages, tools)


async def _play(
  spec: EpisodeSpec,
  environment: Environment,
  codec: ChatCodec,
  ask: _Ask,
  limits: EpisodeLimits,
  waits: EpisodeWaits,
  calls: str,
  subagent: SubagentConfig | None = None,
) -> Trajectory:
  async with open_session(environment, spec, waits) as session:
    episode = _RunningEpisode(spec, session, codec, ask, limits, waits, calls)
    if subagent is not None and subagent.tool:
      status = await _with_subagents(episode, subagent)
    else:
      status = await _alone(episode)
  return episode.record.trajectory(status)


class _RunningEpisode:
  """An episode while it is played: its session, its record and its rules."""

  def __init__(
    self,
    spec: EpisodeSpec,
    session: Session,
    codec: ChatCodec,
    ask: _Ask,
    limits: EpisodeLimits,
    waits: EpisodeWaits,
    calls: str,
  ):
    self.session, self._limits = session, limits
    self.record = ChatRecord(spec, codec, limits.max_tokens)
    self._spec, self._codec, self._ask = spec, codec, ask
    self._waits, self._calls = waits, calls

  @property
  def tools(self) -> Sequence[Tool]:
    """The session's tools at present: it may add some during the episode."""
    return tools_of(self.session, self._spec)

  async def reset(self, line: ChatLine) -> Step:
    """Records the environment's first messages on a line."""
    step = await begin(self.session, self._spec, self._waits)
    self.record.add_step(line, step)
    return step

  async def step(self, line: ChatLine, message: Message) -> Status:
    """Gives the environment an answer of a line, and records the reply."""
    step = await next_step(self.session, message, self._spec, self._waits)
    self.record.add_step(line, step)
    return step.status

  async def answer(
    self, line: ChatLine, tools: Sequence[Tool]
  ) -> tuple[Message | None, Status]:
    """Returns the answer to play, or None and the limit that forbids it.

    An answer that was cut off for want of room is recorded, because the policy
    sampled it, but not played: the environment would misread it.
    """
    status = status_after(self.record.num_turns, self._limits.max_turns)
    if status is not Status.RUNNING:
      return None, status
    line.grammar = _grammar(self._codec, tools, self._calls)
    try:
      prompt = await line.prompt_in_turn()
      room = self._limits.max_tokens - len(prompt)
      if room < 1:
        raise PromptTooLong(f"{len(prompt)} tokens stand before the answer")
      answer = await self._ask(line, self.record.num_turns, prompt, room)
    except PromptTooLong as error:
      if self.record.num_turns == 0:
        raise PromptTooLong(
          f"{error}; episode.max_tokens is {self._limits.max_tokens}: raise "
          "it, leave this task out, or leave out tools of an MCP server by "
          "environments.NAME.options.tools=(...)"
        ) from error
      return None, Status.AGENT_CONTEXT_LIMIT
    message = line.add_action(prompt, answer, tools)
    ended = answer.sampled[-1] in self._codec.stop_tokens
    if len(answer.sampled) >= room and not ended:
      return None, Status.AGENT_CONTEXT_LIMIT
    return message, Status.RUNNING


async def _alone(episode: _RunningEpisode) -> Status:
  """Plays one conversation to its end; returns how it ended."""
  line = episode.record.start_line(episode.tools)
  status = (await episode.reset(line)).status
  while status is Status.RUNNING:
    message, status = await episode.answer(line, episode.tools)
    if message is not None:
      status = await episode.step(line, message)
  return status


async def _with_subagents(
  episode: _RunningEpisode, subagent: SubagentConfig
) -> Status:
  """Plays a planner, who may call workers; returns how the episode ended."""
  line = episode.record.start_line(subagent.tools(episode.tools), PLANNER)
  first = await episode.reset(line)
  status = first.status
  while status is Status.RUNNING:
    message, status = await episode.answer(line, subagent.tools(episode.tools))
    if message is None:
      break
    call = subagent.call_in(message)
    if call is None:
      status = await episode.step(line, message)
      continue
    text = subagent.read(message, call)
    if isinstance(text, ToolMistake):
      said = text.message
    else:
      said, status = await _work(episode, subagent, text, first.messages)
    line.add_observation(
      [
        Message(
          "tool", said if each is call else NOT_MADE, tool_call_id=each.id
        )
        for each in message.tool_calls
      ],
      is_last=status is not Status.RUNNING,
    )
  return status


async def _work(
  episode: _RunningEpisode,
  subagent: SubagentConfig,
  text: str,
  first: Sequence[Message],
) -> tuple[str, Status]:
  """Plays a worker; returns its last message, and the episode's status."""
  line = episode.record.start_line(episode.tools, WORKER)
  line.add_observation(subagent.first_messages(text, first))
  for _ in range(subagent.max_turns):
    message, status = await episode.answer(line, episode.tools)
    if status is Status.AGENT_CONTEXT_LIMIT:
      return subagent.nothing_came(is_long=True), Status.RUNNING
    if message is None:
      return "", status
    if not message.tool_calls:
      return message.content, Status.RUNNING
    status = await episode.step(line, message)
    if status is not Status.RUNNING:
      return "", status
  return subagent.nothing_came(is_long=False), Status.RUNNING


def _grammar(codec: ChatCodec, tools: Sequence[Tool], calls: str) -> str:
  """Returns the grammar of the next answer, by `CALLS`."""
  if calls == "free" or not tools:
    return ""
  choice = "required" if calls == "required" else "auto"
  return codec.call_grammar(tools, choice=choice)


@contextlib.asynccontextmanager
async def open_session(
  environment: Environment, spec: EpisodeSpec, waits: EpisodeWaits
) -> AsyncIterator[Session]:
  """Opens a session, and closes it in any case; both have a deadline."""
  stack = contextlib.AsyncExitStack()
  task = spec.task  # its name is the config's, as an own class may have none
  session_name = f"{task.name} {task.split} {task.index}"
  look_at = "the environment's containers or worker, and the load of its host"
  with tracing.span("open environment", {}):
    async with deadline(
      waits.session_timeout_s,
      waiter=_name(spec),
      holder=f"{session_name} to open",
      look_at=look_at,
    ):
      with environments_own(task.name, "open"):
        session = await stack.enter_async_context(
          environment.open(task, seed=spec.seed)
        )

  async def close() -> None:
    async with deadline(
      waits.session_timeout_s,
      waiter=_name(spec),
      holder=f"{session_name} to close",
      look_at=look_at,
    ):
      with environments_own(task.name, "close"):
        await stack.aclose()

  try:
    yield session
  except BaseException as error:
    try:
      await close()
    except (EnvironmentFault, DeadlineExceeded) as fault:
      # A fault in place of a bug or of a cancellation would be retried.
      error.add_note(f"closing the session broke as well: {fault}")
    raise
  await close()


@contextlib.contextmanager
def environments_own(task: str, method: str) -> Iterator[None]:
  """Turns what an environment's own code raises into `EnvironmentFault`.

  Passes on:

  - faults, and `ConfigError`, by which an environment refuses a setting;
  - KeyboardInterrupt, and GeneratorExit, by which Python closes a coroutine;
  - a cancellation that somebody asked for, also where the environment raises
    another error on its way out. A `CancelledError` that nobody asked for is
    the environment's own.
  """
  try:
    yield
  except (EnvironmentFault, GeneratorFault, DeadlineExceeded, ConfigError):
    raise
  except BaseException as error:  # SystemExit of a library is no end of the run
    if _is_for_the_process(error):
      raise
    waiting = asyncio.current_task()
    if waiting is not None and waiting.cancelling():
      if isinstance(error, asyncio.CancelledError):
        raise
      raise asyncio.CancelledError from error
    described = "".join(traceback.format_exception_only(error)).strip()
    raise EnvironmentFault(
      f"{method} of {task} raised {described:.500}"
    ) from error


def _is_for_the_process(error: BaseException) -> bool:
  if isinstance(error, BaseExceptionGroup):
    return any(map(_is_for_the_process, error.exceptions))
  return isinstance(error, KeyboardInterrupt | GeneratorExit)


def tools_of(session: Session, spec: EpisodeSpec) -> Sequence[Tool]:
  """Returns the session's tools at present."""
  with environments_own(spec.task.name, "tools"):
    tools = tuple(session.tools)
    for tool in tools:
      if not isinstance(tool, Tool):
        raise TypeError(f"{tool!r:.80} is among them, and a Tool is due")
    return tools


async def begin(
  session: Session, spec: EpisodeSpec, waits: EpisodeWaits
) -> Step:
  """Waits for the session's first messages, of which there is one at least."""
  # The method is looked up where what is no session is a fault.
  step = await _reply(lambda: session.reset(), spec, waits)
  if step.status is Status.RUNNING and not step.messages:
    raise EnvironmentFault(
      f"reset of {spec.task.name} gave no message that could be answered"
    )
  return step


async def next_step(
  session: Session, answer: Message, spec: EpisodeSpec, waits: EpisodeWaits
) -> Step:
  """Waits for the session's reply to an answer."""
  return await _reply(lambda: session.step(answer), spec, waits)


async def _reply(
  stepping: Callable[[], Awaitable[Step]],
  spec: EpisodeSpec,
  waits: EpisodeWaits,
) -> Step:
  """Waits for the environment's reply, with a deadline."""
  task = spec.task
  with tracing.span("environment", {}) as span:
    async with deadline(
      waits.reply_timeout_s,
      waiter=_name(spec),
      holder=f"{task.name} {task.split} {task.index} to reply",
      look_at="the session's log; a policy's own slow command should be ended"
      " by the environment before this",
    ):
      with environments_own(task.name, "reset or step"):
        step = await stepping()
        _require_step(step)
    span.set_attribute("agentrl.status", step.status.value)
    return step


def _require_step(step: object) -> None:
  """Raises `TypeError` for a reply that cannot be read."""
  if not isinstance(step, Step):
    raise TypeError(f"it returned {type(step).__name__}, and a Step is due")
  for message in step.messages:
    require_message(message)


def require_message(message: object) -> Message:
  """Returns a message of an environment. Raises `TypeError` for none."""
  if not isinstance(message, Message):
    raise TypeError(f"it gave {message!r:.80}, and a Message is due")
  return message


def _name(spec: EpisodeSpec) -> str:
  """Names the episode in messages."""
  return f"attempt {spec.attempt} in group {spec.group_id}"
