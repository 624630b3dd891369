"""The suite's own functions, called for real: BFCL's classes, fresh each time.

Calls arrive as a name and arguments; nothing is ever evaluated as Python. What
a call gives back is text, worded as BFCL words it, errors included.
"""

import copy
import decimal
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError
from environments.bfcl.guards import refusal

# The file of descriptions of each class; BFCL's other classes (memory, web
# search) are not of its multi-turn categories.
FUNCTION_DOCS: Mapping[str, str] = {
  "GorillaFileSystem": "gorilla_file_system.json",
  "MathAPI": "math_api.json",
  "MessageAPI": "message_api.json",
  "TwitterAPI": "posting_api.json",
  "TicketAPI": "ticket_api.json",
  "TradingBot": "trading_bot.json",
  "TravelAPI": "travel_booking.json",
  "VehicleControlAPI": "vehicle_control.json",
}
_MODULES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_STATELESS = frozenset({"MathAPI"})
# BFCL refuses these by name, as it evaluates calls in its own process.
_FORBIDDEN = frozenset(
  {"kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run"}
)
_LONGEST_NAME = 80  # characters of an unknown function's that are repeated


class APIs:
  """One instance of every class of a task, in the state that the task asks."""

  def __init__(
    self, classes: Sequence[str], config: Mapping[str, Any], *, is_long: bool
  ):
    self._instances = {
      name: _make(name, config.get(name, {}), is_long=is_long)
      for name in classes
    }
    # Of two functions with one name the later class's counts, as in BFCL.
    self._functions: dict[str, tuple[str, Callable[..., Any]]] = {
      function_name: (class_name, function)
      for class_name, instance in self._instances.items()
      for function_name, function in inspect.getmembers(
        instance, predicate=inspect.ismethod
      )
      if not function_name.startswith("_")
    }

  def call(
    self, name: str, positional: Sequence[Any], named: Mapping[str, Any]
  ) -> str:
    """What the function gives back, as text; an error is text as well."""
    if name in _FORBIDDEN:
      return _error(f"Function call {name} is not allowed.")
    if name not in self._functions:
      return _error(f"name {name[:_LONGEST_NAME]!r} is not defined")
    class_name, function = self._functions[name]
    problem = refusal(
      self._instances[class_name], name, _bound(function, positional, named)
    )
    if problem is not None:
      return _error(problem)
    try:
      with decimal.localcontext():  # one function sets the precision
        return _text(function(*positional, **named))
    except Exception as error:  # noqa: BLE001 - BFCL's reply, whatever it is
      return _error(str(error))

  def arguments_of(
    self, name: str, positional: Sequence[Any], named: Mapping[str, Any]
  ) -> Mapping[str, Any]:
    """The arguments of a call, those given by position under their names."""
    _, function = self._functions[name]
    return {**_bound(function, positional, named), **named}

  def agrees_with(self, gold: "APIs") -> bool:
    """Whether every public attribute of the gold state is here, and equal.

    States nested too deeply to be compared do not agree: no gold state is.
    """
    try:
      return not any(
        getattr(self._instances[class_name], name) != value
        for class_name, instance in gold._instances.items()
        for name, value in vars(instance).items()
        if not name.startswith("_")
      )
    except RecursionError:
      return False


def _make(name: str, config: Mapping[str, Any], *, is_long: bool) -> Any:
  module_name = FUNCTION_DOCS[name].removesuffix(".json")
  try:
    module = importlib.import_module(f"{_MODULES}.{module_name}")
  except ModuleNotFoundError as error:
    raise ConfigError(
      f"BFCL's {name} needs the package {error.name!r}: install it (see "
      "environments/bfcl/README.md)"
    ) from error
  instance = getattr(module, name)()
  if name not in _STATELESS:
    instance._load_scenario(copy.deepcopy(dict(config)), long_context=is_long)
  return instance


def _bound(
  function: Callable[..., Any],
  positional: Sequence[Any],
  named: Mapping[str, Any],
) -> Mapping[str, Any]:
  """The arguments by name; none where they do not fit, as the call will say."""
  try:
    bound = inspect.signature(function).bind(*positional, **named)
  except TypeError:
    return {}
  return bound.arguments


def _text(result: Any) -> str:
  if isinstance(result, str):
    return result
  if isinstance(result, dict):
    try:
      return json.dumps(result)
    except (TypeError, ValueError, RecursionError):
      return str(result)  # it holds an object, as BFCL's replies may
  return str(result)


def _error(text: str) -> str:
  return f"Error during execution: {text}"
