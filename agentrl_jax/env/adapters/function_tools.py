"""Tools made of typed Python functions: schema, description, arguments.

  def roll(dice: int, sides: Literal[6, 20], state: Game) -> str:
    \"\"\"Rolls dice.

    Args:
      sides: of each of them.
    \"\"\"

The schema comes from the signature, the description from the docstring. Every
part of a function that cannot be shown to a policy is refused with a
`ConfigError` that names function and parameter: nothing is left out silently.
"""

import dataclasses
import enum
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from agentrl_jax.data.grammar.json_schema import validator_of
from agentrl_jax.data.records import Tool, finite_number
from agentrl_jax.env.tools import problem_of
from agentrl_jax.errors import ConfigError, suggestion

STATE = "state"  # the parameter that gets the episode's state
ALLOWED = (
  "int, float, str, bool, list[...], dict[str, ...], an Enum or a Literal of "
  "texts or of integers, and X | None of one of them"
)
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")  # OpenAI's rule for tools


def read_reward(result: Any) -> tuple[float, Mapping[str, float]]:
  """Reads what a reward function returns: a number, or it and metrics.

  Raises `ValueError` for anything else, and `EnvironmentFault` for metrics that
  are no numbers, once they are in a `Step`.
  """
  match result:
    case (reward, Mapping() as metrics):
      return finite_number(reward), metrics
  return finite_number(result), {}


@dataclasses.dataclass(frozen=True)
class FunctionTool:
  """A function, and the tool that a policy sees of it."""

  function: Callable[..., Any]
  tool: Tool
  takes_state: bool
  returns: Any  # annotation of its result; None without one
  readers: Mapping[str, Callable[[Any], Any]]

  def keywords(
    self, arguments: Mapping[str, Any], state: Any
  ) -> dict[str, Any]:
    """Returns the function's keyword arguments from JSON that was checked."""
    keywords = {
      name: self.readers[name](value) for name, value in arguments.items()
    }
    if self.takes_state:
      keywords[STATE] = state
    return keywords


def tool_of(
  function: Callable[..., Any], state_type: type | None = None
) -> FunctionTool:
  """Makes a tool; raises `ConfigError` for what no policy could be shown.

  `state_type` is what the parameter `state` gets; None does not check it.
  """
  name = _name_of(function)
  hints = hints_of(function, f"function {name}")
  parameters = parameters_of(function, f"function {name}")
  description, explained = _split_docstring(
    inspect.getdoc(function) or "", name
  )
  _require_known(explained, parameters, name)
  require_state_hint(hints, state_type, f"function {name}")
  given = [n for n in parameters if n != STATE]
  forms: dict[str, _Form] = {}
  properties: dict[str, Any] = {}
  for each in given:
    where = f"function {name}, parameter {each}"
    forms[each] = _form_of(_hint(hints, each, where), where)
    properties[each] = {
      **forms[each].schema,
      **({"description": explained[each]} if each in explained else {}),
      **_default_of(parameters[each], forms[each], where),
    }
  schema = {
    "type": "object",
    "properties": properties,
    "required": [n for n in given if _is_required(parameters[n])],
    "additionalProperties": False,
  }
  return FunctionTool(
    function,
    Tool(name, description, schema),
    takes_state=STATE in parameters,
    returns=hints.get("return"),
    readers={each: form.read for each, form in forms.items()},
  )


def hints_of(function: Callable[..., Any], where: str) -> dict[str, Any]:
  """Returns the annotations; raises `ConfigError` for names that are not."""
  try:
    return typing.get_type_hints(function, include_extras=True)
  except (NameError, TypeError, AttributeError, SyntaxError) as error:
    raise ConfigError(
      f"{where} has an annotation that cannot be read ({error}); define or "
      "import its names at the top of the module"
    ) from error


