"""Renders a model's own chat template piece by piece.

A template renders whole conversations, and a growing prompt needs the new
messages only. So each piece is cut out of the rendering of a short conversation
that ends with it. Two placeholders, which no shielded text can contain, stand
for the earlier messages, so the cut is always found. Changes that a template
makes to earlier turns (Qwen3 removes their thoughts) stay out: tokens that were
shown or sampled are never rewritten.

Text goes in and comes out shielded; see `data.chat.marked_text`.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from agentrl_jax.data.chat.call_grammar import THINK, THINK_END, CallForm
from agentrl_jax.data.chat.codec import split_thoughts
from agentrl_jax.data.chat.dialects import Dialect, Plain, dialects_of
from agentrl_jax.data.chat.jinja_template import JinjaTemplate
from agentrl_jax.data.chat.marked_text import Markers
from agentrl_jax.data.records import Message, Tool, ToolCall
from agentrl_jax.errors import ConfigError

# Placeholders: in shielded text, 0 or 1 follows the code point.
_ASKED = Message("user", "\ufdd0Q")
_ANSWER = "\ufdd0A"
_ANSWERED = Message("assistant", _ANSWER)
_CALLED = ToolCall("look", '{"at": "x", "of": [1, true, null]}', "0")
_LATER = Message("system", "\ufdd0S")
_REMINDER = "<system-reminder>\n{}\n</system-reminder>"
# Harmony's headers. Its templates have no developer's message but the first.
_USER, _DEVELOPER = (
  f"<|start|>{role}<|message|>" for role in ("user", "developer")
)
INSTEAD = (
  "For tasks with tools set chat.template=hermes, which shows tools and calls "
  "as text over this model's own markers, or llama, or the path of a template "
  "that shows them"
)


class FamilyTemplate:
  """Pieces of conversations in the format of a model's own template.

  `stops` are the markers at which the model ends an answer. A template without
  tools, or with calls of an unknown form, is for tasks without tools. Raises
  `ConfigError` if the template cannot be cut into pieces.
  """

  def __init__(
    self,
    jinja: JinjaTemplate,
    markers: Sequence[str],
    stops: Sequence[str],
    *,
    compact_calls: bool = False,
  ):
    self._compact_calls = compact_calls
    self.markers = tuple(dict.fromkeys([*markers, *stops]))
    self._jinja = jinja
    self._dialect: Dialect = Plain("")
    self._split = Markers(self.markers).split
    self._asked = self._render([_ASKED], prompt=False)
    self.cue = self._render([_ASKED], prompt=True)
    closing = self._after_answer([_ASKED, _ANSWERED], prompt=False)
    self._end = self._first_marker(closing)
    self._closing = closing
    # Ends an answer that another message follows.
    self._past_end = self._end and self._first_marker(
      self._after_answer([_ASKED, _ANSWERED, _ASKED], prompt=False)
    )
    self.stops = tuple(dict.fromkeys([*filter(None, [self._end]), *stops]))
    self._opening = self.write(_ANSWERED).partition(_ANSWER)[0]
    # White space that the template puts before an answer.
    self._lead = "" if self._opening.strip() else self._opening
    self._thinks = THINK in self.cue.rpartition(THINK_END)[2]
    self._dialect = self._detected()
    self._has_later_system = self._shows_later_system()
    self._check()

  @property
  def form(self) -> CallForm:
    """Form of an answer with tool calls."""
    begins_line = self._opening.startswith(f"\n{THINK}")
    return dataclasses.replace(
      self._dialect.form,
      thinks=self._thinks,
      lead="\n" if begins_line else self._lead.replace("\n", ""),
      compact=self._compact_calls,
    )

  def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Renders the first messages with the tools, and the generation prompt."""
    if not messages:
      raise ValueError("a conversation starts with at least one message")
    names = [tool.name for tool in tools]
    if tools and (reason := self.form.none_because):
      raise ConfigError(f"no policy can call the tools {names} here: {reason}")
    messages = [*messages[:1], *self._placed(messages[1:])]
    text = self._render(messages, tools, prompt=True)
    first = messages[0]
    if first.role == "system" and first.content.strip() not in text:
      raise ConfigError(
        "the model's chat template shows no system message, so it leaves out "
        f"{first.content!r:.200}. Say it in a user's message"
      )
    if missing := [name for name in names if not _shows(text, name)]:
      raise ConfigError(
        f"the model's chat template does not show the tools {missing}: it was "
        f"made for a model that calls none. {INSTEAD}"
      )
    return text

  def extend(
    self,
    messages: Sequence[Message],
    *,
    ended_by: str | None,
    calls: Sequence[ToolCall] = (),
  ) -> str:
    """Renders new messages after an answer, and the generation prompt.

    `ended_by` is the answer's stop marker. An answer that was cut off has none,
    and one is added. `calls` are those of the answer.
    """
    messages = self._placed(messages)
    if self._dialect.form.names_replies and _has_reply(messages):
      text = self._after_calls(messages, calls)
      stop = self._dialect.form.stop
      if stop and not self._dialect.form.is_alone:  # then it begins a reply
        return text if ended_by == stop else stop + text
      return text if ended_by else f"{self._past_end}{text}"
    after = self._after_answer([_ASKED, _ANSWERED, *messages], prompt=True)
    if ended_by is None:
      return after
    return after.removeprefix(self._past_end or ended_by)

  def write(self, message: Message) -> str:
    """Renders an assistant's message as the policy writes it, end included."""
    rendered = self._render([_ASKED, message], prompt=False)
    stop = self._dialect.form.stop
    ends = bool(message.tool_calls and stop) and rendered.endswith(stop)
    closing = stop if ends else self._closing
    if not rendered.startswith(self.cue) or not rendered.endswith(closing):
      raise ConfigError(
        "the model's chat template shows an answer otherwise than the policy "
        "would write it after its cue, so a demonstration cannot be written "
        "with it; leave the warm start out, or give pretrained.path another "
        "chat_template"
      )
    answer = rendered[len(self.cue) : len(rendered) - len(closing)]
    return answer + (
      closing if ends else self._end or self._turn_after(message)
    )

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    """Parses the assistant's message; `text` is without its stop marker.

    Thoughts stay in the content, and calls in them are not calls.
    """
    thought, rest = self._split_thoughts(text.removeprefix(self._lead))
    message = self._dialect.read(rest, ended_by, tools)
    return Message("assistant", thought + message.content, message.tool_calls)

  def _split_thoughts(self, text: str) -> tuple[str, str]:
    begun = end = ""
    if self._thinks:
      begun, end, text = text.partition(THINK_END)
    more, rest = split_thoughts(text)
    return begun + end + more, rest

  def _render(
    self,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    prompt: bool,
  ) -> str:
    prepared = [d for m in messages for d in self._dialect.prepare(m)]
    text = self._jinja.render(prepared, tools, prompt=prompt)
    return text.replace(
      f"{_USER}{_LATER.content}", f"{_DEVELOPER}# Instructions\n\n"
    )

  def _shows_later_system(self) -> bool:
    """Returns whether a system message is shown where it was said."""
    try:
      said = self._render([_ASKED, _LATER, _ASKED], prompt=True)
      after = self._after_answer([_ASKED, _ANSWERED, _LATER], prompt=True)
    except ConfigError:
      return False
    is_shown = _LATER.content in said and _LATER.content in after
    return is_shown and said.startswith(self._asked)

  def _placed(self, messages: Sequence[Message]) -> Sequence[Message]:
    """Says system messages after the first in a way that the template shows.

    In Harmony they are a developer's. Elsewhere they are reminders, as Claude
    Code has them, within a message beside them: templates may want turns.
    """
    if self._has_later_system:
      return messages
    joined = "" if _DEVELOPER in self._jinja.source else _REMINDER
    placed: list[Message] = []
    was_system = False
    for message in messages:
      joins, was_system = was_system, message.role == "system"
      if was_system:
        text = (joined or _LATER.content + "{}").format(message.content)
        message, joins = Message("user", text), True
      joins &= bool(joined and placed) and message.role == "user"
      if joins and placed[-1].role != "assistant":
        text = f"{placed[-1].content}\n\n{message.content}"
        message = dataclasses.replace(placed.pop(), content=text)
      placed.append(message)
    return placed

  def _after_answer(self, messages: Sequence[Message], *, prompt: bool) -> str:
    """Returns the rendering after the placeholder of the answer."""
    text = self._render(messages, prompt=prompt)
    before, placeholder, after = text.partition(_ANSWER)
    if not placeholder or not before.startswith(self._asked):
      raise ConfigError(
        "the model's chat template rewrites what was said before when messages "
        f"of {', '.join(m.role for m in messages[2:])} come: a conversation "
        "cannot grow by appending. Leave such messages out of the environment, "
        "or give pretrained.path another chat_template"
      )
    return after

  def _after_calls(
    self, messages: Sequence[Message], calls: Sequence[ToolCall]
  ) -> str:
    """Returns the rendering after an answer's calls, which replies name."""
    if not self._dialect.form.is_alone:
      every = [dataclasses.replace(call, arguments="{}") for call in calls]
      called = [_ASKED, Message("assistant", "", tuple(every))]
      before = self._render(called, prompt=False)
      after = self._render([*called, *messages], prompt=True)
      return after.removeprefix(before)
    names = {call.id: call.name for call in calls}
    last = calls[-1].name if calls else ""
    pieces = []
    for n, message in enumerate(messages, 1):
      name = names.get(message.tool_call_id or "", last)
      called = [_ASKED, Message("assistant", "", (ToolCall(name, "{}"),))]
      before = self._render(called, prompt=False)
      after = self._render([*called, message], prompt=n == len(messages))
      pieces.append(after.removeprefix(before))
    return "".join(pieces)

  def _first_marker(self, text: str) -> str | None:
    """Returns the marker that `text` begins with; None if it is empty."""
    if not text:
      return None
    before, *rest = self._split(text)
    if before or not rest:
      raise ConfigError(
        f"the model's chat template ends an answer with {text!r}, which begins "
        "with no marker of its tokenizer: there is nothing to stop at. Take the"
        " template and the tokenizer of one model"
      )
    return rest[0]

  def _turn_after(self, message: Message) -> str:
    """Returns the marker of the next turn, which ends the policy's own turn."""
    reply = Message("tool" if message.tool_calls else "user", "")
    after = self._after_answer([_ASKED, _ANSWERED, reply], prompt=False)
    marker = self._first_marker(after)
    if marker not in self.stops:
      raise ConfigError(
        f"the model's chat template goes on with {marker!r} after an answer, "
        f"and the model stops at {', '.join(self.stops) or 'nothing'}: add it "
        "to eos_token_id in generation_config.json"
      )
    return marker

  def _detected(self) -> Dialect:
    """Returns the dialect whose calls the template writes as it reads them."""
    cannot_stop = None
    for dialect in dialects_of(self._jinja.source):
      if dialect.form.stop and dialect.form.stop not in self.stops:
        # No call can be written; `CallGrammar` and `write` say why.
        cannot_stop = dialect
        continue
      self._dialect = dialect
      reason = self._misread()
      if not reason:
        return dialect
    return cannot_stop or Plain(reason)

  def _misread(self) -> str:
    """Returns why a call of the template cannot be read back, or ""."""
    try:
      written = self.write(Message("assistant", "", (_CALLED,)))
    except ConfigError as error:
      return f"{error}. {INSTEAD}"
    *before, stop, _ = self._split(written)
    calls = self.read("".join(before), stop).tool_calls
    if [_meaning(call) for call in calls] == [_meaning(_CALLED)]:
      return ""
    if _CALLED.name not in written:
      return f"the model's chat template shows no calls. {INSTEAD}"
    return (
      f"the model's chat template writes a call as {written!r:.300}, which is "
      f"read here as {calls or 'text'}: calls of this form are not known. "
      f"Known are those of Qwen2.5 to Qwen3.5, Llama-3.1, GLM-4, GLM-4.5, "
      f"gpt-oss, Gemma 4 and DeepSeek. "
      f"{INSTEAD}"
    )

  def _check(self) -> None:
    """Refuses templates whose pieces depend on the earlier messages."""
    asked, tool_reply = Message("user", "text"), Message("tool", "text")
    form = self._dialect.form
    calls = not (form.none_because or form.names_replies)
    earlier = [
      _ASKED,
      Message("assistant", "text"),
      tool_reply if calls else asked,
    ]
    for replies in ([asked], [tool_reply] * 2 if calls else []):
      short = self._after_answer([_ASKED, _ANSWERED, *replies], prompt=True)
      text = self._render([*earlier, _ANSWERED, *replies], prompt=True)
      if text.partition(_ANSWER)[2] != short:
        raise ConfigError(
          f"the model's chat template writes a {replies[0].role}'s message "
          "otherwise after a longer conversation, so that pieces of it cannot "
          "be appended; give pretrained.path another chat_template"
        )


def _has_reply(messages: Sequence[Message]) -> bool:
  return any(message.role == "tool" for message in messages)


def _shows(text: str, name: str) -> bool:
  """Returns whether a text has a name, perhaps as JSON writes it."""
  written = (json.dumps(name, ensure_ascii=ascii) for ascii in (True, False))
  return name in text or any(form[1:-1] in text for form in written)


def _meaning(call: ToolCall) -> tuple[str, Any]:
  try:
    return call.name, json.loads(call.arguments)
  except ValueError:
    return call.name, call.arguments
