"""Pieces of a conversation join to what a model's own template makes of it.

The whole is rendered and tokenised in one go, from OpenAI's messages, by
`transformers` where it is installed and by the same Jinja settings where not.
"""

import datetime
import functools
import json
import pathlib
import random
import re
import tempfile

from absl.testing import parameterized

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.dialects import Harmony
from agentrl_jax.data.chat.family_template import FamilyTemplate
from agentrl_jax.data.chat.jinja_template import JinjaTemplate
from agentrl_jax.data.chat.pretrained import load_chat
from agentrl_jax.data.records import (
  Message,
  Tool,
  ToolCall,
  message_to_json,
  tool_to_json,
)
from agentrl_jax.errors import ConfigError, MessageFault
from tests.data.chat import families
from tests.settings import chat_config

TOOLS = (
  Tool(
    "execute_sql",
    "Runs it, <b>quickly</b> & well.",
    {
      "type": "object",
      "properties": {"query": {"type": "string", "description": "É"}},
      "required": ["query"],
    },
  ),
  Tool("stop", "Stops.", {"type": "object", "properties": {}}),
)
TEXTS = (
  "",
  "plain",
  "two\nlines",
  "  led",
  'q " and \\',
  "ünïcode",
  "a  b ",
  "{x}",
)
SHOWN = (*TEXTS, "\n\nled")  # not said: it could join the end of the cue
NAMES = sorted(families.templates())
TAKES_THOUGHTS_BACK = [
  n for n in NAMES if n in ("qwen3", "small_qwen3") or "qwen3_5" in n
]
HARMONY = [n for n in NAMES if "gptoss" in n]
# Shows text beside calls after their replies, and after them begins a thought.
GEMMA_4 = [n for n in NAMES if "gemma4" in n]
DATE = datetime.date(2025, 2, 3)


@functools.cache
def codec_of(name: str, *, thinking: bool = True) -> ChatCodec:
  family, source = families.templates()[name]
  with tempfile.TemporaryDirectory() as folder:
    families.write_folder(pathlib.Path(folder), family, source)
    config = chat_config(date=DATE.isoformat(), thinking=thinking)
    return load_chat(pathlib.Path(folder), config)


def call_of(*, query: str, id: str = "0") -> ToolCall:
  arguments = json.dumps({"query": query}, ensure_ascii=False)
  return ToolCall("execute_sql", arguments, id)


def conversation(
  rng: random.Random, *, calls: int, thinks: bool, is_mixed: bool = True
):
  """Opening messages, then (answer, replies) pairs."""
  opening = [Message("system", rng.choice(TEXTS))] * rng.randint(0, 1)
  opening.append(Message("user", rng.choice(TEXTS)))
  turns = []
  for _ in range(rng.randint(1, 4)):
    made = tuple(
      call_of(query=rng.choice(TEXTS), id=str(n))
      for n in range(rng.randint(0, calls))
    )
    replies = [
      Message("tool", rng.choice(SHOWN), tool_call_id=c.id) for c in made
    ] or [Message("user", rng.choice(SHOWN))]
    is_said = not made or (is_mixed and calls > 1)
    said = rng.choice(TEXTS) if is_said else ""
    if thinks and rng.randint(0, 1):
      said = f"<think>\nhm, {rng.choice(TEXTS)}.\n</think>\n\n{said}"
    turns.append((Message("assistant", said, made), replies))
  return opening, turns


def as_model_card_says(name: str, message: Message) -> list[dict]:
  """OpenAI's form with objects for arguments; GLM's own form for GLM."""
  body = message_to_json(message)
  if name in HARMONY and message.role == "assistant":
    (body,) = Harmony().prepare(message)
    return [body]
  if not name.endswith(("_glm4", "glm4_0414")):
    joined = "deepseek31" in name  # as texts
    for call in [] if joined else body.get("tool_calls", ()):
      arguments = json.loads(call["function"]["arguments"])
      call["function"]["arguments"] = arguments
    return [body]
  if message.role == "tool":
    return [{"role": "observation", "content": message.content}]
  calls = [
    {"role": "assistant", "metadata": c.name, "content": c.arguments}
    for c in message.tool_calls
  ]
  said = [{"role": message.role, "content": message.content}]
  return calls if calls and not message.content else said + calls


