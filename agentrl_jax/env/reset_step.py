"""Any object with `reset` and `step`, as an environment.

  class Guessing(ResetStep):
    name = "guessing"
    tools = (Tool("guess", "Guesses a number.", ...),)

    def make(self, seed):
      return Game(seed)

Its methods may be coroutines. One rule decides whose fault an error is: what
`action` or the object's `step` raises of the kinds in `refusals` refuses the
policy's action, and the policy reads it; whatever else is raised anywhere is an
`EnvironmentFault`.
"""

import abc
import contextlib
import dataclasses
import functools
import json
import math
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from agentrl_jax.data.messages import Message, Tool
from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.interface import Environment, Session, Step
from agentrl_jax.env.reset_step_place import Here, OwnThread, Place
from agentrl_jax.env.reset_step_rules import Outcome, Rules, read_outcome
from agentrl_jax.env.tools import (
  ToolMistake,
  read_arguments,
  require_readable,
)
from agentrl_jax.errors import AgentRLError, ConfigError, EnvironmentFault

MAX_DRAWS = 64  # of a seed, for a first observation on the right side
NOT_PLAYED = "Not played: one call at a time."


class ResetStep(Environment):
  """Subclass it with `name`, `tools` and `make`; the rest can stay.

  Options are those of `Rules`.
  """

  tools: tuple[Tool, ...]
  instructions: str = ""  # above the first observation
  refusals: tuple[type[Exception], ...] = (ValueError,)

  def __init__(self, **rules: Any):
    known = [field.name for field in dataclasses.fields(Rules)]
    if unknown := sorted(rules.keys() - set(known)):
      raise ConfigError(
        f"{type(self).__name__} has no options {', '.join(unknown)}; among "
        f"those it has are {', '.join(known)}"
      )
    self.rules = Rules(**rules)

  @abc.abstractmethod
  def make(self, seed: int) -> Any:
    """A new object; equal seeds must give equal problems."""

  def begin(self, wrapped: Any, seed: int) -> Any:
    """Its first observation, or what gives it when awaited."""
    del seed
    return wrapped.reset()

  def first_observation(self, result: Any) -> Any:
    """The observation in what `begin` gave, which may be all of it."""
    if hasattr(result, "observation") and hasattr(result, "done"):
      return result.observation
    is_pair = isinstance(result, tuple) and len(result) == 2
    return result[0] if is_pair and isinstance(result[1], dict) else result

  def action(self, name: str, arguments: Mapping[str, Any]) -> Any:
    """What `step` is given: the argument of a tool that has only one."""
    tool = next(tool for tool in self.tools if tool.name == name)
    if list(tool.parameters.get("properties", ())) == list(arguments):
      values = list(arguments.values())
      return values[0] if len(values) == 1 else dict(arguments)
    return dict(arguments)

  def outcome(self, wrapped: Any, result: Any) -> Outcome:
    """Reads what `step` gave: a tuple of 3, 4 or 5, or an object with names."""
    del wrapped
    return read_outcome(result)

  def show(self, wrapped: Any, observation: Any) -> str:
    """What the policy reads of an observation."""
    del wrapped
    if isinstance(observation, str):
      return observation
    return json.dumps(observation, default=_plain, ensure_ascii=False)

  def seed_of(self, task: Task) -> int:
    """The seed that `make` gets for the task, for an expert who must know it.

    Raises `ConfigError` unless `split_by` is "seed": first observations decide
    otherwise, and they are not known before the object is made.
    """
    if self.rules.split_by != "seed":
      raise ConfigError(
        f"{self.name}: split_by={self.rules.split_by!r} leaves the seed of a "
        "task to its first observation; set split_by='seed', or have the "
        "expert read what it needs"
      )
    return next(n for n in _seeds(task) if split_of(str(n)) == task.split)

  def indices(self, split: str) -> Sequence[int]:
    """As many as asked for, in both splits."""
    if split not in SPLITS:
      raise ConfigError(
        f"{self.name} has no split {split!r}, only {', '.join(SPLITS)}"
      )
    return range(self.rules.num_tasks)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """A session with an object of its own, closed when it is left.

    The attempt's seed changes nothing: the task says it all, chance included.
    """
    del seed
    self.indices(task.split)
    require_readable(self.tools)
    by_seed = self.rules.split_by == "seed"
    for number in _seeds(task):
      if by_seed and split_of(str(number)) != task.split:
        continue
      async with self._made(number) as (wrapped, shown):
        if not by_seed and split_of(shown) != task.split:
          continue
        yield wrapped.session(shown)
        return
    raise ConfigError(
      f"{self.name}: none of {MAX_DRAWS} first observations falls into "
      f"{task.split!r}, so there are too few for two splits; give it more, or "
      "set split_by='seed' to keep only the seeds apart"
    )

  @contextlib.asynccontextmanager
  async def _made(self, seed: int) -> AsyncIterator[tuple["_Wrapped", str]]:
    limit_s = self.rules.step_limit_s
    place: Place
    place = OwnThread(limit_s) if self.rules.blocking else Here(limit_s)
    wrapped = _Wrapped(self, place)
    try:
      yield wrapped, await wrapped.begin(seed)
    finally:
      await wrapped.close()


