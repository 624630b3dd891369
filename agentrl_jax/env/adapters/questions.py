"""Questions of a data set, answered in text and scored by a function.

No class and no tool: a config names files, columns and the reward.

  c.environments.math = entry(
    "agentrl_jax.env.adapters.questions:Questions",
    options={
      "source": "train=train.jsonl,test=test.jsonl",
      "reward": "my_module:is_right",
    },
  )

The reward is `last_number`, `exact_match`, or `module:function` of a Python
function, a coroutine or not. It gets what its parameters name:

- `completion`: the text that the policy answered;
- `question` and `answer`: the values of the columns that have these roles;
- `turn`: the number of the answer in the episode, from 1 on;
- any other column of the row, by its name.

It returns a number, or a pair of it and metrics by name, as a judge does
(`adapters/judge.py`). A reward of 1 is success, and ends the episode. With
`max_turns` above 1 another answer gets `feedback`, and the policy answers
again. A function that raises, or that returns no finite number, is an
`EnvironmentFault` of its own episode.
"""

import contextlib
import decimal
import functools
import inspect
import json
import logging
import pathlib
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from agentrl_jax.data.chat.codec import split_thoughts
from agentrl_jax.data.dataset_file import DatasetRow, files_of, read_rows
from agentrl_jax.data.forms.content import require_no_media
from agentrl_jax.data.records import Message, Status, Task, message_from_json
from agentrl_jax.env.adapters.executors import Executor, executor_of, faults
from agentrl_jax.env.adapters.function_tools import parameters_of, read_reward
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Session, Step
from agentrl_jax.env.options import require_positive
from agentrl_jax.env.task_sets import find_sets
from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.named_objects import import_module_of

_log = logging.getLogger(__name__)

TEST_SHARE = 0.1  # of the questions of a source without a test set
TRY_AGAIN = "That is not right. Try again."
_OWN = ("completion", "question", "answer", "turn")
# A split's file, whole or one of several as the Hugging Face hub names them.
_SPLIT_FILE = re.compile(
  r"(train|test|validation|valid|val|dev)(?:-\d+-of-\d+(?:-\w+)?)?"
)
_HOLE = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile(
  r"(?:(?<![0-9.)])[-\u2212])?"  # a sign, and no subtraction
  r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
  r"(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?"
)


def last_number(completion: str, answer: Any) -> float:
  """Compares the last number of the completion with that of the answer.

  The rule of GSM8K, whose answers end with "#### 42". Thousands may have
  commas. What the policy thinks before it answers does not count.
  """
  given = _last_number(split_thoughts(completion)[1])
  return float(given is not None and given == _last_number(str(answer)))


def exact_match(completion: str, answer: Any) -> float:
  """Compares texts but for case, and for space around and between words."""
  words, wanted = (
    text.casefold().split()
    for text in (split_thoughts(completion)[1], str(answer))
  )
  return float(words == wanted)


REWARDS: Mapping[str, Callable[..., float]] = {
  each.__name__: each for each in (last_number, exact_match)
}


def _last_number(text: str) -> decimal.Decimal | None:
  numbers = _NUMBER.findall(text)
  if not numbers:
    return None
  return decimal.Decimal(numbers[-1].replace(",", "").replace("\u2212", "-"))


