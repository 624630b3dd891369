"""Renders a model's own chat template as `transformers` does.

The source comes with the model and is not trusted: it runs in Jinja's sandbox
and sees messages, tools and the names of special tokens. One difference is on
purpose: a template that writes today's date gets the config's date, so that a
run that is resumed later has the same prompts.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from agentrl_jax.data.records import Tool, tool_to_json
from agentrl_jax.errors import ConfigError


class JinjaTemplate:
  """Renders messages, as dicts in OpenAI's form, by a template's source.

  `names` are the template's other variables, such as `bos_token`.
  """

  def __init__(
    self, source: str, *, names: Mapping[str, Any], date: datetime.date
  ):
    self.source = source
    self._names = dict(names)
    try:
      self._compiled = _environment(date).from_string(source)
    except (jinja2.TemplateError, SyntaxError, RecursionError) as error:
      raise ConfigError(
        f"the chat template is no Jinja that can be read: {error}. Take the "
        "chat_template that the model was published with"
      ) from error

  def render(
    self,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Tool] = (),
    *,
    prompt: bool,
  ) -> str:
    """Renders a conversation; `prompt` adds the generation prompt.

    Raises `ConfigError` with the template's own message if it refuses.
    """
    try:
      return self._compiled.render(
        messages=list(messages),
        tools=[tool_to_json(tool) for tool in tools] or None,
        documents=None,
        add_generation_prompt=prompt,
        **self._names,
      )
    except Exception as error:  # noqa: BLE001 - raised by the template's code
      roles = ", ".join(str(m["role"]) for m in messages)
      raise ConfigError(
        f"the model's chat template does not take messages of {roles} with "
        f"{len(tools)} tools: {error}. Change what the environment says, or "
        "give pretrained.path another chat_template"
      ) from error


def _environment(
  date: datetime.date,
) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[_Generation, jinja2.ext.loopcontrols],
  )
  environment.filters["tojson"] = _to_json
  environment.globals["raise_exception"] = _refuse
  environment.globals["strftime_now"] = date.strftime
  return environment


class _Generation(jinja2.ext.Extension):
  """Ignores `{% generation %}`, which marks the policy's answers."""

  tags = {"generation"}

  def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
    next(parser.stream)
    return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
  value: Any,
  ensure_ascii: bool = False,
  indent: int | None = None,
  separators: tuple[str, str] | None = None,
  sort_keys: bool = False,
) -> str:
  """Dumps JSON; Jinja's own filter would escape it for HTML."""
  return json.dumps(
    value,
    ensure_ascii=ensure_ascii,
    indent=indent,
    separators=separators,
    sort_keys=sort_keys,
  )


def _refuse(reason: str) -> None:
  raise jinja2.TemplateError(reason)