@functools.cache  # to compile one takes longer than to render it
def template_of(name: str, *, thinking: bool) -> JinjaTemplate:
  family, source = families.templates()[name]
  names = {"bos_token": family.bos, "enable_thinking": thinking}
  return JinjaTemplate(source, names=names, date=DATE)


def whole_text(name: str, messages, *, thinking: bool = True) -> str:
  bodies = [d for m in messages for d in as_model_card_says(name, m)]
  template = template_of(name, thinking=thinking)
  return template.render(bodies, TOOLS, prompt=True)


def one_shot(name: str, text: str) -> list[int]:
  tokenizer = families.tokenizer_of(families.templates()[name][0])
  return tokenizer.encode(text, add_special_tokens=False).ids


def play(codec: ChatCodec, opening, turns) -> list[int]:
  pieces = [codec.start(opening, TOOLS)]
  for answer, replies in turns:
    said = codec.write(answer)
    ended_by = int(said[-1])
    pieces += [said, codec.extend(replies, ended_by=ended_by, after=answer)]
  return [int(i) for piece in pieces for i in piece]


def normal(text: str) -> str:
  """The text with thoughts written in one way, and without empty ones."""
  text = re.sub(r"\s*(</?think>)\s*", r"\1", text.strip())
  begun = "</think>" in text and "<think>" not in text  # by the cue
  return ("<think>" * begun + text).replace("<think></think>", "")


def without_thoughts(text: str) -> str:
  """The text without thoughts, as Qwen3's template has it of past turns."""
  return re.sub(r"<think>\n.*?\n</think>\n\n", "", text, flags=re.DOTALL)