def parameters_of(
  function: Callable[..., Any], where: str
) -> Mapping[str, inspect.Parameter]:
  """Returns the parameters, each of which can be given by its name."""
  parameters = inspect.signature(function).parameters
  for name, parameter in parameters.items():
    if parameter.kind not in (
      inspect.Parameter.POSITIONAL_OR_KEYWORD,
      inspect.Parameter.KEYWORD_ONLY,
    ):
      raise ConfigError(
        f"{where}: {parameter} is {parameter.kind.description}, and arguments "
        f"are given by name; make {name} a parameter with a name of its own"
      )
  return parameters


def require_state_hint(
  hints: Mapping[str, Any], state_type: type | None, where: str
) -> None:
  """Refuses a parameter `state` that was meant to be something else."""
  hint = hints.get(STATE, Any)
  if hint is Any or state_type is None or hint in state_type.__mro__:
    return
  raise ConfigError(
    f"{where}: the parameter {STATE!r} is of type {_shown(hint)}, and it gets "
    f"the episode's state, a {state_type.__name__}; annotate it so, or give an "
    "argument of the policy another name"
  )


@dataclasses.dataclass(frozen=True)
class _Form:
  """A kind of argument: its schema, and the reader of JSON that fits it."""

  schema: Mapping[str, Any]
  read: Callable[[Any], Any]


def _same(value: Any) -> Any:
  return value


# JSON's 2.0 is an integer too, and its 2 is a number.
_PLAIN: Mapping[type, _Form] = {
  int: _Form({"type": "integer"}, int),
  float: _Form({"type": "number"}, float),
  str: _Form({"type": "string"}, _same),
  bool: _Form({"type": "boolean"}, _same),
}


def _form_of(annotation: Any, where: str) -> _Form:
  origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
  if isinstance(annotation, type) and annotation in _PLAIN:
    return _PLAIN[annotation]
  if origin is Literal:
    return _choice({value: value for value in parts}, where)
  if isinstance(annotation, enum.EnumMeta):
    members: Mapping[str, enum.Enum] = annotation.__members__
    return _choice({each.value: each for each in members.values()}, where)
  if origin is list and parts:
    return _list_of(_form_of(parts[0], where))
  if origin is dict and parts[:1] == (str,):
    return _dict_of(_form_of(parts[1], where))
  if origin in (Union, types.UnionType):
    others = [part for part in parts if part is not types.NoneType]
    if len(others) == 1:
      return _optional(_form_of(others[0], where))
  raise ConfigError(
    f"{where}: the annotation {_shown(annotation)} has no schema; allowed are "
    f"{ALLOWED}"
  )


def _choice(choices: Mapping[Any, Any], where: str) -> _Form:
  """Makes the form of some texts or integers, each of which means a value."""
  for kind, name in ((str, "string"), (int, "integer")):
    if choices and all(type(choice) is kind for choice in choices):
      return _Form(
        {"type": name, "enum": list(choices)}, lambda value: choices[value]
      )
  raise ConfigError(
    f"{where}: the choices {list(choices)} are not all texts or all integers; "
    f"allowed are {ALLOWED}"
  )


def _list_of(item: _Form) -> _Form:
  return _Form(
    {"type": "array", "items": item.schema},
    lambda values: [item.read(value) for value in values],
  )


def _dict_of(item: _Form) -> _Form:
  return _Form(
    {"type": "object", "additionalProperties": item.schema},
    lambda values: {key: item.read(value) for key, value in values.items()},
  )


def _optional(form: _Form) -> _Form:
  return _Form(
    {"anyOf": [form.schema, {"type": "null"}]},
    lambda value: None if value is None else form.read(value),
  )


def _shown(annotation: Any) -> str:
  return inspect.formatannotation(annotation)


