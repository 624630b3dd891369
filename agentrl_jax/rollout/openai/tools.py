"""Tools, and the choice among them, in the form of any API: one gate for all.

A tool that the client runs without a schema of its own, such as Anthropic's
`bash` or OpenAI's `apply_patch`, is shown as a function with the schema that is
published. What nobody can run here is left out and counted, or refused by name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import FailFast, model_validator

from agentrl_jax.data.records import Tool, ToolCall, tool_to_json
from agentrl_jax.data.tool_calls import flaw_of
from agentrl_jax.errors import SchemaFault
from agentrl_jax.rollout.openai.validation import (
  LenientObject,
  invalid,
  must_be,
  shortened,
  unsupported,
)
from agentrl_jax.rollout.server.errors import ApiError

_DATED = re.compile(r"(.+?)_(20\d\d_?\d\d_?\d\d)")
_WRAPPERS = ("function", "custom")  # fields with a tool of their own
_SCHEMAS = ("parameters", "input_schema", "inputSchema")
_TOOL_CHOICES = (
  "'auto', 'required', 'none', "
  '{"type": "function", "function": {"name": ...}}, or {"type": '
  '"allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": '
  "[...]}}"
)
_MODES = {"any": "required"} | {m: m for m in ("auto", "none", "required")}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
  """Returns the schema of an object; a text is a text's description."""
  schemas = {
    name: {"type": "string", "description": given}
    if isinstance(given, str)
    else given
    for name, given in properties.items()
  }
  form = {"type": "object", "properties": schemas, "required": [*required]}
  return form | {"additionalProperties": False}


_WHOLE = {"type": "integer"}
_RANGE = {"type": "array", "items": _WHOLE, "description": "First, last line."}
_FILES: dict[str, Any] = {
  "path": "An absolute path.",
  "file_text": "The new file's text, for create.",
  "old_str": "The text to replace, for str_replace; it must occur once.",
  "new_str": "The text in its place.",
  "insert_line": _WHOLE | {"description": "The line to insert after."},
  "insert_text": "The text to add, for insert.",
  "view_range": _RANGE,
}
_EDITS = ("view", "create", "str_replace", "insert")
_COMMANDS = {"type": "array", "items": {"type": "string"}}

# Tools that clients run: what the policy reads of each, by the type's name
# without its date.
CLIENT_TOOLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
  "bash": (
    "Runs a command in a bash session that stays open between calls.",
    _object(
      command="The command; leave it out to restart.",
      restart={"type": "boolean", "description": "Restarts the session."},
    ),
  ),
  "text_editor": (
    "Shows, creates and edits text files.",
    _object("command", "path", command={"enum": [*_EDITS]}, **_FILES),
  ),
  "old_text_editor": (  # until 20250124
    "Shows, creates and edits text files; insert adds new_str.",
    _object(
      "command",
      "path",
      **{"command": {"enum": [*_EDITS, "undo_edit"]}} | _FILES,
    ),
  ),
  "memory": (
    "Keeps notes in files below /memories, which outlast the conversation.",
    _object(
      "command",
      command={"enum": [*_EDITS, "delete", "rename"]},
      **_FILES,
      old_path="The path to rename.",
      new_path="Its new path.",
    ),
  ),
  "custom": ("", _object("input", input="The tool's whole input.")),
  "local_shell": (
    "Runs a program on the user's machine.",
    _object(
      "command",
      command=_COMMANDS | {"description": "The program and its arguments."},
      working_directory="Where to run it.",
      timeout_ms=_WHOLE,
      user="The user to run it as.",
    ),
  ),
  "shell": (
    "Runs shell commands on the user's machine.",
    _object(
      "commands",
      commands=_COMMANDS,
      timeout_ms=_WHOLE,
      max_output_length=_WHOLE,
    ),
  ),
  "apply_patch": (
    "Creates, updates or deletes a file.",
    _object(
      "type",
      "path",
      type={"enum": ["create_file", "update_file", "delete_file"]},
      path="The file's path.",
      diff="Unified diff in the V4A format, except for delete_file.",
    ),
  ),
  "tool_search": ("Finds tools.", {}),
}
# Those whose calls have items of their own, which no other arguments fit.
_EXACT = ("custom", "local_shell", "shell", "apply_patch", "tool_search")
# Tools that a vendor's servers run, and harnesses offer by default.
HOSTED = frozenset(
  ("web_search", "web_search_preview", "web_fetch", "advisor")
  + ("code_execution", "code_interpreter", "programmatic_tool_calling")
  + ("image_generation", "tool_search_tool_bm25", "tool_search_tool_regex")
)


