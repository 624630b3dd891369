"""Explanation of config keys: default, values, comment, and where each is read.

All of it comes from the code: comments from the files of `configs`, ranges from
`launch.config.numbers`, choices from the check that refuses others, and places
from the syntax trees of the source.
"""

import ast
import dataclasses
import functools
import inspect
import io
import pathlib
import re
import tokenize
import typing
from collections.abc import Iterator

import ml_collections

from agentrl_jax.env.loading import find_class
from agentrl_jax.errors import ConfigError
from agentrl_jax.service.docker.containers import ContainerSpec
from configs import base
from configs.base import flat_keys, why_unknown
from launch.config.numbers import range_of
from launch.config.settings import PlaceSettings, Settings, read_settings

_ROOT = pathlib.Path(base.__file__).parents[1]
# Files that define keys, and the section that each is about.
_CONFIGS = (
  ("configs/base.py", ""),
  ("configs/sections/*.py", ""),
  ("configs/environments.py", "environments."),
)
_OPTIONS = "environments/options.py"
_PLACES = "launch/config/settings.py"
_SEARCHED = ("agentrl_jax", "environments", "launch")
_MOST_PLACES = 12
_CHOICES = re.compile(r"one of ([\w, ]+?)(?: \(did you mean|\.|$)")
_UNITS = {"_s": "seconds", "_mb": "megabytes", "_tokens": "tokens"}


def explain(key: str, config: ml_collections.ConfigDict) -> str:
  """Returns what is known of a config's key, or of all keys of a section.

  Raises `ConfigError` with similar names for a key that does not exist.
  """
  config = _completed(config)
  if why := why_unknown(key, config):
    raise ConfigError(why)
  value: typing.Any = config
  for word in key.split("."):
    value = value[word]
  if isinstance(value, ml_collections.ConfigDict) and len(value):
    return table(config, f"{key}.")
  comment, default = _comment(key, config), _defaults().get(key)
  lines = {
    "value": "" if value == default else repr(value),
    "default": repr(default) if key in _defaults() else "",
    "unit": next((u for end, u in _UNITS.items() if key.endswith(end)), ""),
    "values": _values(key, value),
    "comment": comment.text,
    "set in": comment.place,
    "read in": f"\n{'':10}".join(_readers(key, config)),
  }
  return "\n".join(
    [key, *(f"  {name:8}{text}" for name, text in lines.items() if text)]
  )


def table(config: ml_collections.ConfigDict, prefix: str = "") -> str:
  """Returns a line for each key below a prefix: key, value, comment.

  A `*` stands before a value that is not the default.
  """
  config, default = _completed(config), _defaults()
  rows = [
    (
      key,
      f"{'* ' * (value != default.get(key, value))}{value!r:.30}",
      _comment(key, config).text.partition(". ")[0],
    )
    for key, value in flat_keys(config)
    if key.startswith(prefix)
  ]
  widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
  return "\n".join(
    f"{key:{widths[0]}}  {value:{widths[1]}}  {text}".rstrip()
    for key, value, text in rows
  )


def _defaults() -> dict[str, typing.Any]:
  return dict(flat_keys(_completed(base.get_config())))