def _name_of(function: Callable[..., Any]) -> str:
  if not inspect.isfunction(function):
    raise ConfigError(
      f"{function!r} is no plain function, as `def` makes them; an object with "
      "a state of its own would be shared by all episodes"
    )
  name = function.__name__
  if not _NAME.fullmatch(name):
    raise ConfigError(
      f"function {name!r} cannot be a tool: a tool's name has 1 to 64 of the "
      "characters A-Z, a-z, 0-9 and _; define it by `def` with such a name"
    )
  if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(
    function
  ):
    raise ConfigError(
      f"function {name} is a generator, which has no single result; return a "
      "list instead of yielding"
    )
  return name


def _hint(hints: Mapping[str, Any], name: str, where: str) -> Any:
  if name not in hints:
    raise ConfigError(
      f"{where} has no annotation, which the schema is made from; allowed are "
      f"{ALLOWED}. The parameter `{STATE}` alone needs none"
    )
  return hints[name]


def _is_required(parameter: inspect.Parameter) -> bool:
  return parameter.default is inspect.Parameter.empty


def _default_of(
  parameter: inspect.Parameter, form: _Form, where: str
) -> dict[str, Any]:
  """Returns the schema's entry of a default, which must fit the schema."""
  if _is_required(parameter):
    return {}
  value = parameter.default
  plain = value.value if isinstance(value, enum.Enum) else value
  if not isinstance(plain, bool | int | float | str | types.NoneType):
    raise ConfigError(
      f"{where}: the default {value!r} is an object that all calls of all "
      "episodes would share; take None, and make the object in the function"
    )
  if isinstance(plain, float) and not math.isfinite(plain):
    raise ConfigError(f"{where}: the default {plain} is no JSON number")
  whole = {"type": "object", "properties": {parameter.name: form.schema}}
  problem = problem_of(validator_of(whole), {parameter.name: plain})
  if problem is not None:
    raise ConfigError(
      f"{where}: the default {value!r} does not fit the annotation: {problem}"
    )
  member = form.read(plain)
  if isinstance(member, enum.Enum) != isinstance(value, enum.Enum):
    raise ConfigError(
      f"{where}: the default {value!r} is not what the function gets from a "
      f"policy that says {plain!r}; write {member!r}"
    )
  return {"default": plain}


_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


def _split_docstring(text: str, name: str) -> tuple[str, dict[str, str]]:
  """Splits a docstring: description, and the entries of its section Args."""
  lines = text.splitlines()
  start = lines.index("Args:") if "Args:" in lines else len(lines)
  end = start + 1
  while end < len(lines) and lines[end][:1] in ("", " "):
    end += 1
  rest = [*lines[:start], *lines[end:]]
  description = "\n".join(rest).strip()
  if not description or start == 0:
    raise ConfigError(
      f"function {name} has no docstring that begins with a description, "
      "which is all that the policy knows of it; say in a sentence what it does"
    )
  return description, _entries(lines[start + 1 : end], name)


def _entries(lines: Sequence[str], name: str) -> dict[str, str]:
  """Reads the lines `name: text` of Args, and the deeper ones below each."""
  entries: dict[str, str] = {}
  section = inspect.cleandoc("\n".join(["", *lines]))
  last = ""
  for line in filter(None, map(str.rstrip, section.splitlines())):
    entry = _ENTRY.fullmatch(line)
    if entry is not None and entry[1] in entries:
      raise ConfigError(
        f"function {name}: the docstring's Args has {entry[1]} twice"
      )
    if entry is not None:
      last = entry[1]
      entries[last] = entry[2]
    elif last and line.startswith(" "):
      entries[last] = f"{entries[last]} {line.strip()}".strip()
    else:
      raise ConfigError(
        f"function {name}: {line.strip()!r} in the docstring's Args is no "
        "`parameter: text`; indent what continues an entry"
      )
  return entries


def _require_known(
  explained: Mapping[str, str], parameters: Mapping[str, Any], name: str
) -> None:
  for each in explained:
    if each not in parameters:
      raise ConfigError(
        f"function {name}: the docstring explains {each!r}"
        f"{suggestion(each, parameters)}, which is no parameter; those are "
        f"{', '.join(parameters) or 'none'}"
      )
