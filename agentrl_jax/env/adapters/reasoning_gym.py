r"""Adapter of reasoning-gym's generated puzzles, which are answered in text.

  c.environments.legs = entry(
    "agentrl_jax.env.adapters.reasoning_gym:ReasoningGym",
    options={"dataset": "leg_counting", "config": {"max_animals": 4}},
  )

The answer is what stands between <answer> and </answer>, or else all but the
thoughts; the data set's own `score_answer` is the reward. A question's text
decides about its split: data sets of two seeds share most of their items.

Some data sets run an answer as Python, by `eval` or SymPy. There an answer that
is more than a formula or a list is scored as none.
"""

import ast
import functools
import re
from collections.abc import Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import extract_answer

from agentrl_jax.data.grammar.json_schema import shortened
from agentrl_jax.data.records import Message, Task
from agentrl_jax.env.adapters.executors import faults
from agentrl_jax.env.adapters.reset_step import Outcome, ResetStep
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import ErringExpert
from agentrl_jax.env.options import require_positive
from agentrl_jax.errors import ConfigError, EnvironmentFault, suggestion

WRONG = "wrong"  # the expert gives the answer of the next item
_NUM_ITEMS = 4096  # remembered; the attempts of a group share one
_OWN_PARSERS = frozenset({"propositional_logic"})  # their `parse_expr` is safe


class ReasoningGym(ResetStep):
  """The items of one of reasoning-gym's data sets.

  Args:
    dataset: its name in reasoning-gym.
    config: its own settings, without seed and size.
    size: items, from which both splits are drawn. Some data sets make all at
      the start.
    rules: options of `ResetStep`.

  Raises `ConfigError` for what reasoning-gym refuses.
  """

  mistakes = (WRONG,)

  def __init__(
    self,
    *,
    dataset: str,
    config: Mapping[str, Any] | None = None,
    size: int = 10_000,
    **rules: Any,
  ):
    defaults: dict[str, Any] = {"split_by": "seed", "max_rounds": 1}
    super().__init__(**defaults | rules)
    require_positive(size=size)
    self.name = dataset
    self._size = size
    self._dataset = _dataset(dataset, dict(config or {}), size)
    self.item = functools.lru_cache(_NUM_ITEMS)(self._dataset.__getitem__)

  def make(self, seed: int) -> "_Puzzle":
    """Returns the puzzle of a seed."""
    return _Puzzle(self._dataset, self._item_of(seed))

  def problem(self, seed: int) -> str:
    """Returns the question."""
    return str(self._item_of(seed)["question"])

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert; raises `NotImplementedError` without an answer."""
    number = self.seed_of(task)
    answers = self._answer(number), self._answer(number + 1)
    return _Solver(answers, seed, mistakes, where=f"{self.name}'s expert")

  def _item_of(self, seed: int) -> dict[str, Any]:
    item: dict[str, Any] = self.item(seed % self._size)
    return item

  def _answer(self, seed: int) -> str:
    answer = self._item_of(seed)["answer"]
    if not isinstance(answer, str):
      raise NotImplementedError(f"items of {self.name} come without an answer")
    return answer


class _Puzzle:
  def __init__(self, dataset: Any, item: dict[str, Any]):
    self._dataset, self._item = dataset, item

  def reset(self) -> str:
    return str(self._item["question"])

  def step(self, text: str) -> Outcome:
    marked = extract_answer(text)
    answer = text if marked is None else marked
    if self._is_evaluated and not is_harmless(answer):
      answer = None
    reward = self._dataset.score_answer(answer, self._item)
    return Outcome("", reward, terminated=True)

  @property
  def _is_evaluated(self) -> bool:
    """True if the scorer may run an answer; errs for unknown data sets."""
    source = self._item["metadata"].get("source_dataset")
    if source not in DATASETS:
      return True
    scorer = DATASETS[source][0].score_answer
    names = {"eval", "exec", "parse_expr", "sympify"}
    return source not in _OWN_PARSERS and not names.isdisjoint(
      scorer.__code__.co_names
    )


class _Solver(ErringExpert):
  def __init__(
    self,
    answers: tuple[str, str],
    seed: int,
    mistakes: Mapping[str, float],
    *,
    where: str,
  ):
    super().__init__(seed=seed, mistakes=mistakes, known=(WRONG,), where=where)
    self._answers = answers

  def answer(self, messages: Any) -> Message:
    del messages
    return Message("assistant", self._answers[self.draws(WRONG)])


_FUNCTIONS = frozenset(
  [
    "sin",
    "cos",
    "tan",
    "sec",
    "csc",
    "cot",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "exp",
    "log",
    "ln",
    "sqrt",
  ]
)
_PLAIN_NODES = (
  ast.Expression,
  ast.Load,
  ast.List,
  ast.Tuple,
  ast.unaryop,
  ast.operator,
)
_MAX_POWER = 64
_MAX_CHARS = 4096


def is_harmless(text: str) -> bool:
  """Says if running a text can do no more than compute a small formula.

  Allowed are lists and tuples of literals, and formulas of numbers, names and
  functions such as sin, with exponents up to 64 that are not nested. A text
  that is no Python may not have what could become a call or a power.
  """
  if len(text) > _MAX_CHARS:
    return False
  try:
    tree = ast.parse(text.strip(), mode="eval")
    return all(map(_is_plain, ast.walk(tree)))
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return re.search(r"[(!@]|\*\*", text) is None


def _is_plain(node: ast.AST) -> bool:
  match node:
    case ast.Constant(value=str() | int() | float()):
      return True
    case ast.Name(id=name):
      return not name.startswith("_")
    case ast.Call(func=ast.Name(id=name), keywords=[]):
      return name in _FUNCTIONS
    case ast.UnaryOp(operand=operand):
      return _is_number(operand)
    case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=power)):
      is_nested = any(isinstance(n, ast.Pow) for n in ast.walk(left))
      is_small = isinstance(power, int | float) and power <= _MAX_POWER
      return is_small and not is_nested and _is_number(left)
    case ast.BinOp(op=ast.Pow() | ast.LShift() | ast.MatMult()):
      return False
    case ast.BinOp(left=left, right=right):
      return _is_number(left) and _is_number(right)
  return isinstance(node, _PLAIN_NODES)


def _is_number(operand: ast.AST) -> bool:
  """Says if an operand has no text or list, which a product would lengthen."""
  return not any(
    isinstance(node, ast.List | ast.Tuple)
    or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    for node in ast.walk(operand)
  )


def _dataset(name: str, config: dict[str, Any], size: int) -> Any:
  if name not in DATASETS:
    raise ConfigError(
      f"reasoning-gym has no data set {name!r}{suggestion(name, DATASETS)}; it "
      f"has {', '.join(sorted(DATASETS))}"
    )
  if own := sorted({"seed", "size"} & config.keys()):
    raise ConfigError(
      f"config of {name} sets {' and '.join(own)}: its items are drawn by the "
      "run's tasks; leave it out, and set the option size for their number"
    )
  try:
    with faults(f"reasoning-gym's {name} with config={config}"):
      dataset = reasoning_gym.create_dataset(name, seed=0, size=size, **config)
      dataset[0]
  except EnvironmentFault as error:
    raise ConfigError(shortened(str(error), 400)) from error
  return dataset