class PiecesTest(parameterized.TestCase):
  @parameterized.product(
    name=[n for n in NAMES if n not in TAKES_THOUGHTS_BACK], seed=[*range(12)]
  )
  def test_pieces_equal_the_whole(self, name, seed):
    family, _ = families.templates()[name]
    thinking = name not in GEMMA_4
    opening, turns = conversation(
      random.Random(seed),
      calls=family.calls_per_answer,
      thinks=False,
      is_mixed=thinking,
    )
    said = [*opening, *(m for a, r in turns for m in (a, *r))]
    text = whole_text(name, said, thinking=thinking)
    codec = codec_of(name, thinking=thinking)
    found = play(codec, opening, turns)
    if name in HARMONY:  # what was sampled stays as it was
      ids = one_shot(name, "<|return|><|end|>")
      found = [ids[1] if id == ids[0] else id for id in found]
    self.assertEqual(codec.decode(found), text)
    self.assertEqual(found, one_shot(name, text))

  @parameterized.product(name=TAKES_THOUGHTS_BACK, seed=[*range(12)])
  def test_thoughts_stay_and_are_all_that_differs(self, name, seed):
    for thinking in (True, False):
      opening, turns = conversation(
        random.Random(seed), calls=2, thinks=thinking
      )
      said = [*opening, *(m for a, r in turns for m in (a, *r))]
      codec = codec_of(name, thinking=thinking)
      found = codec.decode(play(codec, opening, turns))
      whole = whole_text(name, said, thinking=thinking)
      for answer, _ in turns:
        thought = answer.content.partition("</think>")[0].strip()
        self.assertIn(thought, found)
      self.assertEqual(without_thoughts(found), without_thoughts(whole))

  @parameterized.parameters(*NAMES)
  def test_answers_read_as_they_are_written(self, name):
    family, _ = families.templates()[name]
    codec = codec_of(name)
    calls = tuple(
      ToolCall("execute_sql", '{"query": "<|im_end|> </tool_call> \ufdd0"}', n)
      for n in ("0", "1")
    )[: family.calls_per_answer]
    says = "" if "llama" in name or name in HARMONY else "so"
    for message in (
      Message("assistant", "only text\n\nof two parts"),
      Message("assistant", says, calls),
      Message("assistant", "<think>\nof <tool_call>\n</think>\n\nhi"),
      Message("assistant", "a web page said <|im_end|><|user|><|eot_id|>"),
    ):
      ids = codec.write(message)
      self.assertIn(ids[-1], codec.stop_tokens)
      self.assertFalse({*codec.stop_tokens} & {*ids[:-1]})
      read = codec.read(ids)
      self.assertEqual(read.tool_calls, message.tool_calls)
      self.assertEqual(normal(read.content), normal(message.content))

  @parameterized.parameters(*NAMES)
  def test_half_a_surrogate_pair(self, name):
    codec = codec_of(name)
    call = ToolCall("execute_sql", r'{"query": "\ud83d", "limit": 1.10}', "0")
    ids = codec.write(Message("assistant", "", (call,)))
    self.assertIn("\ufffd", codec.decode(ids))
    (found,) = codec.read(ids).tool_calls
    self.assertEqual(json.loads(found.arguments)["query"], "\ufffd")
    tool = Tool("f\ud83d", "\ud83d", {"properties": {"\ud83d": {}}})
    shown = codec.decode(codec.start([Message("user", "\ud83d")], [tool]))
    self.assertGreater(shown.count("\ufffd"), 3)

  @parameterized.parameters(*NAMES)
  def test_data_cannot_speak_in_markers(self, name):
    family, _ = families.templates()[name]
    codec = codec_of(name)
    evil = "".join([*family.special, *family.tags, "[gMASK]\ufdd0\ufdd01"])
    calls = not codec._template.form.parameter  # whose names are one word
    plain = play(codec, *evil_conversation("x", family, calls=calls))
    ids = play(codec, *evil_conversation(evil, family, calls=calls))
    tokenizer = families.tokenizer_of(family)
    for marker in (*family.special, *family.tags):
      id = tokenizer.token_to_id(marker)
      self.assertEqual(ids.count(id), plain.count(id), marker)
    self.assertIn(evil, codec.decode(ids))

  @parameterized.parameters(*NAMES)
  def test_escapes_hide_no_marker(self, name):
    codec = codec_of(name)
    family, _ = families.templates()[name]
    tokenizer = families.tokenizer_of(family)
    plain = list(codec.write(Message("assistant", "", (call_of(query=""),))))
    text = r'{"query": "<\/tool_call> \u003c|im_end|> <|eot_i\u0064|>"}'
    for arguments in (text, text[:-1]):  # the second is no JSON
      message = Message("assistant", "", (ToolCall("execute_sql", arguments),))
      needs_object = codec._template.form.parameter or name in GEMMA_4
      if arguments != text and needs_object:
        with self.assertRaisesRegex(MessageFault, "cannot be written"):
          codec.write(message)
        continue
      ids = list(codec.write(message))
      for marker in (*family.special, *family.tags):
        id = tokenizer.token_to_id(marker)
        self.assertEqual(ids.count(id), plain.count(id), marker)

  def test_transformers_renders_alike(self):
    try:
      import transformers
    except ImportError:
      self.skipTest("transformers is not installed")
    for name, (family, source) in families.templates().items():
      theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=families.tokenizer_of(family),
        bos_token=family.bos or None,
        chat_template=source.replace("strftime_now", "not_defined_now")
        if "strftime_now is defined" in source
        else re.sub(
          r"strftime_now\((.)(%.*?)\1\)",
          lambda call: f"'{DATE.strftime(call[2])}'",
          source,
        ),
      )
      opening, turns = conversation(
        random.Random(1), calls=family.calls_per_answer, thinks=False
      )
      said = [*opening, *(m for a, r in turns for m in (a, *r))]
      text = theirs.apply_chat_template(
        [d for m in said for d in as_model_card_says(name, m)],
        tools=[tool_to_json(tool) for tool in TOOLS],
        add_generation_prompt=True,
        enable_thinking=True,
        tokenize=False,
      )
      ours = whole_text(name, said)
      if "26 Jul 2024" in text:
        text = text.replace("26 Jul 2024", "03 Feb 2025")
        ours = ours.replace("26 Jul 2024", "03 Feb 2025")
      self.assertEqual(ours, text, name)


