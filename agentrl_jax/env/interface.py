"""Interface of environments: tasks, and a session per episode.

  async with environment.open(task, seed=0) as session:
    step = await session.reset()
    while step.status is Status.RUNNING:
      step = await session.step(answer_to(step.messages, session.tools))

Implementations live in `environments/` and import only `env` and `data`; test
yours with `env.contract.SessionContract`.
"""

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import (
  Message,
  Scored,
  Status,
  Task,
  Tool,
  ToolCall,
)
from agentrl_jax.env.scripted import GENERIC, ScriptedPolicies, ToolCaller
from agentrl_jax.env.tools import ToolMistake, read_arguments
from agentrl_jax.errors import EnvironmentFault


@dataclasses.dataclass(frozen=True)
class Step(Scored):
  """The environment's reply to an answer.

  `reward` is the episode's reward so far: the last step's reward is the
  episode's, as in AgentRL's protocol. Evaluations average `metrics` by task.
  Numbers of numpy and jax become floats; a reward or metric that is no finite
  number raises `EnvironmentFault`.
  """

  messages: tuple[Message, ...]
  reward: float = 0.0
  status: Status = Status.RUNNING
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    super().__post_init__()
    # An iterator would have no messages left for its second reader.
    object.__setattr__(self, "messages", tuple(self.messages))


class Session(abc.ABC):
  """One episode of one task. Steps are never concurrent.

  The `step` of every subclass has the same guards around it:

  - a step after the episode's end, or after a step that raised an error,
    raises `EnvironmentFault`;
  - an answer's calls beyond `max_calls`, and text of its calls beyond
    `max_call_chars`, are not played, so that one answer cannot hold up the
    other sessions; the policy reads that.
  """

  tools: tuple[Tool, ...]
  max_calls: int = 64  # of an answer
  max_call_chars: int = 1 << 17  # names and arguments of an answer's calls
  _is_stepping = False
  _has_ended = False

  def __init_subclass__(cls, **keywords: Any) -> None:
    """Puts the guards around a `step` that the subclass defines."""
    super().__init_subclass__(**keywords)
    if "step" in vars(cls):
      cls.step = _guarded(cls.step)  # type: ignore[assignment]

  @abc.abstractmethod
  async def reset(self) -> Step:
    """Begins the episode. Called once, first."""

  @abc.abstractmethod
  async def step(self, answer: Message) -> Step:
    """Plays the policy's answer.

    A malformed answer is the policy's mistake: describe it in the returned
    messages. Raise `EnvironmentFault` only if the environment itself is broken.
    """


_StepMethod = Callable[[Any, Message], Coroutine[Any, Any, Step]]


def _guarded(step: _StepMethod) -> _StepMethod:
  """Returns `step` with the guards of `Session`."""

  @functools.wraps(step)
  async def guarded(self: Session, answer: Message) -> Step:
    if self._is_stepping:  # called by the step of a subclass
      return await step(self, answer)
    if self._has_ended:
      raise EnvironmentFault(
        f"{type(self).__name__} got a step after the episode's end; open "
        "another session"
      )
    played = _bounded(answer, self.max_calls, self.max_call_chars)
    self._is_stepping = self._has_ended = True  # a step that raises is the last
    try:
      found = await step(self, played)
    finally:
      self._is_stepping = False
    self._has_ended = found.status is not Status.RUNNING
    if played is answer or self._has_ended:
      return found
    note = (
      f"Error: at most {self.max_calls} calls of an answer are played, and "
      f"{self.max_call_chars:,} characters of their arguments. The rest was "
      "not read."
    )
    messages = (*found.messages, Message("user", note))
    return dataclasses.replace(found, messages=messages)

  return guarded