class Questions(IndexedEnvironment[DatasetRow]):
  """Rows of files as tasks, without tools.

  Args:
    source: files, or a folder of them, as `env.task_sets` names them. Files of
      a folder are named as train.jsonl or test-00000-of-00001.parquet are, and
      others in it are not read. Without a set called test it is a tenth of
      train, by hash. A question of test is never in train.
    question: column of the question, a text or a list of OpenAI's messages.
    answer: column that the reward gets as `answer`; "" if there is none. A dot
      enters an object: reward_model.ground_truth.
    reward: see above.
    prompt: text of the first message; {question} and the names of other columns
      in braces are replaced by their values.
    system: text of a system message before it; "" is none.
    max_turns: answers until the episode ends.
    feedback: text after an answer whose reward is below 1, or module:function,
      which gets what a reward gets and returns a text, or None to end.
    step_limit_s: timeout of the reward and of the feedback, in seconds.
  """

  name = "questions"

  def __init__(
    self,
    *,
    source: str,
    question: str = "question",
    answer: str = "answer",
    reward: str = "last_number",
    prompt: str = "{question}",
    system: str = "",
    max_turns: int = 1,
    feedback: str = TRY_AGAIN,
    step_limit_s: float = 60.0,
  ):
    require_positive(max_turns=max_turns, step_limit_s=step_limit_s)
    self.max_turns, self.step_limit_s = max_turns, step_limit_s
    self._question, self._answer = question, answer
    self._prompt, self._system = prompt, system
    self.reward = _Scorer("reward", REWARDS.get(reward), reward)
    is_code = re.fullmatch(r"[\w.]+:\w+", feedback)
    self.feedback_text = "" if is_code else feedback
    self.feedback = _Scorer("feedback", None, feedback) if is_code else None
    if (
      max_turns > 1 and not feedback or max_turns == 1 and feedback != TRY_AGAIN
    ):
      raise ConfigError(
        f"feedback={feedback!r} is read after an answer that another one "
        f"follows, and max_turns={max_turns}: set both or none"
      )
    if leaks := {"answer", answer} & set(_HOLE.findall(prompt)):
      raise ConfigError(
        f"prompt={prompt!r} shows the policy the answer, by {{{min(leaks)}}}; "
        "write the word without braces, or with a space inside them"
      )
    super().__init__(num_tasks={}, loaded=self._sets(source))

  def generate(self, split: str, index: int) -> DatasetRow:
    """Returns a row of the files, of which nothing is generated."""
    row: DatasetRow = self._loaded[split][index]
    return row

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session; ignores the seed, as nothing of a task is random."""
    del seed
    row = self.find(task)
    # A function of others may block or never end: it gets a thread.
    executor = executor_of(
      blocking=not self.is_builtin, limit_s=self.step_limit_s
    )
    try:
      yield _QuestionSession(self, row, executor)
    finally:
      await executor.close(lambda: None)

  @property
  def is_builtin(self) -> bool:
    """True if no function of others is called."""
    return self.reward.is_builtin and self.feedback is None

  def messages(self, row: DatasetRow) -> tuple[Message, ...]:
    """Returns the first messages of a row; images are a `ContentFault`."""
    require_no_media(row.columns)
    system = (Message("system", self._system),) if self._system else ()
    value = self._value(row, self._question)
    if isinstance(value, str):
      text = _HOLE.sub(
        lambda hole: str(self._of_role(row, hole[1])), self._prompt
      )
      return (*system, Message("user", text))
    return (*system, *map(message_from_json, value))

  def values(
    self, row: DatasetRow, completion: str, turn: int
  ) -> dict[str, Any]:
    """Returns all that a reward may ask for."""
    own = {"completion": completion, "turn": turn}
    roles = {
      role: self._value(row, column)
      for role, column in (
        ("question", self._question),
        ("answer", self._answer),
      )
      if column
    }
    return {**row.columns, **roles, **own}

  async def score(
    self, executor: Executor, row: DatasetRow, values: Mapping[str, Any]
  ) -> tuple[float, dict[str, float]]:
    """Returns the reward, and the metrics of an episode that it ends."""
    with faults(f"{self.name}, the reward of {row.where}"):
      reward, metrics = read_reward(
        await executor.run(functools.partial(self.reward, values))
      )
    return reward, {"success": float(reward >= 1), **metrics}

  def _sets(self, source: str) -> dict[str, list[DatasetRow]]:
    """Reads all splits, checks every row, and sets test apart from train."""
    files = _files_of(source)
    if "train" not in files:
      raise ConfigError(
        f"source={source!r} has the sets {', '.join(files) or 'of no name'}, "
        "and none called train: name its file, as in train=PATH,test=PATH"
      )
    sets = {
      name: [self._required(row) for path in paths for row in read_rows(path)]
      for name, paths in files.items()
    }
    for name, rows in sets.items():
      if not rows:
        raise ConfigError(
          f"source={source!r}: {', '.join(map(str, files[name]))} holds no row"
        )
    _set_apart(sets, self._key)
    if missing := [name for name in ("train", "test") if not sets[name]]:
      raise ConfigError(
        f"source={source!r} leaves no question for {missing[0]}: a question of "
        "test is left out of train, and a source without test needs a dozen "
        "different ones"
      )
    return sets

  def _key(self, row: DatasetRow) -> str:
    return json.dumps([[m.role, m.content] for m in self.messages(row)])

  def _required(self, row: DatasetRow) -> DatasetRow:
    """Returns a row that can be asked and scored; else `ConfigError`."""
    problem = row.problem
    columns = [self._question, *([self._answer] if self._answer else [])]
    for column in [] if problem else columns:
      if self._value(row, column) is None:
        problem = (
          f"no value in the column {column!r}"
          f"{suggestion(column, row.columns)}; it has "
          f"{', '.join(row.columns) or 'none'}"
        )
        break
    problem = problem or self._unreadable(row)
    if problem:
      raise ConfigError(f"{row.where}: {problem}; mend or remove it")
    return row

  def _unreadable(self, row: DatasetRow) -> str:
    """Returns why a row's prompt or reward cannot be made; "" if they can."""
    given = self.values(row, "", 1)
    for scorer in (self.reward, self.feedback):
      if scorer is not None and (missing := scorer.missing(given)):
        return missing
    value = self._value(row, self._question)
    holes = set(_HOLE.findall(self._prompt))
    if unknown := sorted(holes - given.keys() | holes & {"completion", "turn"}):
      return (
        f"the prompt asks for {{{unknown[0]}}}, and there is no such column"
      )
    is_text = isinstance(value, str)
    if is_text and not value.strip():
      return f"the column {self._question!r} is blank"
    if not is_text and self._prompt != "{question}":
      return f"prompt is set, and {self._question!r} is a list of messages"
    try:
      messages = self.messages(row)
    except (TypeError, ValueError) as error:
      return (
        f"it cannot be asked ({error}): the column {self._question!r} must be "
        "a text or a list of messages of text"
      )
    if not messages or messages[-1].role not in ("user", "tool"):
      return f"the messages of {self._question!r} do not end with the user's"
    return ""

  def _of_role(self, row: DatasetRow, name: str) -> Any:
    return self.values(row, "", 1)[name]

  def _value(self, row: DatasetRow, column: str) -> Any:
    """Returns a column, or what a dotted name leads to; None if absent."""
    if column in row.columns:
      return row.columns[column]
    value: Any = row.columns
    for part in column.split("."):
      value = value.get(part) if isinstance(value, Mapping) else None
    return value