class _Wrapped:
  """An object and the place where it runs; what it raises becomes a fault."""

  def __init__(self, environment: ResetStep, place: Place):
    self.environment = environment
    self._place = place
    self._object: Any = None

  async def begin(self, seed: int) -> str:
    """Makes the object: its first observation, shown."""
    environment = self.environment
    with _faults(environment.name):
      self._object = await self._place.run(
        functools.partial(environment.make, seed)
      )
      result = await self._place.run(
        lambda: environment.begin(self._object, seed)
      )
      observation = environment.first_observation(result)
      return await self._shown(observation)

  async def step(
    self, name: str, arguments: Mapping[str, Any]
  ) -> tuple[Outcome, str] | str:
    """The outcome, shown; or why the action was refused."""
    environment = self.environment
    with _faults(environment.name):
      try:
        action = environment.action(name, arguments)
        result = await self._place.run(lambda: self._object.step(action))
      except AgentRLError:  # such as a deadline, whatever `refusals` are
        raise
      except environment.refusals as error:
        return str(error) or type(error).__name__
      outcome = await self._place.run(
        lambda: environment.outcome(self._object, result)
      )
      if not math.isfinite(outcome.reward):
        raise ValueError(f"its reward is {outcome.reward}")
      return outcome, await self._shown(outcome.observation)

  async def close(self) -> None:
    """Closes the object, if it can be closed, and frees the place."""
    close = getattr(self._object, "close", None)
    self._object = None
    with _faults(self.environment.name):
      await self._place.close(close if callable(close) else lambda: None)

  def session(self, shown: str) -> "_Session":
    """The session that plays it."""
    return _Session(self, shown)

  async def _shown(self, observation: Any) -> str:
    shown: str = await self._place.run(
      lambda: self.environment.show(self._object, observation)
    )
    return shown


class _Session(Session):
  def __init__(self, wrapped: _Wrapped, shown: str):
    self.tools = wrapped.environment.tools
    self._wrapped = wrapped
    self._rules = wrapped.environment.rules
    self._shown = shown
    self._num_rounds = 0
    self._rewards: list[float] = []

  async def reset(self) -> Step:
    parts = (self._wrapped.environment.instructions, self._shown)
    return Step((Message("user", "\n\n".join(p for p in parts if p)),))

  async def step(self, answer: Message) -> Step:
    self._num_rounds += 1
    if not answer.tool_calls:
      names = ", ".join(tool.name for tool in self.tools)
      return self._step((Message("user", f"Call a tool: {names}."),))
    call, *others = answer.tool_calls
    arguments = read_arguments(call, self.tools)
    status = Status.RUNNING
    if isinstance(arguments, ToolMistake):
      reply = arguments.message
    else:
      reply, status = await self._play(call.name, arguments)
    replies = [Message("tool", reply, tool_call_id=call.id)]
    replies += [
      Message("tool", NOT_PLAYED, tool_call_id=other.id) for other in others
    ]
    return self._step(tuple(replies), status)

  async def _play(
    self, name: str, arguments: Mapping[str, Any]
  ) -> tuple[str, Status]:
    played = await self._wrapped.step(name, arguments)
    if isinstance(played, str):
      return f"Error: {played}", Status.RUNNING
    outcome, shown = played
    self._rewards.append(outcome.reward)
    if outcome.terminated:
      return shown, Status.COMPLETED
    if not outcome.truncated:
      return shown, Status.RUNNING
    completed = self._rules.truncated_is_completed
    return shown, Status.COMPLETED if completed else Status.TASK_LIMIT_REACHED

  def _step(
    self, replies: tuple[Message, ...], status: Status = Status.RUNNING
  ) -> Step:
    if status is Status.RUNNING and self._num_rounds >= self._rules.max_rounds:
      status = Status.TASK_LIMIT_REACHED
    return Step(
      replies,
      reward=self._rules.value(self._rewards),
      status=status,
      metrics={} if status is Status.RUNNING else self._metrics(),
    )

  def _metrics(self) -> dict[str, float]:
    return {
      "num_actions": float(len(self._rewards)),
      "return": math.fsum(self._rewards),
    }


def _seeds(task: Task) -> Iterator[int]:
  """Seeds of the task's own, to be tried one after the other."""
  for draw in range(MAX_DRAWS):
    rng = random.Random(f"{task.split}/{task.index}/{draw}")
    yield rng.randrange(2**31)


def _plain(value: Any) -> Any:
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return dataclasses.asdict(value)
  return str(value)


@contextlib.contextmanager
def _faults(name: str) -> Iterator[None]:
  """Whatever code from outside raises is an `EnvironmentFault`."""
  try:
    yield
  except AgentRLError:
    raise
  except (Exception, SystemExit) as error:  # noqa: BLE001 - not our code
    raise EnvironmentFault(
      f"{name}: {type(error).__name__}: {error}"
    ) from error