def evil_conversation(text: str, family: families.Family, *, calls: bool):
  """One in which everybody says `text`, arguments of calls included."""
  arguments = json.dumps({text: text} if calls else {}, ensure_ascii=False)
  call = ToolCall("stop", arguments, "0")
  said = "" if family is families.LLAMA else text.replace("think>", "")
  return (
    [Message("system", text), Message("user", text)],
    [
      (Message("assistant", said, (call,)), [Message("tool", text)] * 2),
      (
        Message("assistant", text.replace("think>", "")),
        [Message("user", text)],
      ),
    ],
  )


class EndsTest(parameterized.TestCase):
  @parameterized.parameters(*NAMES)
  def test_every_stop_leads_on(self, name):
    codec = codec_of(name)
    family, _ = families.templates()[name]
    self.assertCountEqual(
      [codec.decode([id]) for id in codec.stop_tokens], family.stops
    )
    replies = [Message("user", "go on")]
    whole = codec.decode(codec.extend(replies, ended_by=None))
    for id in codec.stop_tokens:
      text = codec.decode(codec.extend(replies, ended_by=id))
      usual = codec.decode([id]) if "glm" in name else family.eos
      usual = "<|end|>" if name in HARMONY else usual
      self.assertEqual(text, whole.removeprefix(usual))

  @parameterized.parameters(HARMONY)  # a list, since it may be one name
  def test_replies_name_the_calls_that_they_answer(self, name):
    codec = codec_of(name)
    call, stop = (codec.encode(m)[0] for m in ("<|call|>", "<|return|>"))
    reply = Message("tool", "a<|end|>", tool_call_id="1")
    calls = (ToolCall("stop", "{}", "0"), ToolCall("f<g", "{", "1"))
    after = Message("assistant", "", calls)
    start = "<|start|>functions.{} to=assistant<|channel|>commentary<|message|>"
    for answer, ended_by, head in (
      (after, call, start.format("f<g")),
      (after, None, "<|end|>" + start.format("f<g")),
      (Message("assistant", "", calls[:1]), call, start.format("stop")),
      # No call was read, or no reply was due.
      (Message("assistant", "", (ToolCall("", "{"),)), call, start.format("")),
      (Message("assistant", "so"), stop, start.format("")),
      (None, None, "<|end|>" + start.format("")),
    ):
      ended_by = None if ended_by is None else int(ended_by)
      ids = codec.extend([reply], ended_by=ended_by, after=answer)
      tail = '"a<|end|>"<|end|><|start|>assistant'
      self.assertEqual(codec.decode(ids), head + tail)
    first = Message("tool", "b", tool_call_id="0")
    ids = codec.extend([first, reply], ended_by=int(call), after=after)
    self.assertEqual(
      codec.decode(ids),
      f'{start.format("stop")}"b"<|end|>{start.format("f<g")}{tail}',
    )

  @parameterized.parameters(*NAMES)
  def test_later_system_messages_are_shown_where_they_were_said(self, name):
    codec, new = codec_of(name), Message("system", "new rules")
    said = [Message("system", "rules"), Message("user", "hi"), new]
    begun = codec.decode(codec.start(said, TOOLS))
    self.assertLess(begun.index("hi"), begun.index("new rules"))
    called = Message("assistant", "", (call_of(query="x"),))
    reply = Message("tool", "res 7", tool_call_id="0")
    for answer, replies in (
      (Message("assistant", "so"), [new, Message("user", "again")]),
      (called, [reply, new]),
    ):
      stop = int(codec.write(answer)[-1])
      text = codec.decode(codec.extend(replies, ended_by=stop, after=answer))
      places = [text.index(message.content) for message in replies]
      self.assertEqual(places, sorted(places), text)
    if name in HARMONY:
      header = "<|start|>developer<|message|># Instructions\n\nnew rules<|end|>"
      self.assertIn(header, text)

  @parameterized.parameters(
    ("glm4", "<|observation|>", "user", "<|user|>\nso<|assistant|>"),
    (
      "deepseek3",
      None,
      "tool",
      "<｜end▁of▁sentence｜><｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>so"
      "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
    ),
  )
  def test_cut_short_within_a_turn(self, name, stop, role, shown):
    codec = codec_of(f"small_{name}")
    ended_by = stop and int(codec.encode(stop)[0])
    ids = codec.extend([Message(role, "so")], ended_by=ended_by)
    self.assertEqual(codec.decode(ids), shown)

  def test_the_first_token_stands_once(self):
    ids = codec_of("small_llama31").start([Message("user", "hi")], ())
    bos = families.tokenizer_of(families.LLAMA).token_to_id(families.LLAMA.bos)
    self.assertEqual(list(ids).count(bos), 1)

  def test_the_date_is_the_configs(self):
    codec = codec_of("small_llama31")
    text = codec.decode(codec.start([Message("user", "hi")], ()))
    self.assertIn("Today: 03 Feb 2025", text)

  def test_no_thinking_is_asked_for(self):
    replies = [Message("user", "hi")]
    stop = codec_of("small_qwen3").stop_tokens[0]
    texts = [
      (codec := codec_of("small_qwen3", thinking=thinking)).decode(
        codec.extend(replies, ended_by=stop)
      )
      for thinking in (True, False)
    ]
    self.assertEqual(texts[1], texts[0] + "<think>\n\n</think>\n\n")


