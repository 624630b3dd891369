"""Functions of BFCL's tasks: BFCL's own classes, new instances per session.

A call is a name and arguments; no text is evaluated as Python. The result is
text in BFCL's words, errors included.

BFCL's functions trust their arguments. A policy in training tries everything: a
power of huge numbers, or a folder copied into itself thirty times, would never
end and would block all other sessions. Such calls are refused; no gold call
comes near the bounds.
"""

import copy
import decimal
import importlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError

# File with the descriptions of each class. BFCL's other classes (memory, web
# search) do not belong to its multi-turn categories.
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
MAX_DIGITS = 10_000  # of a number or a precision
MAX_PATHS = 20_000  # of files and folders, counted as `find` lists them
_MODULES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_STATELESS = frozenset({"MathAPI"})
# BFCL refuses these names because it evaluates calls in its own process.
_FORBIDDEN = frozenset(
  {"kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run"}
)
_MAX_NAME_CHARS = 80  # of an unknown function's name in the reply


class APIs:
  """One instance of every class of a task, in the task's initial state."""

  def __init__(
    self, classes: Sequence[str], config: Mapping[str, Any], *, is_long: bool
  ):
    self._instances = {
      name: _instantiate(name, config.get(name, {}), is_long=is_long)
      for name in classes
    }
    # Of two functions with one name the later class's wins, as in BFCL.
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
    """Calls a function and returns the result, or an error, as text."""
    if name in _FORBIDDEN:
      return _error(f"Function call {name} is not allowed.")
    if name not in self._functions:
      return _error(f"name {name[:_MAX_NAME_CHARS]!r} is not defined")
    class_name, function = self._functions[name]
    reason = None
    if class_name == "MathAPI":
      reason = _endless_sum(name, _bind(function, positional, named))
    elif class_name == "GorillaFileSystem":
      reason = _endless_folders(self._instances[class_name])
    if reason is not None:
      return _error(reason)
    try:
      with decimal.localcontext():  # one function changes the precision
        return _text(function(*positional, **named))
    except Exception as error:  # noqa: BLE001 - BFCL replies with any error
      return _error(str(error))

  def arguments_of(
    self, name: str, positional: Sequence[Any], named: Mapping[str, Any]
  ) -> Mapping[str, Any]:
    """Names all arguments of a call, those given by position included."""
    _, function = self._functions[name]
    return {**_bind(function, positional, named), **named}

  def agrees_with(self, gold: "APIs") -> bool:
    """Tests if every public attribute of the gold state is equal here.

    A state that is nested too deeply to be compared does not agree: no gold
    state is.
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


def _instantiate(name: str, config: Mapping[str, Any], *, is_long: bool) -> Any:
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


def _bind(
  function: Callable[..., Any],
  positional: Sequence[Any],
  named: Mapping[str, Any],
) -> Mapping[str, Any]:
  """Names the arguments; returns none where the call itself will fail."""
  try:
    return inspect.signature(function).bind(*positional, **named).arguments
  except TypeError:
    return {}


def _endless_sum(name: str, arguments: Mapping[str, Any]) -> str | None:
  """Returns the reason to refuse a call of MathAPI, or None."""
  integers = {key: x for key, x in arguments.items() if isinstance(x, int)}
  if name == "power" and len(integers) == 2:
    log_base = math.log10(max(abs(integers["base"]), 1))
    # A product would overflow: arguments may be too large for a float.
    if log_base > 0 and abs(integers["exponent"]) > MAX_DIGITS / log_base:
      return f"the result has more than {MAX_DIGITS} digits"
  for key in ("precision", "decimal_places"):
    if abs(integers.get(key, 0)) > MAX_DIGITS:
      return f"{key} is more than {MAX_DIGITS} digits"
  return None


def _endless_folders(file_system: Any) -> str | None:
  """Returns the reason to refuse a call of GorillaFileSystem, or None.

  Copies of a folder share their contents, so few calls make many paths.
  """
  num_paths, folders = 0, [file_system.root]
  while folders:
    contents = getattr(folders.pop(), "contents", {})
    num_paths += len(contents)
    if num_paths > MAX_PATHS:
      return f"there are more than {MAX_PATHS} paths"
    folders.extend(contents.values())
  return None


def _text(result: Any) -> str:
  if isinstance(result, str):
    return result
  if isinstance(result, dict):
    try:
      return json.dumps(result)
    except (TypeError, ValueError, RecursionError):
      return str(result)  # some of BFCL's results hold objects
  return str(result)


def _error(text: str) -> str:
  return f"Error during execution: {text}"