class OfferedTool(LenientObject):
  """A tool of a call, in any form of the APIs."""

  without_effect = LenientObject.without_effect | (
    {"allowed_callers", "async", "eager_input_streaming", "max_characters"}
    | {"output_schema"}
  )

  type: str = "function"
  name: str = ""
  description: str = ""
  parameters: dict[str, Any] | None = None
  strict: bool = False
  defer_loading: bool = False
  format: dict[str, Any] = {}  # of a custom tool's input
  environment: dict[str, Any] = {}  # of a shell
  execution: str = "server"  # of a search for tools
  tools: "Annotated[list[OfferedTool], FailFast()]" = []  # of a namespace
  namespace: str = ""

  @model_validator(mode="before")
  @classmethod
  def _in_one_form(cls, tool: Any) -> Any:
    if not isinstance(tool, dict):
      return tool
    inner = [tool[k] for k in _WRAPPERS if isinstance(tool.get(k), dict)]
    fields = {k: x for k, x in tool.items() if x not in (None, *inner)}
    for more in inner:
      given = {k: x for k, x in more.items() if x is not None}
      if any(fields.get(k, x) != x for k, x in given.items()):
        raise invalid("a tool that says each thing once")
      fields |= given
    schemas = [fields.pop(name) for name in _SCHEMAS if name in fields]
    if schemas[1:]:
      raise invalid(f"a tool with one of {', '.join(_SCHEMAS)}")
    return fields | dict.fromkeys(["parameters"][: len(schemas)], *schemas)

  @model_validator(mode="after")
  def _refuse_unknown(self) -> "OfferedTool":
    kind = self.kind
    if kind not in ("function", "namespace", *CLIENT_TOOLS, *HOSTED):
      raise unsupported(
        f"it is of the type {shortened(self.type)}, and the policy can be "
        f"shown {', '.join(['function', 'namespace', *CLIENT_TOOLS])}: leave "
        "it out, or give it as a function that you run"
      )
    if not self.name and kind in ("function", "namespace", "custom"):
      raise invalid("a tool with a name")
    odd = (self.model_extra or {}).keys() - {"input_examples"}
    if odd and kind == "function" and self.parameters is None:
      raise invalid(
        f"a function with parameters: it has none, but {', '.join(sorted(odd))}"
      )
    return self

  @property
  def kind(self) -> str:
    """The type without its date; `function` for any with a schema."""
    dated = _DATED.fullmatch(self.type)
    kind, date = dated.groups() if dated else (self.type, "")
    if kind == "custom" and self.parameters is not None:
      return "function"
    if kind == "text_editor" and date < "20250429":
      return "old_text_editor"
    place = f"{kind} {self.environment.get('type', self.execution)}"
    is_hosted = place.startswith(("shell container", "tool_search server"))
    return "tool_search_tool_bm25" if is_hosted else kind

  def functions(self, namespace: str = "") -> Iterator["OfferedTool"]:
    """Yields the functions that the policy may be shown, by full names."""
    if self.kind == "namespace":
      for tool in self.tools:
        yield from tool.functions(self.name)
    elif self.kind not in HOSTED:
      name = f"{namespace}.{self.name}" if namespace else self.name or self.kind
      place = namespace or self.namespace
      yield self.model_copy(update={"name": name, "namespace": place})

  def to_tool(self) -> Tool:
    """Returns the tool as chat templates read it. Raises `ApiError`."""
    described, schema = CLIENT_TOOLS.get(self.kind, ("", {}))
    texts = [self.description or described]
    if self.format.get("type", "text") != "text":
      texts.append(f"Format of the input: {json.dumps(self.format)}")
    parameters = schema if self.parameters is None else self.parameters
    try:
      return Tool(self.name, "\n".join(filter(None, texts)), parameters)
    except SchemaFault as error:
      raise ApiError(str(error), param="tools") from error

  def takes(self, call: ToolCall) -> bool:
    """Returns whether a call can be sent in the form of the tool's kind."""
    edit = call.arguments if self.kind == "apply_patch" else '"diff"'
    return self.kind not in _EXACT or (
      flaw_of(call, [self.to_tool()]) is None
      and ('"diff"' in edit or '"delete_file"' in edit)
    )


def shown_later(tool: OfferedTool) -> str:
  """Writes a tool that a message brings, as most templates show tools."""
  body = tool_to_json(tool.to_tool())
  return json.dumps(body, ensure_ascii=False) + "\n"


class ToolChoice(LenientObject):
  """A choice among tools, in any form of the APIs."""

  mode: Literal["auto", "required", "none"]
  names: list[str] | None = None  # of functions; None: of all
  is_one: bool = False  # no further call beside one

  @model_validator(mode="before")
  @classmethod
  def _in_one_form(cls, choice: Any) -> Any:
    fields = {"type": choice} if isinstance(choice, str) else choice
    if not isinstance(fields, dict):
      return choice
    kind = fields.get("type", "function")
    if kind == "allowed_tools":
      given = fields.get(kind, fields)
      names = [_name_of(tool) for tool in given["tools"]]
      mode = ("auto", "required").index(given.get("mode", "auto"))
      return {"mode": ("auto", "required")[mode], "names": names}
    is_one = fields.get("disable_parallel_tool_use", False)
    if kind in [*_MODES]:
      return {"mode": _MODES[kind], "is_one": is_one}
    return {"mode": "required", "names": [_name_of(fields)], "is_one": True}


def _name_of(tool: Mapping[str, Any]) -> Any:
  inner = [tool[k] for k in _WRAPPERS if isinstance(tool.get(k), dict)]
  return {**tool, **(inner[0] if inner else {})}.get("name", tool.get("type"))


AnyToolChoice = Annotated[ToolChoice, must_be(_TOOL_CHOICES)]
ANY_CHOICE = ToolChoice.model_validate("auto")