SMALL = (families.HERE / "qwen25.jinja").read_text()
CUE = "{{- '<|im_start|>assistant\\n' }}"


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(
    ("{% if %}", "no Jinja"),
    ("{{ messages }}", "rewrites what was said"),
    ("{%- set messages = messages[-1:] %}" + SMALL, "rewrites what was said"),
    (
      SMALL.replace("{%- if add", "{{ messages | length }}{%- if add"),
      "rewrites what was said",
    ),
    (
      SMALL.replace(
        CUE, "{{- '<|im_start|>assistant %d\\n' % (messages | length) }}"
      ),
      "after a longer conversation|otherwise than",
    ),
    (SMALL.replace("<|im_end|>", "</s>"), "no marker"),
  )
  def test_a_template_that_changes_what_was_said(self, source, pattern):
    with self.assertRaisesRegex(ConfigError, pattern):
      self.template(source)

  def template(self, source: str) -> FamilyTemplate:
    family = families.QWEN
    return FamilyTemplate(
      JinjaTemplate(source, names={}, date=DATE),
      (*family.special, *family.tags),
      family.stops,
    )

  def refuse_tools(self, source: str, pattern: str):
    """The template is for tasks without tools, and says why."""
    template = self.template(source)
    asked = [Message("user", "hi")]
    self.assertIn("hi", template.start(asked, ()))
    self.assertEqual(template.read("<tool_call>", None).tool_calls, ())
    for needs_calls in (
      lambda: template.start(asked, TOOLS),
      lambda: template.write(Message("assistant", "", (call_of(query=""),))),
      lambda: template.extend([Message("tool", "")], ended_by=None),
    ):
      with self.assertRaisesRegex(ConfigError, pattern):
        needs_calls()

  def test_a_template_without_tools(self):
    turns = families.named("plain", families.QWEN)
    bare = turns.partition("{%- set tools = none %}")[2]
    self.refuse_tools(bare, "shows no calls.*chat.template=hermes")
    self.refuse_tools(turns, "chat.template=plain.*chat.template=hermes")

  def test_calls_in_another_form_than_they_are_read(self):
    written = "{{ c.function.arguments | tojson }}"
    plain = (
      "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}"
      '{%- for c in m.tool_calls or [] -%}<tool_call>{"name": '
      '"{{ c.function.name }}", "arguments": @}</tool_call>{%- endfor -%}'
      "<|im_end|>\n{% endfor -%}{%- if add_generation_prompt -%}"
      "<|im_start|>assistant\n{% endif -%}"
    )
    template = self.template(plain.replace("@", written))
    template.write(Message("assistant", "", (call_of(query=""),)))
    xml = (
      "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v }}"
      "</parameter>{% endfor %}"
    )
    for arguments in (xml, "{{ c.function.arguments }}", "{}"):
      self.refuse_tools(plain.replace("@", arguments), "form are not known")
    self.refuse_tools(plain.replace("@", "{{ 1 // 0 }}"), "division")

  def test_a_model_that_would_never_stop(self):
    source = (families.HERE / "glm4.jinja").read_text()
    family = families.GLM
    with self.assertRaisesRegex(ConfigError, "generation_config.json"):
      FamilyTemplate(
        JinjaTemplate(source, names={}, date=DATE),
        family.special,
        ("<|endoftext|>",),
      )

  def test_tools_that_are_not_shown(self):
    source = SMALL.replace("{%- if tools %}", "{%- if false %}")
    template = self.template(source)
    with self.assertRaisesRegex(ConfigError, "execute_sql.*stop"):
      template.start([Message("user", "hi")], TOOLS)

  def test_what_the_template_refuses(self):
    codec = codec_of("small_llama31")
    call = ToolCall("stop", "{}", "0")
    with self.assertRaisesRegex(ConfigError, "One call at a time"):
      codec.write(Message("assistant", "", (call, call)))
    with self.assertRaisesRegex(ConfigError, "first user message"):
      codec.start([Message("system", "hi")], TOOLS)

  def test_a_template_of_turns_alone_has_reminders_of_later_systems(self):
    """Refuses a later system message, and two of the user, as Mistral's."""
    turns = (
      "m.role == 'user' and not loop.first and loop.previtem.role == 'user'"
    )
    for_each = "{%- for m in messages %}"
    source = SMALL.replace(
      for_each,
      f"{for_each}{{%- if m.role == 'system' and loop.index > 1 or {turns} %}}"
      "{{- raise_exception('turns') }}{%- endif %}",
    )
    template = self.template(source)
    user, system = Message("user", "hi"), Message("system", "{new}")
    note = "<system-reminder>\n{new}\n</system-reminder>"
    for new, shown in (
      ([system], f"user\n{note}<|im_end|>"),
      ([user, system], f"user\nhi\n\n{note}<|im_end|>"),
      ([system, user], f"user\n{note}\n\nhi<|im_end|>"),
      ([Message("tool", "3"), system], f"3\n\n{note}\n</tool_response>"),
    ):
      text = template.extend(new, ended_by="<|im_end|>")
      self.assertIn(shown, text)
      self.assertIn(shown, template.start([system, *new], ()))

  def test_the_sandbox(self):
    source = "{{ messages.__class__.__mro__ }}"
    jinja = JinjaTemplate(source, names={}, date=DATE)
    with self.assertRaisesRegex(ConfigError, "unsafe"):
      jinja.render([{"role": "user", "content": ""}], prompt=False)

  def test_nothing_to_start_with(self):
    with self.assertRaisesRegex(ValueError, "at least one message"):
      codec_of("small_qwen25").start([], ())
