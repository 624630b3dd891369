"""Tools made of typed Python functions: schema, description, arguments.

  def roll(dice: int, sides: Literal[6, 20], state: Game) -> str:
    \"\"\"Rolls dice.

    Args:
      sides: of each of them.
    \"\"\"

The schema comes from the signature, by pydantic, and the description from the
docstring. Every part of a function that cannot be shown to a policy is refused
with a `ConfigError` that names function and parameter.
"""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

from agentrl_jax.data.records import Tool, finite_number
from agentrl_jax.errors import ConfigError, suggestion

STATE = "state"  # the parameter that gets the episode's state
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
    """Returns the function's keyword arguments from JSON that was checked.

    Raises `pydantic.ValidationError` for what a type of its own refuses.
    """
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
  readers: dict[str, Callable[[Any], Any]] = {}
  properties: dict[str, Any] = {}
  definitions: dict[str, Any] = {}
  for each in given:
    where = f"function {name}, parameter {each}"
    adapter, own = _schema_of(hints, each, where)
    readers[each] = adapter.validate_python
    definitions |= own.pop("$defs", {})
    properties[each] = {
      **own,
      **({"description": explained[each]} if each in explained else {}),
      **_default_of(parameters[each], adapter, where),
    }
  schema = {
    "type": "object",
    "properties": properties,
    "required": [n for n in given if _is_required(parameters[n])],
    "additionalProperties": False,
    **({"$defs": definitions} if definitions else {}),
  }
  return FunctionTool(
    function,
    Tool(name, description, schema),
    takes_state=STATE in parameters,
    returns=hints.get("return"),
    readers=readers,
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


def _schema_of(
  hints: Mapping[str, Any], name: str, where: str
) -> tuple[pydantic.TypeAdapter[Any], dict[str, Any]]:
  """Returns the type of an argument, and its schema."""
  if name not in hints:
    raise ConfigError(
      f"{where} has no annotation, which the schema is made from. Only the "
      f"parameter `{STATE}` needs none"
    )
  try:
    adapter = pydantic.TypeAdapter(hints[name])
    schema = adapter.json_schema()
  except pydantic.errors.PydanticUserError as error:
    raise ConfigError(
      f"{where}: the annotation {_shown(hints[name])} has no schema "
      f"({' '.join(str(error).split())[:200]})"
    ) from error
  enums = {
    f"#/$defs/{name}": schema["$defs"].pop(name)
    for name, inner in [*schema.get("$defs", {}).items()]
    if "enum" in inner
  }
  return adapter, _plainly(schema, enums)


def _plainly(schema: Any, enums: Mapping[str, Any]) -> Any:
  """Copies a schema without titles, with enumerations where they are used."""
  if isinstance(schema, list):
    return [_plainly(inner, enums) for inner in schema]
  if not isinstance(schema, dict):
    return schema
  schema = enums.get(schema.get("$ref", ""), schema)
  return {
    key: _plainly(inner, enums)
    for key, inner in schema.items()
    if key != "title" or not isinstance(inner, str)
  }


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


def _is_required(parameter: inspect.Parameter) -> bool:
  return parameter.default is inspect.Parameter.empty


def _default_of(
  parameter: inspect.Parameter, adapter: pydantic.TypeAdapter[Any], where: str
) -> dict[str, Any]:
  """Returns the schema's entry of a default, which must fit the annotation."""
  if _is_required(parameter):
    return {}
  try:
    value = adapter.validate_python(parameter.default, strict=True)
  except pydantic.ValidationError as error:
    raise ConfigError(
      f"{where}: the default {parameter.default!r} does not fit the "
      f"annotation: {error.errors()[0]['msg']}"
    ) from error
  return {"default": adapter.dump_python(value, mode="json")}


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