class _Scorer:
  """A function that is called with what its parameters name."""

  def __init__(
    self, role: str, builtin: Callable[..., Any] | None, target: str
  ):
    self.role, self.target = role, target
    self.is_builtin = builtin is not None
    self._function = builtin or _named_function(role, target)
    self._takes_all = False
    parameters = dict(inspect.signature(self._function).parameters)
    for name, parameter in list(parameters.items()):
      if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        self._takes_all = bool(parameters.pop(name))
    if not self._takes_all:
      parameters_of(self._function, f"{role} {target!r}")
    self._parameters = parameters

  def missing(self, given: Mapping[str, Any]) -> str:
    """Says which parameter has no value; "" if each has one."""
    for name, parameter in self._parameters.items():
      if name not in given and parameter.default is inspect.Parameter.empty:
        return (
          f"{self.role} {self.target!r} asks for {name!r}"
          f"{suggestion(name, given)}, and the row has {', '.join(given)}"
        )
    return ""

  def __call__(self, values: Mapping[str, Any]) -> Any:
    """Calls the function."""
    if self._takes_all:
      return self._function(**values)
    return self._function(
      **{name: values[name] for name in self._parameters if name in values}
    )


def _named_function(role: str, target: str) -> Callable[..., Any]:
  if ":" not in target:
    raise ConfigError(
      f"{role}={target!r}{suggestion(target, REWARDS)} is none of "
      f"{', '.join(REWARDS)}, nor module:function, as in my_module:is_right"
    )
  module, name = import_module_of(
    target, kind=role, form="module:function", example="my_module:is_right"
  )
  function = getattr(module, name, None)
  if not inspect.isfunction(function):
    known = [n for n, v in vars(module).items() if inspect.isfunction(v)]
    raise ConfigError(
      f"{role} {target!r}: {module.__name__} has no function {name!r}"
      f"{suggestion(name, known)}; it has {', '.join(known) or 'none'}"
    )
  return function


