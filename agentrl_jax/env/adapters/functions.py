"""Environments of typed functions: tools, a reward, and a state per episode.

  class Arithmetic(FunctionEnvironment[Sum]):
    name = "arithmetic"
    functions = (add, answer)  # the tools
    reward = is_right

    def draw(self, rng):
      return Sum(rng.randint(0, 99), rng.randint(0, 99))

    def question(self, state):
      return f"What is {state.a} + {state.b}?"

`Sum` is the dataclass of an episode's state:

- Each episode has a deep copy of what `draw` returned; its functions get this
  copy, and may change it, if they have a parameter `state`.
- A function ends the episode by returning a `FinalAnswer`.
- The reward function gets what its parameters name: `answer`, the value of the
  `FinalAnswer`; `state`; and any field of the state, as it is at the end.
- `PolicyMistake` is a message to the policy. Any other error of a function is
  an `EnvironmentFault`, and the episode is never trained on.

Functions and parameters are checked when the class is defined.
"""

import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import json
import random
import typing
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import pydantic

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.env.adapters.executors import Executor, executor_of, faults
from agentrl_jax.env.adapters.function_tools import (
  STATE,
  FunctionTool,
  hints_of,
  parameters_of,
  read_reward,
  require_state_hint,
  tool_of,
)
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Session, Step
from agentrl_jax.env.options import require_positive
from agentrl_jax.env.tools import (
  ToolMistake,
  read_arguments,
  require_names_apart,
)
from agentrl_jax.errors import ConfigError, suggestion

ANSWER = "answer"  # the reward's parameter that gets the final answer
MAX_DRAWS = 1000  # tried for a question of the split
NOT_PLAYED = "Not played: one call at a time."
S = TypeVar("S")


@dataclasses.dataclass(frozen=True)
class FinalAnswer:
  """Result of a function that ends the episode; the reward gets `value`."""

  value: Any = None


class PolicyMistake(Exception):
  """Raised by a function: the policy reads the message, and goes on."""

  def __init__(self, message: str):
    if not isinstance(message, str) or not message:
      raise TypeError(
        f"PolicyMistake({message!r}): the policy needs a text that says what "
        "was wrong and what is allowed"
      )
    super().__init__(message)


