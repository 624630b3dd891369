"""Adapter of objects with `reset` and `step` to environments.

  class Guessing(ResetStep):
    name = "guessing"
    tools = (Tool("guess", "Guesses a number.", ...),)

    def make(self, seed):
      return Game(seed)

Without tools the policy answers in text, which `text_action` makes `step`'s
argument. The object's methods may be coroutines. An exception of the kinds in
`refusals`, raised by `action`, `text_action` or the object's `step`, refuses
the policy's action, and the policy reads its message. Any other exception is an
`EnvironmentFault`.
"""

import abc
import contextlib
import dataclasses
import functools
import json
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from agentrl_jax.data.chat.codec import split_thoughts
from agentrl_jax.data.records import Message, Scored, Status, Task, Tool
from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.env.adapters.executors import executor_of, faults
from agentrl_jax.env.interface import Environment, Session, Step
from agentrl_jax.env.options import require_one_of, require_positive
from agentrl_jax.env.tools import (
  ToolMistake,
  read_arguments,
  require_names_apart,
)
from agentrl_jax.errors import AgentRLError, ConfigError

RETURNS = ("sum", "last")
SPLIT_BY = ("observation", "seed")
CHANCE_BY = ("task", "episode")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
  """Settings of every wrapped environment."""

  num_tasks: int = 1 << 20  # of each split
  max_rounds: int = 50  # answers of the policy per episode
  returns: str = "sum"  # of the object's rewards, or "last"
  # Returns that become reward 0 and reward 1; None keeps the return.
  reward_range: tuple[float, float] | None = None
  # Otherwise a reached limit, the object's or max_rounds, is the status of an
  # episode, whose reward is advantage.incomplete_reward.
  truncated_is_completed: bool = False
  # Text that separates train and test: the first observation, or the `problem`
  # of a task's seed.
  split_by: str = "observation"
  # Seed that `begin` gets: the task's, so that all its attempts have the same
  # luck; or the episode's, where `make` alone decides about the problem.
  chance_by: str = "task"
  blocking: bool = False  # runs in a thread of its own, with a deadline
  step_limit_s: float = 60.0  # timeout of a blocking call or of an awaitable

  def __post_init__(self) -> None:
    require_positive(
      num_tasks=self.num_tasks,
      max_rounds=self.max_rounds,
      step_limit_s=self.step_limit_s,
    )
    require_one_of(RETURNS, returns=self.returns)
    require_one_of(SPLIT_BY, split_by=self.split_by)
    require_one_of(CHANCE_BY, chance_by=self.chance_by)
    if self.reward_range and self.reward_range[0] >= self.reward_range[1]:
      raise ConfigError(
        f"reward_range={self.reward_range} must name the lower return first"
      )

  def value(self, rewards: Sequence[float]) -> float:
    """Computes the policy's reward from the object's rewards."""
    if not rewards:
      return 0.0
    total = math.fsum(rewards) if self.returns == "sum" else rewards[-1]
    if self.reward_range is None:
      return total
    low, high = self.reward_range
    return min(max((total - low) / (high - low), 0.0), 1.0)


@dataclasses.dataclass(frozen=True)
class Outcome(Scored):
  """The result of one step of a wrapped object."""

  observation: Any
  reward: float
  terminated: bool
  truncated: bool = False
  # Of the episode, unless a later outcome has some.
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


def read_outcome(result: Any) -> Outcome:
  """Reads a tuple of 3, 4 or 5, or an object with named fields."""
  match result:
    case Outcome():
      return result
    case (observation, reward, terminated, truncated, _):
      return Outcome(observation, reward, bool(terminated), bool(truncated))
    case (observation, reward, done, info):  # the old Gym's form
      cut = isinstance(info, Mapping) and bool(info.get("TimeLimit.truncated"))
      return Outcome(observation, reward, bool(done) and not cut, cut)
    case (observation, reward, done):
      return Outcome(observation, reward, bool(done))
  if hasattr(result, "observation") and hasattr(result, "done"):
    reward = getattr(result, "reward", None)
    return Outcome(
      result.observation, 0.0 if reward is None else reward, bool(result.done)
    )
  raise TypeError(
    f"step gave {type(result).__name__}, which is no tuple of 3, 4 or 5 and "
    "has no observation and done; override `outcome` to read it"
  )


MAX_DRAWS = 64  # seeds tried for a first observation of the split
NOT_PLAYED = "Not played: one call at a time."
NO_TOOLS = "Error: there are no tools. Answer in text."