def _bounded(answer: Message, max_calls: int, max_chars: int) -> Message:
  """Returns the answer without the calls and characters above the bounds.

  Arguments that are cut are no JSON object any more, so no session plays them.
  """
  calls = answer.tool_calls
  num_chars = sum(len(call.name) + len(call.arguments) for call in calls)
  if len(calls) <= max_calls and num_chars <= max_chars:
    return answer
  kept, left = [], max_chars
  for call in calls[:max_calls]:
    name = call.name[:left]
    arguments = call.arguments[: left - len(name)]
    left -= len(name) + len(arguments)
    kept.append(ToolCall(name, arguments, call.id))
  return dataclasses.replace(answer, tool_calls=tuple(kept))


class OneCallSession(Session):
  """Plays the first call of each answer; a subclass says what it does.

  An answer without a call, or with arguments that the schema forbids, is
  answered by a message and counts as a turn. Further calls are ignored.

  Args:
    question: the user's first message.
    max_turns: answers until the session ends.
    no_call: the reply to an answer without a call.
  """

  def __init__(self, question: str, *, max_turns: int, no_call: str):
    self._question, self._no_call = question, no_call
    self.turns_left = max_turns

  @abc.abstractmethod
  def play(self, tool: str, arguments: Mapping[str, Any]) -> str | Step:
    """Returns the tool's reply, or the step that ends the session."""

  def go_on(self, reply: Message) -> Step:
    """Returns the step of an answer after which the task is not solved."""
    if self.turns_left > 0:
      return Step((reply,))
    return Step((reply,), status=Status.TASK_LIMIT_REACHED)

  async def reset(self) -> Step:
    return Step((Message("user", self._question),))

  async def step(self, answer: Message) -> Step:
    self.turns_left -= 1
    if not answer.tool_calls:
      return self.go_on(Message("user", self._no_call))
    call = answer.tool_calls[0]
    arguments = read_arguments(call, self.tools)
    if isinstance(arguments, ToolMistake):
      played: str | Step = arguments.message
    else:
      played = self.play(call.name, arguments)
    if isinstance(played, Step):
      return played
    return self.go_on(Message("tool", played, tool_call_id=call.id))


class Expert(ToolCaller, abc.ABC):
  """A scripted player of one episode, which knows the gold solution."""

  @abc.abstractmethod
  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next answer to the environment's last messages."""


class Environment(abc.ABC):
  """A space of tasks, and of sessions to play them in."""

  name: str
  # True if sessions share tasks or connections: all sessions and `close` then
  # have to run in the same event loop.
  needs_one_loop: bool = False
  is_of_agents: bool = False  # no session opens here: external agents play
  # Names of the mistakes that the expert can make on purpose.
  mistakes: Collection[str] = ()
  policies: ScriptedPolicies = GENERIC  # baselines, by name
  # Name of the policy in `policies` that a run is compared with: the simplest
  # one that plays as the tasks invite. "" compares with none.
  baseline: str = ""

  @abc.abstractmethod
  def indices(self, split: str) -> Sequence[int]:
    """Returns the indices of `split`, in an order that never changes.

    A generator returns a `range`, of any length: content is a pure function of
    (split, index).
    """

  @abc.abstractmethod
  def open(
    self, task: Task, *, seed: int
  ) -> contextlib.AbstractAsyncContextManager[Session]:
    """Opens a new session; leaving the context always frees the session.

    Leaving may be cancelled while it waits: free what must not be lost before
    the first `await`, or in a `finally` around it.
    """

  async def close(self) -> None:  # noqa: B027 - most have nothing to free
    """Frees what outlives sessions, such as a server; called once, last."""

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes a scripted player of one episode of the task.

    Args:
      task: the task to play.
      seed: all randomness of the expert: two experts with the same task, seed
        and mistakes give the same answers.
      mistakes: the probability of each mistake, by its name in `self.mistakes`;
        without any, the expert makes no errors.

    Raises `ConfigError` for a mistake that is not among `self.mistakes`, and
    `NotImplementedError` where there is no expert.
    """
    raise NotImplementedError(f"{self.name} has no expert")

  def scripted_policies(self) -> ScriptedPolicies:
    """Returns baseline policies by name.

    An environment adds the shortcuts that its own tasks invite, as `policies`.
    """
    return self.policies