class FunctionEnvironment(IndexedEnvironment[S], Generic[S]):
  """Tasks whose tools and reward are functions; S is the state's dataclass.

  A subclass defines `name`, `functions`, `reward`, `draw` and `question`, and
  `expert` where the policy is trained from random weights.
  """

  functions: ClassVar[Sequence[Callable[..., Any]]]  # coroutines or not
  reward: ClassVar[Callable[..., Any]]  # a coroutine or not
  max_turns: int = 10  # answers of the policy per episode
  # Functions that wait without `await`: they then run in a thread of the
  # episode's own, for else all other episodes wait with them.
  blocking: bool = False
  step_limit_s: float = 60.0  # timeout of a blocking call or of an awaitable
  not_played: str = NOT_PLAYED  # reply to all calls after an answer's first

  function_tools: ClassVar[Mapping[str, FunctionTool]]  # made of `functions`
  _state_type: ClassVar[type | None] = None
  _reward_names: ClassVar[Mapping[str, inspect.Parameter]]

  def __init_subclass__(cls) -> None:
    """Checks functions, state and reward."""
    super().__init_subclass__()
    cls._state_type = _state_type_of(cls) or cls._state_type
    if cls._state_type is not None:
      _require_state(cls._state_type, cls.__name__)
    if hasattr(cls, "functions"):
      cls.function_tools = _tools_of(cls)
    if hasattr(cls, "reward") and hasattr(cls, "functions"):
      cls._reward_names = _reward_names_of(cls)

  def __init__(
    self,
    *,
    num_tasks: int | Mapping[str, int] = 1 << 20,
    loaded: Mapping[str, Sequence[Any]] | None = None,
    max_turns: int | None = None,  # None keeps the class's
  ):
    super().__init__(num_tasks=num_tasks, loaded=loaded)
    if max_turns is not None:
      self.max_turns = max_turns
    kind = type(self)
    for needed in ("name", "functions", "reward"):
      if not hasattr(kind, needed):
        raise ConfigError(
          f"{kind.__name__} does not define `{needed}`"
          f"{suggestion(needed, vars(kind))}"
        )
    if self._state_type is None:
      raise ConfigError(
        f"{kind.__name__} does not say which dataclass its state is; derive it "
        "from FunctionEnvironment[State]"
      )
    require_positive(max_turns=self.max_turns, step_limit_s=self.step_limit_s)

  def draw(self, rng: random.Random) -> S:
    """Draws a task, from nothing but `rng`; unused if all tasks are loaded."""
    raise ConfigError(
      f"{self.name} does not define `draw`, which split {'/'.join(SPLITS)} "
      "takes its tasks from; define it, or load tasks and play their split"
    )

  def question(self, state: S) -> str:
    """Returns the first message, which alone separates train from test."""
    raise ConfigError(
      f"{self.name} does not define `question`, the policy's first message"
    )

  def generate(self, split: str, index: int) -> S:
    """Draws a task until its question belongs to the split."""
    rng = random.Random(f"{split}/{index}")
    for _ in range(MAX_DRAWS):
      state = self.draw(rng)
      if split_of(self._ask(copy.deepcopy(state))) == split:
        return state
    raise ConfigError(
      f"{self.name}: none of {MAX_DRAWS} questions that were drawn belongs to "
      f"split {split!r}; `draw` must have more different ones for two splits, "
      "and `question` must tell them apart"
    )

  def find(self, task: Task) -> S:
    """Returns a copy of the task's state as every episode of it begins."""
    state = super().find(task)
    if type(state) is not self._state_type:
      raise ConfigError(
        f"{self.name}: the state of {task} is {state!r:.80}, and the class is "
        f"a FunctionEnvironment of {self._state_type}; return this from `draw` "
        "and `load`"
      )
    try:
      return copy.deepcopy(state)
    except TypeError as error:
      raise ConfigError(
        f"{self.name}: the state of {task} cannot be copied for an episode "
        f"({error}); leave out of it what cannot be, such as locks and files"
      ) from error

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session with a state of its own.

    The session's seed has no effect: the task determines all randomness.
    """
    del seed
    with faults(f"{self.name}, {task}"):
      state = self.find(task)
      question = self._ask(state)
    executor = executor_of(blocking=self.blocking, limit_s=self.step_limit_s)
    try:
      yield _FunctionSession(self, state, question, executor)
    finally:
      await executor.close(lambda: None)

  def _ask(self, state: S) -> str:
    question = self.question(state)
    if not isinstance(question, str) or not question:
      raise ConfigError(
        f"{self.name}: `question` returned {question!r}; return the text that "
        "the policy reads first"
      )
    return question

  def can_reward_unfinished(self) -> bool:
    """Says if the reward function can be called without a final answer."""
    needed = self._reward_names.get(ANSWER)
    return needed is None or needed.default is not inspect.Parameter.empty

  def call_reward(self, state: S, final: FinalAnswer | None) -> Any:
    """Calls the reward function with what its parameters name.

    Without a final answer, the parameter `answer` has its default.
    """
    values = {
      **{name: getattr(state, name) for name in _fields(type(state))},
      STATE: state,
      **({} if final is None else {ANSWER: final.value}),
    }
    names = [name for name in self._reward_names if name in values]
    return _reward_of(type(self))(**{name: values[name] for name in names})


class _FunctionSession(Session):
  def __init__(
    self,
    environment: FunctionEnvironment[Any],
    state: Any,
    question: str,
    executor: Executor,
  ):
    self.tools = tuple(
      each.tool for each in environment.function_tools.values()
    )
    self._environment = environment
    self._state = state
    self._question = question
    self._executor = executor
    self._turns_left = environment.max_turns

  async def reset(self) -> Step:
    return Step((Message("user", self._question),))

  async def step(self, answer: Message) -> Step:
    self._turns_left -= 1
    if not answer.tool_calls:
      names = " or ".join(tool.name for tool in self.tools)
      reply = Message("user", f"No tool call found. Call {names}.")
      return await self._go_on((reply,))
    call, *others = answer.tool_calls
    arguments = read_arguments(call, self.tools)
    if isinstance(arguments, ToolMistake):
      text = arguments.message
    else:
      played = await self._play(call.name, arguments)
      if isinstance(played, FinalAnswer):
        reward, metrics = await self._reward(played)
        return Step((), reward=reward, status=Status.COMPLETED, metrics=metrics)
      text = played
    replies = [Message("tool", text, tool_call_id=call.id)]
    if self._environment.not_played:
      replies += [
        Message("tool", self._environment.not_played, tool_call_id=other.id)
        for other in others
      ]
    return await self._go_on(tuple(replies))

  async def _play(
    self, name: str, arguments: Mapping[str, Any]
  ) -> str | FinalAnswer:
    """Calls a function; the policy's text, or the answer that ends it all."""
    tool = self._environment.function_tools[name]
    with self._faults(f"function {name}"):
      try:
        keywords = tool.keywords(arguments, self._state)
      except pydantic.ValidationError as mistake:
        return f"Error: {mistake}"
      try:
        result = await self._executor.run(
          functools.partial(tool.function, **keywords)
        )
      except PolicyMistake as mistake:
        return f"Error: {mistake}"
      if not isinstance(result, FinalAnswer):
        return _text_of(result)
      if not _can_end(tool):
        raise TypeError(
          "it returned a FinalAnswer, which its annotation does not have; "
          "write `-> FinalAnswer`, or `-> str | FinalAnswer`"
        )
      return result

  async def _go_on(self, replies: tuple[Message, ...]) -> Step:
    if self._turns_left > 0:
      return Step(replies)
    metrics: Mapping[str, float] = {}
    reward = 0.0
    if self._environment.can_reward_unfinished():
      reward, metrics = await self._reward(None)
    return Step(
      replies, reward=reward, status=Status.TASK_LIMIT_REACHED, metrics=metrics
    )

  async def _reward(
    self, final: FinalAnswer | None
  ) -> tuple[float, Mapping[str, float]]:
    with self._faults("the reward function"):
      value = await self._executor.run(
        lambda: self._environment.call_reward(self._state, final)
      )
      return read_reward(value)

  def _faults(self, what: str) -> contextlib.AbstractContextManager[None]:
    return faults(f"{self._environment.name}, {what}")