def _completed(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns the config with every key that its environments' sections take."""
  full = config.copy_and_resolve_references()
  for section in full.environments.values():
    make = find_class(section.target)
    known = inspect.signature(make).parameters.values()
    defaults = {p.name: p.default for p in known if p.default is not p.empty}
    places = dataclasses.fields(PlaceSettings)
    for keys, values in (
      ("options", defaults),
      ("mistakes", dict.fromkeys(make.mistakes, 0.0)),
      ("place", {place.name: place.default for place in places}),
    ):
      for name in values.keys() - section[keys].keys():
        section[keys][name] = values[name]
  return full


@dataclasses.dataclass(frozen=True)
class Comment:
  """The comment of a key, or that of its section, and its file:line."""

  text: str  # "" if its name says all
  place: str


def _comment(key: str, config: ml_collections.ConfigDict) -> Comment:
  """Returns a key's comment; of an environment of one's own, its class."""
  if known := comments().get(key):
    return known
  if ".options." in key:
    return Comment(f"see {_target(key, config)}", "")
  of_any = re.sub(r"^environments\.\w+", "environments.dbbench", key)
  return comments().get(of_any, Comment("", ""))


def _target(key: str, config: ml_collections.ConfigDict) -> str:
  return str(config.environments[key.split(".")[1]].target)


@functools.cache
def comments() -> dict[str, Comment]:
  """Returns the comments of all keys and sections."""
  found: dict[str, Comment] = {}
  for pattern, above in _CONFIGS:
    for path in sorted(_ROOT.glob(pattern)):
      found = dict(_CommentedFile(path).of_config(above)) | found
  for name in base.get_config().environments:
    above = f"environments.{name}."
    found |= _CommentedFile(_ROOT / _OPTIONS).of_options(name, above)
    places = _CommentedFile(_ROOT / _PLACES)
    found |= places.fields("PlaceSettings", f"{above}place.")
  return found


class _CommentedFile:
  """A file that has keys with comments beside them.

  Its `get_config` makes sections by calls with keywords, or its classes have
  options of environments as fields.
  """

  def __init__(self, path: pathlib.Path) -> None:
    source = path.read_text(encoding="utf-8")
    self._name = str(path.relative_to(_ROOT))
    nodes = ast.parse(source).body
    self._functions = {
      n.name: n for n in nodes if isinstance(n, ast.FunctionDef)
    }
    self._classes = {n.name: n for n in nodes if isinstance(n, ast.ClassDef)}
    self._remarks: dict[int, str] = {}
    self._alone: set[int] = set()  # lines that have a comment and nothing else
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
      if token.type == tokenize.COMMENT:
        self._remarks[token.start[0]] = token.string.lstrip("# ")
        if token.line.lstrip().startswith("#"):
          self._alone.add(token.start[0])

  def of_options(self, name: str, above: str) -> dict[str, Comment]:
    """Returns the options and mistakes of an environment."""
    title = f"{name.replace('_', '')}options"
    named = {key.lower(): key for key in self._classes}[title]
    return self.fields(named, f"{above}options.", f"{above}mistakes.")

  def fields(
    self, title: str, above: str, names: str = ""
  ) -> dict[str, Comment]:
    """Returns the fields of a class and of its bases, and a tuple's `names`."""
    found: dict[str, Comment] = {}
    for parent in self._classes[title].bases:
      if (base_ := ast.unparse(parent)) in self._classes:
        found |= self.fields(base_, above, names)
    for node in self._classes[title].body:
      if isinstance(node, ast.AnnAssign):
        name = ast.unparse(node.target)
        found |= [self._key(f"{above}{name}", node.lineno)]
      elif isinstance(node, ast.Assign):
        elements = getattr(node.value, "elts", ())
        found |= [self._key(f"{names}{e.value}", e.lineno) for e in elements]
    return found

  def _key(
    self, key: str, line: int, inherited: str = ""
  ) -> tuple[str, Comment]:
    text = self._text(line) or inherited
    return key, Comment(text, f"{self._name}:{line}")

  def of_config(self, above: str) -> Iterator[tuple[str, Comment]]:
    """Yields the keys of the file's config, each with its comment."""
    if "get_config" in self._functions:
      yield from self._of_function("get_config", above, "")

  def _of_function(
    self, name: str, above: str, inherited: str
  ) -> Iterator[tuple[str, Comment]]:
    for node in self._functions[name].body:
      if isinstance(node, ast.Return | ast.Assign):
        yield from self._of_call(node.value, above, inherited)

  def _of_call(
    self, call: ast.AST | None, above: str, inherited: str
  ) -> Iterator[tuple[str, Comment]]:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
      return
    for keyword in call.keywords:
      if keyword.arg:
        key = f"{above}{keyword.arg}"
        yield self._key(key, keyword.lineno, inherited)
        text = self._text(keyword.lineno) or inherited
        yield from self._of_call(keyword.value, f"{key}.", text)
      else:  # **: the keys that it has are those of the environments
        for name in base.get_config().environments:
          yield self._key(f"{above}{name}", call.lineno, inherited)
    if call.func.id in self._functions:
      yield from self._of_function(call.func.id, above, inherited)

  def _text(self, line: int) -> str:
    """Returns the comment at the end of a line and on those before it."""
    remarks = [self._remarks.get(line, "")]
    while line - 1 in self._alone:
      line -= 1
      remarks.insert(0, self._remarks[line])
    return " ".join(remarks).strip()


def _values(key: str, default: object) -> str:
  """Returns the values that a key may have; "" if any of its type."""
  if isinstance(default, bool):
    return "True or False"
  if key.startswith("environments."):
    return ""
  if isinstance(default, int | float):
    return str(range_of(key, default))
  if not isinstance(default, str):
    return ""
  config = base.get_config()
  try:
    config.update_from_flattened_dict({key: "?"})
    read_settings(config)
  except (ConfigError, KeyError) as error:  # of another config's environment
    if match := _CHOICES.search(str(error)):
      return match[1]
  return ""


def _readers(key: str, config: ml_collections.ConfigDict) -> list[str]:
  """Returns file:line of the code that reads a key, the first dozen."""
  section, _, name = key.rpartition(".")
  owner = _class_of(section, config)
  paths = [p for top in _SEARCHED for p in sorted((_ROOT / top).rglob("*.py"))]
  found = []
  for path in paths:
    text = path.read_text(encoding="utf-8")
    if re.search(rf"\b{name}\b", text):
      knows = owner is not None and re.search(rf"\b{owner}\b", text) is not None
      lines = set(_lines(ast.parse(text), section, name, anywhere=knows))
      found += [f"{path.relative_to(_ROOT)}:{line}" for line in sorted(lines)]
  more = len(found) - _MOST_PLACES
  return found[:_MOST_PLACES] + ([f"and {more} more"] if more > 0 else [])


def _lines(
  tree: ast.AST, section: str, name: str, *, anywhere: bool
) -> Iterator[int]:
  """Yields the lines of a file that read a key, messages left out.

  They have `section.name`; with `anywhere`, where the class of the section is
  known, also `.name` of anything, a field and a parameter.
  """
  if isinstance(tree, ast.JoinedStr):
    return
  if isinstance(tree, ast.Attribute) and tree.attr == name:
    holder = getattr(tree.value, "attr", getattr(tree.value, "id", ""))
    if anywhere or holder == (section.rpartition(".")[2] or "config"):
      yield tree.lineno
  if isinstance(tree, ast.AnnAssign) and anywhere:
    if getattr(tree.target, "id", "") == name:
      yield tree.lineno
  elif isinstance(tree, ast.arg) and anywhere and tree.arg == name:
    yield tree.lineno
  for child in ast.iter_child_nodes(tree):
    yield from _lines(child, section, name, anywhere=anywhere)


def _class_of(section: str, config: ml_collections.ConfigDict) -> str | None:
  """Returns the name of the class that a section's keys are arguments of."""
  words = section.split(".")
  if words[0] == "environments" and words[-1] == "options":
    return _target(section, config).partition(":")[2]
  classes = typing.get_type_hints(Settings)
  classes |= {
    "containers": ContainerSpec,
    "train": classes["batch"],
    "warm_start.optimizer": classes["optimizer"],
  }
  return getattr(classes.get(section), "__name__", None)
