"""Compact chat template, for models that are trained from scratch here.

A conversation grows by appending: each function renders the new messages only,
and the pieces joined equal the full rendering of `JINJA`, the template's source
(a test compares them). Tool calls have the Hermes form,
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Roles are single
marker tokens. Tool schemas are signatures with descriptions, complete, which
take a third of the tokens of their JSON.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.data.grammar.call_grammar import CallForm
from agentrl_jax.data.messages import Message, Tool, ToolCall

END = "<|end|>"  # ends every message; the policy's stop token
CALL, CALL_END = "<tool_call>", "</tool_call>"
MARKERS = tuple(
  f"<|{role}|>" for role in ("system", "user", "assistant", "tool")
)
SPECIAL_TOKENS = (END, *MARKERS, CALL, CALL_END)
GENERATION_PROMPT = "<|assistant|>"

JINJA = """\
{%- macro type(s) -%}
{%- if s.type == "array" and s["items"] -%}{{ type(s["items"]) }}[]
{%- elif s.type is string and not s.enum and not s.properties -%}{{ s.type }}
{%- else -%}{{ s | tojson }}{%- endif -%}
{%- endmacro -%}
{%- macro signature(f) -%}
{{ f.name }}(
{%- for name, s in f.parameters.properties.items() -%}
{{ name }}{{ "" if name in f.parameters.required else "?" }}: {{ type(s) -}}
{{ "" if loop.last else ", " }}{%- endfor -%}
): {{ f.description }}
{%- for name, s in f.parameters.properties.items() if s.description %}
- {{ name }}: {{ s.description }}
{%- endfor -%}
{%- endmacro -%}
{%- for m in messages -%}
<|{{ m.role }}|>{{ m.content }}
{%- if loop.first and tools %}
{%- for t in tools %}
{{ signature(t.function) }}
{%- endfor -%}
{%- endif -%}
{%- for c in m.tool_calls or [] -%}
<tool_call>
{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments }}}
</tool_call>
{%- endfor -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""  # noqa: E501

_CALL_PATTERN = re.compile(
  re.escape(CALL) + r"(.*?)(?:" + re.escape(CALL_END) + r"|\Z)", re.DOTALL
)


class CompactTemplate:
  """The `ChatTemplate` of this module."""

  markers = SPECIAL_TOKENS
  stops = (END,)
  form = CallForm(
    head=f'{CALL}\n{{"name": "',
    middle='", "arguments": ',
    tail=f"}}\n{CALL_END}",
    markers=(CALL, CALL_END),
  )

  def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Renders the first messages, with the tools, and the generation prompt."""
    if not messages:
      raise ValueError("a conversation starts with at least one message")
    first, *rest = messages
    listed = "".join(f"\n{render_tool(tool)}" for tool in tools)
    head = f"<|{first.role}|>{first.content}{listed}{END}"
    return head + render_messages(rest) + GENERATION_PROMPT

  def extend(self, messages: Sequence[Message], *, ended_by: str | None) -> str:
    """Renders new messages after an answer, and the generation prompt.

    An answer that was cut off has no stop token, and one is added.
    """
    end = END if ended_by is None else ""
    return end + render_messages(messages) + GENERATION_PROMPT

  def write(self, message: Message) -> str:
    """Renders an assistant's message as the policy writes it, end included."""
    return message.content + _render_calls(message) + END

  def read(self, text: str, ended_by: str | None) -> Message:
    """Parses the assistant's message.

    A call that is not a JSON object with a name becomes a call without a name
    whose arguments are the raw text: the environment then reports the mistake.
    """
    del ended_by
    text = text.removesuffix(END)
    calls = tuple(
      _parse_call(body, str(n))
      for n, body in enumerate(_CALL_PATTERN.findall(text))
    )
    content = _CALL_PATTERN.sub("", text)
    return Message("assistant", content, calls)


def render_messages(messages: Sequence[Message]) -> str:
  """Renders complete messages."""
  return "".join(
    f"<|{m.role}|>{m.content}{_render_calls(m)}{END}" for m in messages
  )


def _render_calls(message: Message) -> str:
  return "".join(
    f'{CALL}\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, '
    f'"arguments": {call.arguments}}}\n{CALL_END}'
    for call in message.tool_calls
  )


def render_tool(tool: Tool) -> str:
  """Renders a tool: signature, description, and a line per parameter."""
  properties: Mapping[str, Any] = tool.parameters.get("properties", {})
  required = tool.parameters.get("required", ())
  signature = ", ".join(
    f"{name}{'' if name in required else '?'}: {_render_type(schema)}"
    for name, schema in properties.items()
  )
  lines = [f"{tool.name}({signature}): {tool.description}"]
  lines += [
    f"- {name}: {schema['description']}"
    for name, schema in properties.items()
    if schema.get("description")
  ]
  return "\n".join(lines)


def _render_type(schema: Mapping[str, Any]) -> str:
  """Renders `string`, `string[]`, or the JSON schema where neither is exact."""
  if schema.get("type") == "array" and schema.get("items"):
    return _render_type(schema["items"]) + "[]"
  plain = isinstance(schema.get("type"), str)
  if plain and not schema.get("enum") and not schema.get("properties"):
    return str(schema["type"])
  return json.dumps(schema, ensure_ascii=False)


def _parse_call(body: str, id: str) -> ToolCall:
  try:
    call = json.loads(body)
  except (ValueError, RecursionError):
    return ToolCall("", body.strip(), id)
  if not isinstance(call, dict) or not isinstance(call.get("name"), str):
    return ToolCall("", body.strip(), id)
  arguments = call.get("arguments", {})
  if not isinstance(arguments, str):
    arguments = json.dumps(arguments, ensure_ascii=False)
  return ToolCall(call["name"], arguments, id)