def _can_end(tool: FunctionTool) -> bool:
  """Says if the annotation of the function's result has `FinalAnswer`."""
  parts = typing.get_args(tool.returns) or (tool.returns,)
  return any(part is FinalAnswer for part in parts)


def _text_of(result: Any) -> str:
  """Returns text unchanged, and any other result as JSON."""
  if isinstance(result, str):
    return result
  return json.dumps(result, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
  if isinstance(value, enum.Enum):
    return value.value
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return dataclasses.asdict(value)
  raise TypeError(
    f"it returned {type(value).__name__}, which is not JSON; return a text"
  )


def _state_type_of(cls: type) -> type | None:
  """Returns the S of `class cls(FunctionEnvironment[S])`, if it has one."""
  for base in vars(cls).get("__orig_bases__", ()):
    origin = typing.get_origin(base)
    if isinstance(origin, type) and issubclass(origin, FunctionEnvironment):
      (state,) = typing.get_args(base)
      return None if isinstance(state, TypeVar) else state
  return None


def _fields(state_type: Any) -> tuple[str, ...]:
  return tuple(field.name for field in dataclasses.fields(state_type))


def _require_state(state_type: type, owner: str) -> None:
  """Refuses states that are no dataclass, or that episodes would share."""
  if not dataclasses.is_dataclass(state_type):
    raise ConfigError(
      f"{owner}: the state {state_type!r} is no dataclass; decorate it with "
      "@dataclasses.dataclass, so that its fields have names"
    )
  for name in (STATE, ANSWER):
    if name in _fields(state_type):
      raise ConfigError(
        f"{owner}: {state_type.__name__} has a field {name!r}, which names "
        "something else in a reward function; rename the field"
      )
  for base in state_type.__mro__:
    for name, value in vars(base).items():
      shared = isinstance(value, list | dict | set | bytearray)
      if shared and not name.startswith("__"):
        raise ConfigError(
          f"{owner}: {base.__name__}.{name} is a {type(value).__name__} of the "
          "class, which all episodes would share; make it a field with "
          "default_factory, or a constant that cannot change"
        )


def _tools_of(
  cls: type[FunctionEnvironment[Any]],
) -> Mapping[str, FunctionTool]:
  functions = cls.functions
  if not isinstance(functions, list | tuple) or not functions:
    raise ConfigError(
      f"{cls.__name__}.functions is {functions!r}; allowed is a tuple of one "
      "or more functions, as in `functions = (add,)`"
    )
  tools = [tool_of(function, cls._state_type) for function in functions]
  require_names_apart([tool.tool for tool in tools])
  return {tool.tool.name: tool for tool in tools}


def _reward_of(cls: type) -> Callable[..., Any]:
  """Returns the function as it was written, not bound to an environment."""
  reward = inspect.getattr_static(cls, "reward")
  if isinstance(reward, staticmethod):
    reward = reward.__func__
  if not inspect.isfunction(reward):
    raise ConfigError(
      f"{cls.__name__}.reward is {reward!r}; allowed is a plain function"
    )
  return reward


def _reward_names_of(
  cls: type[FunctionEnvironment[Any]],
) -> Mapping[str, inspect.Parameter]:
  """Checks that all that the reward function asks for exists."""
  reward = _reward_of(cls)
  where = f"{cls.__name__}'s reward function {reward.__name__}"
  require_state_hint(hints_of(reward, where), cls._state_type, where)
  parameters = parameters_of(reward, where)
  fields = _fields(cls._state_type) if cls._state_type else ()
  allowed = (ANSWER, STATE, *fields)
  for name in parameters:
    if name not in allowed:
      hint = suggestion(name, allowed)
      if name == "self":
        hint = " (is it a method? make it a function, or @staticmethod)"
      raise ConfigError(
        f"{where} asks for {name!r}{hint}; there are {', '.join(allowed)}"
      )
  needed = parameters.get(ANSWER)
  is_needed = needed and needed.default is inspect.Parameter.empty
  if is_needed and not any(map(_can_end, cls.function_tools.values())):
    raise ConfigError(
      f"{where} needs {ANSWER!r}, and none of the functions "
      f"{', '.join(cls.function_tools)} is annotated to return a FinalAnswer, "
      "so that no episode could ever earn anything; write `-> FinalAnswer`"
    )
  return parameters
