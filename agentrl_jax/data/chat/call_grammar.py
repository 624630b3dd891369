"""Writes the grammar of answers that call tools, in a model family's form.

A call's name is one of the tools' names, and its arguments are JSON of that
tool's schema. All else is text, without any text that would be parsed as a
call. `data.grammar.grammars` describes the language and compiles it.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import llguidance

from agentrl_jax.data.chat.marked_text import MarkedTokenizer, unshield
from agentrl_jax.data.grammar import json_schema
from agentrl_jax.data.grammar.call_schema import MAX_SCHEMAS, compilable
from agentrl_jax.data.grammar.text_schema import ANY_TEXT, text_rule, types_of
from agentrl_jax.data.records import Tool
from agentrl_jax.errors import ConfigError

THINK, THINK_END = "<think>", "</think>"
# White space of Python's `str.strip`; `\s` alone lacks four of its characters.
SPACE = r"[\s\x1c-\x1f]"
# Text where tags are text too: all of its thoughts end, since a call in an open
# thought is none. `BEFORE` is one lexeme: a lexer does not look ahead.
_SPELT_TEXT = rf"""SPELT: NO_TAG (THOUGHT NO_TAG)*
NO_TAG: {ANY_TEXT} & ~/(.|\n)*(@)(.|\n)*/
THOUGHT: "<think>" UNCLOSED "</think>"
UNCLOSED: {ANY_TEXT} & ~/(.|\n)*<\/think>(.|\n)*/"""
_GAP = r"/\n{0,2}/"  # after a thought
# Allows every tokenization of a text: the tokenizer's own would have a marker
# token where a tool's name or a key contains a marker's text.
_FREE = '%llguidance {"no_forcing": true}'
_ESCAPES = {"json_allow_general_unicode_escapes": True}
# JSON as any program writes it, with bounded white space.
_JSON: dict[str, Any] = {"whitespace_pattern": r"[ \n\t\r]{1,32}", **_ESCAPES}
# JSON on one line, as Jinja's `tojson` and `json.dumps` write it.
_COMPACT_JSON: dict[str, Any] = {
  "whitespace_flexible": False,
  "item_separator": ", ",
  "key_separator": ": ",
  **_ESCAPES,
}
_PYTHON_WORDS = ('"True"', '"False"')  # of templates that print them
_DEFINITIONS = ("$defs", "definitions")
# Keywords of arguments that stand one by one.
_OBJECT = frozenset(
  {"type", "properties", "required", "additionalProperties", *_DEFINITIONS}
)
# Keywords of types and parts, of which a grammar can always be made.
_SHAPE = (
  _OBJECT
  | {"enum", "const", "items", "prefixItems", "$ref"}
  | {*("anyOf", "oneOf", "allOf")}
)
# Keywords that may list the properties of a schema without `properties`.
_INDIRECT = frozenset(
  {"$ref", "allOf", "anyOf", "oneOf", "additionalProperties"}
)


def text_that_is_no(call: str) -> str:
  """Returns the terminal of text that does not begin like the regex `call`.

  A call may not follow a thought in plain text either, because the parser
  removes such a thought before it reads the answer.
  """
  return rf"{ANY_TEXT} & ~/((.|\n)*<\/think>)?{call}(.|\n)*/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterForm:
  """Form of an argument that stands alone, its text without quotes."""

  head: str  # before its name
  middle: str  # between its name and its value
  before_end: str = ""
  end: str  # after its value; no text can contain it
  tail: str  # after that
  name: str  # regex of names that can be written


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallForm:
  """Form of tool calls of a model family, markers included."""

  head: str  # before a call's name, behind the tag
  middle: str  # between its name and its arguments
  tail: str  # after its arguments
  joint: str = ""  # between two calls
  section_end: str = ""  # ends calls whose tag stands once, before the first
  lead: str = ""  # may begin an answer, before its thought
  parameter: ParameterForm | None = None  # None: arguments are a JSON object
  may_begin: str = ""  # an optional marker before the first call
  after_text: str | None = ""  # ends text before calls; None: no such text
  text: str = ANY_TEXT  # llguidance's terminal of text without calls
  # Regex of names that can be called: those that need no escape in JSON.
  name: str = r'[^"\\\x00-\x1f]+'
  # Begins a call wherever it stands outside of a thought: as a token where the
  # tokenizer has one, else as text.
  tag: str = ""
  markers: tuple[str, ...] = ()  # tokens that distinguish a call from text
  none_because: str = ""  # why this model can write no call; "": it can
  stop: str = ""  # stop marker of calls alone; "": the model's stop markers
  thinks: bool = False  # the generation prompt has begun a thought
  compact: bool = False  # JSON of arguments is on one line, as templates write
  thought: tuple[str, str] = (THINK, THINK_END)  # around a thought
  text_head: str = ""  # before text that is no call
  # Further heads and middles of calls, which the model also writes.
  also: tuple[tuple[str, str], ...] = ()
  is_alone: bool = False  # an answer has one call at most
  names_replies: bool = False  # a reply is shown with the name of its call
  no_grammar: str = ""  # why no grammar can hold calls to this form


class CallGrammar:
  """Writes grammars of answers in one form, for one tokenizer."""

  def __init__(
    self, form: CallForm, tokenizer: MarkedTokenizer, stops: Sequence[str]
  ):
    self._form, self._tokenizer = form, tokenizer
    self._after_calls = self._after_text = ""
    if form.stop:
      if form.stop not in stops:
        raise ConfigError(
          f"calls end with {form.stop} in this model's form, and the model "
          f"stops at {', '.join(stops)}: add it to eos_token_id in "
          "generation_config.json"
        )
      self._after_calls = self._any_of([form.stop])
      self._after_text = self._any_of([s for s in stops if s != form.stop])

  def of_calls(
    self,
    tools: Sequence[Tool],
    *,
    choice: str = "auto",
    parallel: bool = True,
    strict: Collection[str] = frozenset(),
  ) -> str:
    """Returns the grammar of answers that call these tools, by their schemas.

    `choice` "auto" allows text, calls, or text and then calls; "required"
    allows calls alone. A thought may come before either, if the template has
    thoughts. Without `parallel` there is one call at most. Where no grammar can
    keep to a schema, any JSON may stand; of the tools that `strict` names,
    `ConfigError` has the reason instead.
    """
    reason = self._form.none_because or self._form.no_grammar
    if tools and reason:
      raise ConfigError(reason)
    ids = self._tokenizer.id_of
    if absent := [text for text in self._form.markers if text not in ids]:
      raise ConfigError(
        f"the tokenizer has no tokens for {absent}, so nothing tells a call "
        "from text that spells one, and no grammar can hold calls to a form: "
        "use a model whose tokenizer has them"
      )
    thought, rules = self._thought()
    answers = [self._calls(parallel)]
    if choice == "auto":
      answers = self._answers(parallel) if tools else [self._text_answer]
    lead = f"{json.dumps(self._form.lead)}?" if self._form.lead else ""
    start = f"start: {lead} {thought} ({' | '.join(answers)})"
    called = [
      rule
      for n, tool in enumerate(tools)
      for rule in self._call(
        tool,
        n,
        exact=tool.name in strict,
        max_schemas=MAX_SCHEMAS // len(tools),
      )
    ]
    either = " | ".join(f"call{n}" for n in range(len(tools)))
    rules += [f"call: {either}", *called] if tools else []
    return "\n".join([_FREE, start, *self._text(), *rules])

  def of_json(self, schema: Mapping[str, Any]) -> str:
    """See `ChatCodec.json_grammar`."""
    lead = "/ ?\\n?/" if self._tokenizer.prefixes_each else "/\\n?/"
    if head := self._form.text_head:
      lead = f"{self._thought()[0]} {self._spelt(head)} {lead}"
    value = _json(compilable(schema, exact=True, closed=False))
    return f"{_FREE}\nstart: {lead} {value} {self._after_text}"

  @property
  def _text_answer(self) -> str:
    head = self._spelt(self._form.text_head)
    return f"{head} TEXT {self._after_text}".lstrip()

  def _text(self) -> list[str]:
    """Returns the rules of text in which the parser reads no call."""
    tag, text = self._form.tag, f"TEXT: {self._form.text}"
    spelt = [t for t in (tag, THINK) if t and t not in self._tokenizer.id_of]
    if not spelt or self._form.text_head:
      return [text]
    rules = _SPELT_TEXT.replace("@", "|".join(map(re.escape, spelt)))
    if THINK not in spelt:
      rules = rules.replace(" (THOUGHT NO_TAG)*", "", 1)
    before = [f"BEFORE: SPELT {json.dumps(tag)}"] if tag in spelt else []
    return [f"{text} & SPELT", *before, rules]

  def _answers(self, parallel: bool) -> list[str]:
    """Returns text, and calls, with text before them if the form allows it."""
    form, calls = self._form, self._calls(parallel)
    if form.after_text is None:
      return [self._text_answer, calls]
    if form.tag and form.tag not in self._tokenizer.id_of:
      return [self._text_answer, self._calls(parallel, "BEFORE")]
    before = f"TEXT {self._spelt(form.after_text)}"
    return [self._text_answer, f"({before})? {calls}"]

  def _calls(self, parallel: bool, first: str = "") -> str:
    """Returns one call, or several; `first` takes the place of its tag."""
    form = self._form
    tag = self._spelt(form.tag)
    several = parallel and not form.is_alone
    next_tag = "" if form.section_end else form.tag
    joint = self._spelt(form.joint + next_tag, after=form.tail)
    end = self._spelt(form.section_end)
    more = f"({joint} call)*" if several else ""
    may_begin = form.may_begin in self._tokenizer.id_of
    begin = f"{self._spelt(form.may_begin)}?" if may_begin else ""
    return f"{begin} {first or tag} call {more} {end} {self._after_calls}"

  def _call(
    self, tool: Tool, number: int, *, exact: bool, max_schemas: int
  ) -> list[str]:
    """Returns the rules of a call of a tool, the first of them the call."""
    form = self._form
    shield = self._tokenizer.markers.shield
    if not re.fullmatch(form.name, tool.name):
      raise ConfigError(
        f"the tool {tool.name!r} cannot be called in this model's form, where "
        f"a name is as the regex {form.name!r} says: rename it"
      )
    heads = ((form.head, form.middle), *form.also)
    head = " | ".join(
      self._spelt(f"{head}{shield(tool.name)}{middle}", after=form.tag)
      for head, middle in heads
    )
    head = f"({head})" if form.also else head
    try:
      arguments, rules = self._arguments(tool, f"{number}", exact, max_schemas)
    except ConfigError as error:
      raise ConfigError(
        f"the parameters of tool {tool.name!r}: {error}"
      ) from error
    return [
      f"call{number}: {head} {arguments} {self._spelt(form.tail)}",
      *rules,
    ]

  def _arguments(
    self, tool: Tool, id: str, exact: bool, max_schemas: int
  ) -> tuple[str, list[str]]:
    """Returns a call's arguments, and their rules.

    Unless they must be `exact`, a schema of which no grammar can be made is
    taken for a weaker one, and whoever takes the call checks the rest.
    """
    fault = None
    for schema in _schemas(tool.parameters, exact, max_schemas):
      try:
        if form := self._form.parameter:
          return self._parameters(tool, schema, form, id, exact)
        return _json(schema, compact=self._form.compact), []
      except ConfigError as error:
        fault = error
    assert fault
    raise fault

  def _parameters(
    self,
    tool: Tool,
    schema: Mapping[str, Any],
    form: ParameterForm,
    id: str,
    exact: bool,
  ) -> tuple[str, list[str]]:
    """Returns arguments that stand one by one, and their rules."""
    if exact and (further := schema.keys() - _OBJECT):
      raise ConfigError(
        f"no grammar keeps to {', '.join(sorted(further))} where arguments "
        "stand one by one: list all in properties, and say it in a description"
      )
    arguments: list[str] = []
    rules: list[str] = []
    if not exact and "properties" not in schema:  # of any names
      value, rules = self._text_value({}, {}, f"V{id}")
      head, middle = self._spelt(form.head), self._spelt(form.middle)
      rules.append(f"N{id}: /{form.name}/")
      return f"({head} N{id} {middle} {value})*", rules
    for n, (key, inner) in enumerate(schema.get("properties", {}).items()):
      if inner is False:
        continue  # no value keeps to it
      if not re.fullmatch(form.name, key):
        if not exact:
          continue  # nobody can write it
        raise ConfigError(
          f"argument {key!r}: a name is as the regex {form.name!r} says in "
          "this model's form: rename it"
        )
      name = self._tokenizer.markers.shield(key)
      head = self._spelt(f"{form.head}{name}{form.middle}")
      value, rule = self._value(tool, key, schema, f"V{id}_{n}", exact)
      optional = "" if key in schema.get("required", ()) else "?"
      arguments.append(f"({head} {value}){optional}")
      rules += rule
    return " ".join(arguments), rules

  def _value(
    self, tool: Tool, key: str, schema: Mapping[str, Any], id: str, exact: bool
  ) -> tuple[str, list[str]]:
    """Returns the value of an argument with its end tag, and its rules."""
    try:
      return self._exact_value(tool, key, schema, id)
    except ConfigError:
      if exact:
        raise
    return self._text_value({}, {}, id)

  def _exact_value(
    self, tool: Tool, key: str, schema: Mapping[str, Any], id: str
  ) -> tuple[str, list[str]]:
    form = self._form.parameter
    assert form
    inner = schema["properties"][key]
    kinds = types_of(tool.parameters, key)
    tail = self._spelt(f"{form.before_end}{form.end}{form.tail}")
    if "string" not in kinds:
      words = " | ".join(_PYTHON_WORDS) if inner == {"type": "boolean"} else ""
      defs = {key: schema[key] for key in _DEFINITIONS if key in schema}
      value = _json({**inner, **defs}, compact=self._form.compact)
      return f"({words + ' | ' if words else ''}{value}) {tail}", []
    if kinds - {"string", "null"}:
      raise ConfigError(
        f"argument {key!r} may be a text or {sorted(kinds - {'string'})}, and "
        "nothing tells them apart in this model's form: give it one type"
      )
    return self._text_value(inner, schema, id)

  def _text_value(
    self, inner: Mapping[str, Any], root: Mapping[str, Any], id: str
  ) -> tuple[str, list[str]]:
    form = self._form.parameter
    assert form
    tail = self._spelt(f"{form.before_end}{form.end}{form.tail}")
    if form.end in self._tokenizer.id_of:
      return f"{id} {tail}", [f"{id}: {text_rule(inner, root, without='')}"]
    # One lexeme with its end, since a lexer does not look ahead.
    text = text_rule(inner, root, without=form.end)
    return id, [f"{id}: {id}T {tail}", f"{id}T: {text}"]

  def _thought(self) -> tuple[str, list[str]]:
    """Returns the thought at the start of an answer, and its rules."""
    if self._form.text_head:
      opening, closing = map(self._spelt, self._form.thought)
      return f"({opening} {ANY_TEXT} {closing})?", []
    begin, end = (tag in self._tokenizer.id_of for tag in (THINK, THINK_END))
    if not end:
      rules = [rf"thought: closed {_GAP}", r"closed[lazy]: /(.|\n)*<\/think>/"]
      return ("thought", rules) if self._form.thinks else ("", [])
    rules = [f"thought: {ANY_TEXT} {self._spelt(THINK_END)} {_GAP}"]
    if self._form.thinks:
      return "thought", rules
    return (f"({self._spelt(THINK)} thought)?", rules) if begin else ("", [])

  def _any_of(self, markers: Sequence[str]) -> str:
    ids = self._tokenizer.id_of
    return f"<[{','.join(str(ids[marker]) for marker in markers)}]>"

  def _spelt(self, text: str, after: str = ".") -> str:
    """Returns terminals of shielded text: markers by id, the rest quoted.

    `after` is the text before it, which may end with a marker.
    """
    split = self._tokenizer.markers.split
    pieces, begins = split(text), not split(after)[-1]
    return " ".join(
      self._any_of([piece])
      if n % 2
      else self._quoted(unshield(piece), begins=n > 0 or begins)
      for n, piece in enumerate(pieces)
      if piece
    )

  def _quoted(self, text: str, *, begins: bool) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    if not begins or not self._tokenizer.prefixes_each:
      return quoted
    # One lexeme with the space, since a lexer takes the longest.
    return f'({quoted} | " {quoted[1:]})'


def _json(schema: Mapping[str, Any], *, compact: bool = False) -> str:
  """Returns the nonterminal of JSON by a schema. Raises `ConfigError`."""
  options = _COMPACT_JSON if compact else _JSON
  options = options | schema.get("x-guidance", {})
  nonterminal = f"%json {json.dumps({**schema, 'x-guidance': options})}"
  if reason := llguidance.LLMatcher.validate_grammar(f"start: {nonterminal}"):
    reason = reason.partition("\n   1 |")[0].removeprefix("at 1(8): ")
    raise ConfigError(
      f"{reason.strip()}. See llguidance's docs/json_schema.md for what of a "
      "schema can be kept to"
    )
  return nonterminal


def _schemas(
  parameters: Mapping[str, Any], exact: bool, max_schemas: int
) -> Iterator[dict[str, Any]]:
  """Yields the schema to keep to, and weaker ones where it may be inexact."""
  try:
    yield _declared(parameters, exact=exact, max_schemas=max_schemas)
  except ConfigError:
    if exact:
      raise
  if not exact:
    given = {**parameters, "type": "object"}
    known, _ = json_schema.checkable(given)
    for _ in range(2):
      with contextlib.suppress(ConfigError):
        weaker = compilable(
          known, exact=False, closed=True, max_schemas=max_schemas
        )
        yield {**weaker, "x-guidance": {"lenient": True}}
      for inner in json_schema.subschemas(known):
        for keyword in inner.keys() - _SHAPE:
          del inner[keyword]
    yield {"type": "object"}


def _declared(parameters: Mapping[str, Any], **rules: Any) -> dict[str, Any]:
  """Returns the schema of a tool's arguments: an object of its properties."""
  schema: dict[str, Any] = {"type": "object", **parameters}
  if schema["type"] != "object":
    raise ConfigError(
      f"the type is {schema['type']!r}, and arguments are an 'object'"
    )
  if not _INDIRECT & schema.keys():
    schema.setdefault("properties", {})
  return compilable(schema, closed=True, **rules)