class _QuestionSession(Session):
  tools = ()

  def __init__(
    self, environment: Questions, row: DatasetRow, executor: Executor
  ):
    self._environment, self._row = environment, row
    self._executor = executor
    self._turn = 0

  async def reset(self) -> Step:
    return Step(self._environment.messages(self._row))

  async def step(self, answer: Message) -> Step:
    self._turn += 1
    environment = self._environment
    values = environment.values(self._row, answer.content, self._turn)
    reward, metrics = await environment.score(self._executor, self._row, values)
    if reward < 1 and self._turn < environment.max_turns:
      feedback = await self._feedback(values)
      if feedback:
        return Step((Message("user", feedback),), reward=reward)
    return Step((), reward=reward, status=Status.COMPLETED, metrics=metrics)

  async def _feedback(self, values: Mapping[str, Any]) -> str:
    scorer = self._environment.feedback
    if scorer is None:
      return self._environment.feedback_text
    with faults(f"{self._environment.name}, the feedback of {self._row.where}"):
      text = await self._executor.run(functools.partial(scorer, values))
      if text is not None and not isinstance(text, str):
        raise TypeError(f"it returned {text!r:.80}, and a text or None is due")
      return text or ""


def _files_of(source: str) -> dict[str, list[pathlib.Path]]:
  """Returns the files of each split. Raises `ConfigError`."""
  if not source:
    raise ConfigError(
      "source is empty: give the folder of train.jsonl and test.jsonl, or "
      "train=PATH,test=PATH"
    )
  folder = pathlib.Path(source)
  if folder.is_dir():
    files: dict[str, list[pathlib.Path]] = {}
    for path in files_of(folder):
      if match := _SPLIT_FILE.fullmatch(path.stem):
        files.setdefault(match[1], []).append(path)
    return files
  sets = find_sets(source)
  if len(sets) == 1 and "=" not in source:
    sets = dict.fromkeys(["train"], folder)
  return {name: files_of(path) for name, path in sets.items()}


def _set_apart(
  sets: dict[str, list[DatasetRow]], key_of: Callable[[DatasetRow], str]
) -> None:
  """Makes a test set if there is none, and takes its questions out of train."""
  if "test" not in sets:
    is_test = [_is_test(key_of(row)) for row in sets["train"]]
    sets["test"] = [r for r, t in zip(sets["train"], is_test, strict=True) if t]
    sets["train"] = [
      r for r, t in zip(sets["train"], is_test, strict=True) if not t
    ]
    return
  held_out = {key_of(row) for row in sets["test"]}
  kept = [row for row in sets["train"] if key_of(row) not in held_out]
  if len(kept) < len(sets["train"]):
    _log.warning(
      "%d questions of train are in test, too, and are left out of train",
      len(sets["train"]) - len(kept),
    )
  sets["train"] = kept


def _is_test(key: str) -> bool:
  """Says if the hash of a question is among the lowest tenth."""
  return zlib.crc32(key.encode()) < TEST_SHARE * 2**32
