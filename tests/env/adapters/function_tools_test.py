"""Tests of tools made of typed functions."""

import dataclasses
import enum
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import pydantic
from absl.testing import parameterized

from agentrl_jax.data.records import Tool, ToolCall
from agentrl_jax.env.adapters.function_tools import tool_of
from agentrl_jax.env.tools import ToolMistake, read_arguments
from agentrl_jax.errors import ConfigError


class Color(enum.Enum):
  RED = "red"
  BLUE = "blue"


class Level(enum.IntEnum):
  LOW = 1
  HIGH = 2


@dataclasses.dataclass
class Point:
  x: int


class State:
  pass


def taking(annotation, **default):
  """Makes a function with one parameter `x`."""

  def take(x):
    """Takes it."""
    return x

  take.__annotations__["x"] = annotation
  if default:
    take.__defaults__ = (default["default"],)
  return take


def called(function, arguments):
  """Calls the function as a session does, or returns the mistake."""
  tool = tool_of(function)
  read = read_arguments(
    ToolCall(tool.tool.name, json.dumps(arguments)), [tool.tool]
  )
  if isinstance(read, ToolMistake):
    return read
  return function(**tool.keywords(read, None))


class SchemaTest(parameterized.TestCase):
  def test_a_tool_of_all_parts(self):
    async def roll(
      dice: int, state, *, sides: Literal[6, 20] = 6, note: str | None = None
    ) -> str:
      """Rolls dice.

      All of them are fair.

      Args:
        dice: how many, which
          may be none.
        sides (int): of each.

      Returns:
        what they show.
      """

    tool = tool_of(roll)
    self.assertEqual(
      tool.tool,
      Tool(
        "roll",
        "Rolls dice.\n\nAll of them are fair.\n\nReturns:\n  what they show.",
        {
          "type": "object",
          "properties": {
            "dice": {
              "type": "integer",
              "description": "how many, which may be none.",
            },
            "sides": {
              "type": "integer",
              "enum": [6, 20],
              "description": "of each.",
              "default": 6,
            },
            "note": {
              "anyOf": [{"type": "string"}, {"type": "null"}],
              "default": None,
            },
          },
          "required": ["dice"],
          "additionalProperties": False,
        },
      ),
    )
    self.assertTrue(tool.takes_state)
    self.assertIs(tool.returns, str)

  @parameterized.parameters(
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (str, {"type": "string"}),
    (bool, {"type": "boolean"}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (
      list[list[Color]],
      {
        "type": "array",
        "items": {
          "type": "array",
          "items": {"type": "string", "enum": ["red", "blue"]},
        },
      },
    ),
    (
      dict[str, float],
      {"type": "object", "additionalProperties": {"type": "number"}},
    ),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Level, {"type": "integer", "enum": [1, 2]}),
    (Annotated[int, pydantic.Field(ge=1)], {"type": "integer", "minimum": 1}),
    (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045 - the old form is tested
  )
  def test_each_annotation_has_its_schema(self, annotation, schema):
    tool = tool_of(taking(annotation)).tool
    self.assertEqual(tool.parameters["properties"], {"x": schema})

  def test_annotations_may_be_texts(self):
    self.assertEqual(
      tool_of(taking("list[Color]")).tool, tool_of(taking(list[Color])).tool
    )

  @parameterized.parameters(
    (int, 2.0, 2),
    (float, 2, 2.0),
    (bool, True, True),
    (list[Color], ["red", "blue"], [Color.RED, Color.BLUE]),
    (dict[str, Color], {"a": "red"}, {"a": Color.RED}),
    (Point, {"x": 1}, Point(1)),
    (Color | None, None, None),
    (Color | None, "red", Color.RED),
  )
  def test_values_have_the_type_that_is_written(self, annotation, value, read):
    found = called(taking(annotation), {"x": value})
    self.assertEqual(found, read)
    self.assertIs(type(found), type(read))

  @parameterized.parameters(
    (int, "7", "`x` must be of type integer, not string"),
    (int, True, "`x` must be of type integer, not boolean"),
    (int, 2.5, "`x` must be of type integer, not number"),
    (Color, "green", '`x` must be one of "red", "blue", not "green"'),
    (list[int], [1, "b"], "`x[1]` must be of type integer, not string"),
    (dict[str, int], {"a": "b"}, "`x.a` must be of type integer"),
    (int | None, "a", "`x` must be of type integer or null, not string"),
  )
  def test_the_policys_mistakes_are_described(self, annotation, value, text):
    mistake = called(taking(annotation), {"x": value})
    self.assertIsInstance(mistake, ToolMistake)
    self.assertIn(text, mistake.message)

  def test_an_omitted_argument_has_its_default(self):
    for annotation, default in (
      (int, 3),
      (float, 1),
      (str, ""),
      (Color, Color.BLUE),
      (list[int] | None, None),
    ):
      with self.subTest(annotation=annotation):
        function = taking(annotation, default=default)
        self.assertEqual(called(function, {}), default)

  def test_lists_are_new_in_every_call(self):
    function = taking(list[int])
    called(function, {"x": [1]}).append(2)
    self.assertEqual(called(function, {"x": [1]}), [1])


def star(*numbers: int):
  """Takes some."""


def stars(**numbers: int):
  """Takes some."""


def positional(x: int, /):
  """Takes one."""


def unannotated(x):
  """Takes it."""


def misspelt(number: int):
  """Takes it.

  Args:
    nubmer: what is taken.
  """


def größe():
  """Measures."""


def numbers():
  """Counts."""
  yield 1


class Counter:
  def count(self, x: int):
    """Counts."""

  def __call__(self, x: int):
    """Counts."""


class RefusedTest(parameterized.TestCase):
  @parameterized.parameters(
    *(
      (taking(x), "take, parameter x: the annotation .* has no schema")
      for x in (State, Callable[[int], int], list[State])
    ),
    (taking("Colour"), "function take.*'Colour'"),
    (unannotated, "unannotated, parameter x has no annotation"),
    (star, r"star: \*numbers: int is variadic positional"),
    (stars, r"stars: \*\*numbers: int is variadic keyword"),
    (positional, "positional: x: int is positional-only"),
    (misspelt, "did you mean number"),
    *(
      (x, "is no plain function")
      for x in (Counter(), Counter().count, Counter, print, "add")
    ),
    (lambda: 0, "'<lambda>' cannot be a tool"),
    (größe, "'größe' cannot be a tool"),
    (numbers, "is a generator"),
  )
  def test_no_tool_can_be_made_of_it(self, function, text):
    with self.assertRaisesRegex(ConfigError, text):
      tool_of(function)

  def test_a_name_has_64_letters_at_most(self):
    function = taking(int)
    function.__name__ = "a" * 65
    with self.assertRaisesRegex(ConfigError, "1 to 64"):
      tool_of(function)

  @parameterized.parameters(None, "", "  \n ", "Args:\n  x: a number.")
  def test_a_missing_description(self, docstring):
    function = taking(int)
    function.__doc__ = docstring
    with self.assertRaisesRegex(ConfigError, "function take has no docstring"):
      tool_of(function)

  @parameterized.parameters(
    ("  xx: a number.", "explains 'xx', which is no parameter; those are x"),
    ("  x: a number.\n  x: another.", "has x twice"),
    ("  a number", "'a number' in the docstring's Args is no"),
  )
  def test_explanations_of_nothing(self, lines, text):
    function = taking(int)
    function.__doc__ = f"Takes it.\n\nArgs:\n{lines}"
    with self.assertRaisesRegex(ConfigError, text):
      tool_of(function)

  @parameterized.parameters(
    (int, None, "valid integer"),
    (int, True, "valid integer"),
    (Literal["a"], "b", "should be 'a'"),
    (Color, "red", "instance of Color"),
  )
  def test_defaults(self, annotation, default, text):
    with self.assertRaisesRegex(ConfigError, f"take, parameter x: .*{text}"):
      tool_of(taking(annotation, default=default))

  def test_an_argument_that_was_to_be_the_policys(self):
    def weather(state: str):
      """Tells the weather of a state."""

    with self.assertRaisesRegex(ConfigError, "gets the episode's state, a St"):
      tool_of(weather, State)

  def test_a_state_may_be_annotated(self):
    def play(state: object):
      """Plays."""

    for hint in (object, State, Any, "State"):
      play.__annotations__["state"] = hint
      self.assertEqual(tool_of(play, State).tool.parameters["properties"], {})