class ResetStep(Environment):
  """Wraps an object; a subclass defines `name`, `make` and its `tools`.

  Options are those of `Rules`, and `instructions`.
  """

  tools: tuple[Tool, ...] = ()  # without any, answers are text
  instructions: str = ""  # above the first observation
  refusals: tuple[type[Exception], ...] = (ValueError,)

  def __init__(self, *, instructions: str = "", **rules: Any):
    self.instructions = instructions or self.instructions
    names = [field.name for field in dataclasses.fields(Rules)]
    if unknown := sorted(rules.keys() - set(names)):
      raise ConfigError(
        f"{type(self).__name__} has no options {', '.join(unknown)}; among "
        f"those it has are {', '.join(names)}"
      )
    self.rules = Rules(**rules)

  @abc.abstractmethod
  def make(self, seed: int) -> Any:
    """Makes a new object; equal seeds must give equal problems."""

  def begin(self, wrapped: Any, seed: int) -> Any:
    """Returns the result of the object's reset, or an awaitable of it."""
    del seed
    return wrapped.reset()

  def first_observation(self, result: Any) -> Any:
    """Extracts the observation from the result of `begin`."""
    if hasattr(result, "observation") and hasattr(result, "done"):
      return result.observation
    is_pair = isinstance(result, tuple) and len(result) == 2
    return result[0] if is_pair and isinstance(result[1], dict) else result

  def action(self, name: str, arguments: Mapping[str, Any]) -> Any:
    """Makes `step`'s argument: a tool's only argument, or all."""
    tool = next(tool for tool in self.tools if tool.name == name)
    if list(tool.parameters.get("properties", ())) == list(arguments):
      values = list(arguments.values())
      return values[0] if len(values) == 1 else dict(arguments)
    return dict(arguments)

  def text_action(self, text: str) -> Any:
    """Makes `step`'s argument of an answer in text, without its thoughts."""
    return text

  def outcome(self, wrapped: Any, result: Any) -> Outcome:
    """Reads the result of `step`: a tuple of 3, 4 or 5, or an object."""
    del wrapped
    return read_outcome(result)

  def show(self, wrapped: Any, observation: Any) -> str:
    """Formats an observation for the policy."""
    del wrapped
    if isinstance(observation, str):
      return observation
    return json.dumps(observation, default=_plain, ensure_ascii=False)

  def problem(self, seed: int) -> str:
    """Returns text that is equal for seeds of one problem, as of one secret.

    With `split_by` "seed" it assigns seeds to splits. By default it is the
    seed, which keeps seeds apart but not their problems.
    """
    return str(seed)

  def seed_of(self, task: Task) -> int:
    """Returns the seed that `make` gets for the task, for an expert.

    Raises `ConfigError` unless `split_by` is "seed": otherwise the first
    observation decides, which is unknown before the object is made.
    """
    if self.rules.split_by != "seed":
      raise ConfigError(
        f"{self.name}: split_by={self.rules.split_by!r} leaves the seed of a "
        "task to its first observation; set split_by='seed', or have the "
        "expert read what it needs"
      )
    for number in _seeds(task):
      if split_of(self.problem(number)) == task.split:
        return number
    raise self._too_few("problems", task)

  def indices(self, split: str) -> Sequence[int]:
    """Returns `num_tasks` indices, in both splits."""
    if split not in SPLITS:
      raise ConfigError(
        f"{self.name} has no split {split!r}, only {', '.join(SPLITS)}"
      )
    return range(self.rules.num_tasks)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session with an object of its own; leaving closes the object.

    The task determines all randomness; with `chance_by` "episode" task and
    session's seed determine that of `begin`.
    """
    self.indices(task.split)
    require_names_apart(self.tools)
    by_seed = self.rules.split_by == "seed"
    by_task = self.rules.chance_by == "task"
    for number in _seeds(task):
      luck = number if by_task else _luck(number, seed)
      session = _Session(self)
      try:
        if by_seed and split_of(await session.problem(number)) != task.split:
          continue
        shown = await session.begin(number, luck)
        if not by_seed and split_of(shown) != task.split:
          continue
        yield session
        return
      finally:
        await session.close()
    raise self._too_few("problems" if by_seed else "first observations", task)

  def _too_few(self, texts: str, task: Task) -> ConfigError:
    return ConfigError(
      f"{self.name}: none of {MAX_DRAWS} {texts} falls into {task.split!r}, so "
      "there are too few for two splits; give it more, or set split_by='seed' "
      "without a `problem` to keep only the seeds apart"
    )


class _Session(Session):
  """An object, its executor and its episode; exceptions become faults."""

  def __init__(self, environment: ResetStep):
    self.tools = environment.tools
    self._environment, self._rules = environment, environment.rules
    self._executor = executor_of(
      blocking=self._rules.blocking, limit_s=self._rules.step_limit_s
    )
    is_completed = self._rules.truncated_is_completed
    self._at_limit = (
      Status.COMPLETED if is_completed else Status.TASK_LIMIT_REACHED
    )
    self._object: Any = None
    self._shown = ""  # first observation
    self._num_rounds = 0
    self._rewards: list[float] = []
    self._metrics: Mapping[str, float] = {}

  async def problem(self, seed: int) -> str:
    """Returns the text by which a seed belongs to a split."""
    with faults(self._environment.name):
      text: str = await self._executor.run(
        lambda: self._environment.problem(seed)
      )
      return text

  async def begin(self, seed: int, luck: int) -> str:
    """Makes the object and returns its first observation as text.

    `seed` decides about the problem, `luck` is the seed of its chance.
    """
    environment = self._environment
    with faults(environment.name):
      self._object = await self._executor.run(lambda: environment.make(seed))
      result = await self._executor.run(
        lambda: environment.begin(self._object, luck)
      )
      self._shown = await self._show(environment.first_observation(result))
    return self._shown

  async def close(self) -> None:
    """Closes the object, if it has a `close`, and the executor."""
    close = getattr(self._object, "close", None)
    self._object = None
    with faults(self._environment.name):
      await self._executor.close(close if callable(close) else lambda: None)

  async def reset(self) -> Step:
    parts = (self._environment.instructions, self._shown)
    return Step((Message("user", "\n\n".join(p for p in parts if p)),))

  async def step(self, answer: Message) -> Step:
    self._num_rounds += 1
    if not self.tools:
      return await self._step_of_text(answer)
    if not answer.tool_calls:
      names = ", ".join(tool.name for tool in self.tools)
      return self._step((Message("user", f"Call a tool: {names}."),))
    call, *others = answer.tool_calls
    arguments = read_arguments(call, self.tools)
    if isinstance(arguments, ToolMistake):
      reply, status = arguments.message, Status.RUNNING
    else:
      reply, status = await self._play(
        functools.partial(self._environment.action, call.name, arguments)
      )
    replies = [Message("tool", reply, tool_call_id=call.id)]
    replies += [
      Message("tool", NOT_PLAYED, tool_call_id=other.id) for other in others
    ]
    return self._step(tuple(replies), status)

  async def _step_of_text(self, answer: Message) -> Step:
    if answer.tool_calls:
      return self._step(
        tuple(
          Message("tool", NO_TOOLS, tool_call_id=call.id)
          for call in answer.tool_calls
        )
      )
    text = split_thoughts(answer.content)[1].strip()
    reply, status = await self._play(
      functools.partial(self._environment.text_action, text)
    )
    is_silent = not reply and status is not Status.RUNNING
    return self._step(() if is_silent else (Message("user", reply),), status)

  async def _play(self, make_action: Callable[[], Any]) -> tuple[str, Status]:
    """Returns the reply to an action, or the reason of its refusal."""
    environment = self._environment
    with faults(environment.name):
      try:
        action = make_action()
        result = await self._executor.run(lambda: self._object.step(action))
      except AgentRLError:  # for example a timeout, whatever `refusals` has
        raise
      except environment.refusals as error:
        return f"Error: {str(error) or type(error).__name__}", Status.RUNNING
      outcome = await self._executor.run(
        lambda: environment.outcome(self._object, result)
      )
      shown = await self._show(outcome.observation)
    self._rewards.append(outcome.reward)
    self._metrics = outcome.metrics or self._metrics
    if outcome.terminated:
      return shown, Status.COMPLETED
    return shown, self._at_limit if outcome.truncated else Status.RUNNING

  async def _show(self, observation: Any) -> str:
    shown: str = await self._executor.run(
      lambda: self._environment.show(self._object, observation)
    )
    return shown

  def _step(
    self, replies: tuple[Message, ...], status: Status = Status.RUNNING
  ) -> Step:
    if status is Status.RUNNING and self._num_rounds >= self._rules.max_rounds:
      status = self._at_limit
    own = {
      "num_actions": float(len(self._rewards)),
      "return": math.fsum(self._rewards),
    }
    return Step(
      replies,
      reward=self._rules.value(self._rewards),
      status=status,
      metrics={} if status is Status.RUNNING else {**own, **self._metrics},
    )


def _seeds(task: Task) -> Iterator[int]:
  """Yields the task's seeds, to be tried one after the other."""
  for draw in range(MAX_DRAWS):
    rng = random.Random(f"{task.split}/{task.index}/{draw}")
    yield rng.randrange(2**31)


def _luck(number: int, seed: int) -> int:
  """Returns a seed of chance, another one for each task and session."""
  return random.Random(f"{number}/{seed}").randrange(2**31)


def _plain(value: Any) -> Any:
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return dataclasses.asdict(value)
  return str(value)
