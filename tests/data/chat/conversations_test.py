"""Chats become demonstrations by the template's own cut, or are told apart."""

import copy
import datetime
import importlib.util
import json

import numpy as np
from absl.testing import parameterized

from agentrl_jax.data.chat import conversations
from agentrl_jax.data.chat.conversations import (
  Unusable,
  demonstration,
  read_conversation,
)
from agentrl_jax.data.chat.jinja_template import JinjaTemplate
from agentrl_jax.data.packing import pack
from tests.data.chat import families

TOOL = {
  "type": "function",
  "function": {
    "name": "price",
    "description": "Looks up a price.",
    "parameters": {
      "type": "object",
      "properties": {"of": {"type": "string"}},
      "required": ["of"],
    },
  },
}


def called(arguments='{"of": "red shoes"}', name="price"):
  function = {"name": name, "arguments": arguments}
  return {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "a", "type": "function", "function": function}],
  }


CHAT = {
  "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the price of red shoes?"},
    called(),
    {"role": "tool", "content": "7", "tool_call_id": "a"},
    {"role": "assistant", "content": "They cost 7."},
    {"role": "user", "content": "Thanks <|im_end|>"},
    {"role": "assistant", "content": "Any time."},
    {"role": "user", "content": "not answered"},
  ],
  "tools": [TOOL],
}
SHAREGPT = {
  "system": "Be brief.",
  "tools": json.dumps([TOOL["function"]]),
  "conversations": [
    {"from": "human", "value": "What is the price of red shoes?"},
    {
      "from": "function_call",
      "value": '{"name": "price", "arguments": {"of": "red shoes"}}',
    },
    {"from": "observation", "value": "7"},
    {"from": "gpt", "value": "They cost 7."},
    {"from": "human", "value": "Thanks <|im_end|>"},
    {"from": "gpt", "value": "Any time."},
  ],
}


def padded(row):
  """The row as Arrow gives it beside one whose tool has another parameter."""
  row = copy.deepcopy(row)
  names = {name: None for message in row["messages"] for name in message}
  row["messages"] = [names | message for message in row["messages"]]
  function = row["tools"][0]["function"]
  function["parameters"]["properties"]["size"] = None
  call = (
    row["messages"][2].get("function_call")
    or row["messages"][2]["tool_calls"][0]["function"]
  )
  call["arguments"] = {"size": None, **json.loads(call["arguments"])}
  return row


SEARCH = {
  "name": "price",
  "parameters": {"properties": {"must": {}}, "required": ["must"]},
}
QWEN = families.codec_of(
  families.QWEN, (families.HERE / "qwen25.jinja").read_text()
)


def learn(row, codec=QWEN, room=4096):
  return demonstration(read_conversation(row), codec, room=room)


def changed(path, value):
  """`CHAT` with another value somewhere."""
  row = copy.deepcopy(CHAT)
  *above, last = path
  place = row
  for key in above:
    place = place[key]
  place[last] = value
  return row


class DemonstrationTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (name, family, source)
    for name, (family, source) in families.templates().items()
  )
  def test_what_is_learned_is_what_the_policy_would_sample(
    self, family, source
  ):
    codec = families.codec_of(family, source)
    played = learn(CHAT, codec)
    conversation = read_conversation(CHAT)
    answers = [m for m in conversation.messages if m.role == "assistant"]
    self.assertLen(played.turns, len(answers))
    rows = pack([played], row_length=2048)
    # The packed row's loss is on the tokens of the answers and nothing else.
    np.testing.assert_array_equal(
      rows.token[rows.mask],
      np.concatenate([codec.write(answer) for answer in answers]),
    )
    text = codec.decode(rows.token[rows.segment == 1])
    stops = [turn.sampled[-1] for turn in played.turns]
    self.assertContainsSubset(stops, codec.stop_tokens)
    self.assertNotIn("not answered", text)
    for turn, answer in zip(played.turns, answers, strict=True):
      # Qwen3 writes an empty thought first.
      self.assertEndsWith(codec.read(turn.sampled).content, answer.content)
      self.assertTrue((turn.version == -1).all())

  def test_a_reply_is_shown_with_the_name_of_its_call(self):
    source = (families.HERE / "gptoss.jinja").read_text()
    codec = families.codec_of(families.HARMONY, source)
    (line,) = learn(CHAT, codec).lines
    reply = "<|start|>functions.price to=assistant<|channel|>commentary"
    self.assertIn(f'<|call|>{reply}<|message|>"7"', codec.decode(line.tokens))

  def test_the_whole_is_the_rendering_of_the_whole(self):
    source = (families.HERE / "qwen25.jinja").read_text()
    jinja = JinjaTemplate(source, names={}, date=datetime.date(2024, 7, 26))
    row = copy.deepcopy(CHAT)
    row["messages"] = row["messages"][:5]
    row["messages"][2] = called({"of": "red shoes"})  # as templates take it
    conversation = read_conversation(row)
    text = jinja.render(row["messages"], conversation.tools, prompt=False)
    tokenizer = families.tokenizer_of(families.QWEN)
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    (line,) = learn(row).lines
    tokens = line.tokens.tolist()
    self.assertEqual(expected[: len(tokens)], tokens)
    rest = tokenizer.decode(expected[len(tokens) :], skip_special_tokens=False)
    self.assertEqual(rest, "\n")

  @parameterized.parameters("qwen2_5", "qwen3")
  def test_masks_of_trl(self, name):
    """TRL learns new lines around an answer, too, which nobody samples."""
    found = families.real_templates()
    if name not in found or not importlib.util.find_spec("transformers"):
      self.skipTest("needs trl and transformers")
    from transformers import PreTrainedTokenizerFast

    path = found[name].with_name(f"{name}_training.jinja")
    tokenizer = families.tokenizer_of(families.QWEN)
    messages = [dict(each) for each in CHAT["messages"][:5]]
    messages[2]["tool_calls"] = [
      {
        "type": "function",
        "function": {"name": "price", "arguments": {"of": "red shoes"}},
      }
    ]
    theirs = PreTrainedTokenizerFast(
      tokenizer_object=tokenizer
    ).apply_chat_template(
      messages,
      tools=CHAT["tools"],
      chat_template=path.read_text(),
      return_dict=True,
      return_assistant_tokens_mask=True,
    )
    codec = families.codec_of(families.QWEN, found[name].read_text())
    rows = pack(
      [learn({"messages": messages, "tools": [TOOL]}, codec)], row_length=1024
    )
    length = rows.num_tokens
    tokens = np.array(theirs["input_ids"])
    np.testing.assert_array_equal(tokens[:length], rows.token[0, :length])
    ours = rows.mask[0, : len(tokens)]
    mask = np.array(theirs["assistant_masks"], bool)
    self.assertFalse((ours & ~mask).any())
    more = tokens[mask & ~ours].tolist()
    self.assertEqual(set(tokenizer.decode(more)) - {"\n"}, set())

  def test_forms_are_the_same_conversation(self):
    expected = learn(CHAT)
    completion = {
      "prompt": CHAT["messages"][:2],
      "completion": CHAT["messages"][2:],
      "tools": json.dumps([TOOL]),
    }
    parts = copy.deepcopy(CHAT)
    parts["messages"][1]["content"] = [
      {"type": "text", "text": "What is the price "},
      {"type": "text", "text": "of red shoes?"},
    ]
    parts["messages"][0] = {"role": "developer", "content": "Be brief."}
    legacy = copy.deepcopy(CHAT)
    call = legacy["messages"][2].pop("tool_calls")[0]["function"]
    legacy["messages"][2]["function_call"] = call
    legacy["messages"][3] = {"role": "function", "name": "f", "content": "7"}
    as_text = {name: json.dumps(value) for name, value in CHAT.items()}
    calls = CHAT["messages"][2]["tool_calls"]
    calls_as_text = changed(("messages", 2, "tool_calls"), json.dumps(calls))
    forms = (legacy, as_text, calls_as_text, padded(CHAT), padded(legacy))
    for row in (SHAREGPT, completion, parts, *forms):
      played = learn(row)
      for mine, other in zip(played.turns, expected.turns, strict=True):
        np.testing.assert_array_equal(mine.observation, other.observation)
        np.testing.assert_array_equal(mine.sampled, other.sampled)

  def test_answers_that_are_not_learned_are_read(self):
    whole = learn(CHAT)
    row = changed(("messages", 4, "weight"), 0)
    played = learn(row)
    self.assertLen(played.turns, 2)
    (line,) = played.lines
    np.testing.assert_array_equal(line.tokens, whole.lines[0].tokens)
    np.testing.assert_array_equal(
      played.turns[1].sampled, whole.turns[2].sampled
    )
    earlier = {
      "prompt": CHAT["messages"][:6],
      "completion": CHAT["messages"][6:],
    }
    (turn,) = learn(earlier | {"tools": [TOOL]}).turns
    np.testing.assert_array_equal(turn.sampled, whole.turns[2].sampled)

  def test_answers_may_follow_each_other(self):
    row = {
      "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
      ]
    }
    self.assertLen(learn(row).turns, 2)

  @parameterized.parameters(
    {"reasoning_content": "short", "reasoning": " short\n"},
    {"reasoning": "short", "reasoning_details": [{"type": "reasoning.text"}]},
    {"thinking": "short"},
    {"reasoning_details": [{"type": "reasoning.summary", "summary": "short"}]},
    {"content": [{"type": "thinking", "thinking": ["short"]}, "Any time."]},
    {"content": "<think>\nshort\n</think>\n\nAny time.", "thinking": "short"},
  )
  def test_a_thought_of_its_own_is_written_before_the_answer(self, **said):
    source = (families.HERE / "qwen3.jinja").read_text()
    codec = families.codec_of(families.QWEN, source)
    row = changed(("messages", 6), CHAT["messages"][6] | said)
    text = codec.decode(learn(row, codec).turns[-1].sampled)
    self.assertEqual(text, "<think>\nshort\n</think>\n\nAny time.<|im_end|>")

  def test_a_template_that_drops_thoughts_learns_none(self):
    source = (families.HERE / "qwen25.jinja").read_text()
    source = source.replace("m.content", "m.content.split('</think>')[-1]")
    codec = families.codec_of(families.QWEN, source)
    with self.assertRaisesRegex(Unusable, "leaves the thought out"):
      learn(changed(("messages", 6, "thinking"), "short"), codec)

  @parameterized.parameters(
    ({"of": "a", "x": None}, {"of": "a"}),
    ({"n": 1.0, "of": float("nan")}, {"n": 1.0}),
    ({"must": None, "in": {"y": None, "z": 1}}, {"must": None, "in": {"z": 1}}),
    ({"in": [{"z": None, "y": 0}, [None]]}, {"in": [{"y": 0}, [None]]}),
    ('{"of": null}', {"of": None}),
  )
  def test_null_members_of_arguments_are_left_out_unless_they_are_text(
    self, given, wanted
  ):
    asked = {"role": "user", "content": "a"}
    row = {"messages": [asked, called(given)], "tools": [SEARCH]}
    message = read_conversation(row).messages[1]
    self.assertEqual(json.loads(message.tool_calls[0].arguments), wanted)

  @parameterized.parameters(
    (changed(("messages", 2), called("{")), conversations.BAD_CALLS),
    (changed(("messages", 2), called("[]")), conversations.BAD_CALLS),
    (changed(("messages", 2), called('{"of": NaN}')), conversations.BAD_CALLS),
    (
      changed(("messages", 2), called('{"of": 1, "of": 2}')),
      conversations.BAD_CALLS,
    ),
    (changed(("messages", 2), called(name="")), conversations.BAD_CALLS),
    (changed(("messages", 2), called(name="prize")), conversations.BAD_CALLS),
    (changed(("messages", 2, "tool_calls"), [7]), conversations.BAD_CALLS),
    (
      changed(("messages", 2, "tool_calls"), [{"function": {}}]),
      conversations.BAD_CALLS,
    ),
    ({"messages": CHAT["messages"][:2]}, conversations.NO_ANSWER),
    ({"messages": []}, conversations.NO_ANSWER),
    (
      {"messages": [{"role": "user", "content": "a"}, {"role": "assistant"}]},
      conversations.NO_ANSWER,
    ),
    ({"messages": CHAT["messages"][4:]}, conversations.UNREADABLE),
    ({"messages": "a"}, conversations.UNREADABLE),
    ({"messages": [7]}, conversations.UNREADABLE),
    ({"text": "a"}, conversations.UNREADABLE),
    ({"prompt": "a", "completion": "b"}, conversations.UNREADABLE),
    (changed(("messages", 1, "role"), "narrator"), conversations.UNREADABLE),
    (
      changed(("messages", 1, "content"), [{"type": "image_url"}]),
      conversations.UNREADABLE,
    ),
    (changed(("images",), ["a.png"]), conversations.UNREADABLE),
    (
      changed(
        ("messages", 6),
        {"role": "assistant", "thinking": "a", "reasoning": "b"},
      ),
      conversations.UNREADABLE,
    ),
    (changed(("messages", 2, "tool_calls"), "["), conversations.BAD_CALLS),
    (changed(("tools",), "{"), conversations.UNREADABLE),
    (changed(("tools", 0), {"name": 7}), conversations.UNREADABLE),
    (changed(("tools",), [[]]), conversations.UNREADABLE),
    (
      changed(("messages", 0, "content"), "long " * 4096),
      conversations.TOO_LONG,
    ),
    (
      {
        "conversations": [
          {"from": "human", "value": "a"},
          {"from": "function_call", "value": "price(red)"},
        ]
      },
      conversations.BAD_CALLS,
    ),
    ({"conversations": [{"role": "user"}]}, conversations.UNREADABLE),
  )
  def test_what_cannot_be_learned_from_has_a_kind(self, row, kind):
    with self.assertRaises(Unusable) as caught:
      learn(row)
    self.assertEqual(caught.exception.kind, kind, str(caught.exception))
    self.assertNotRegex(str(caught.exception), r"Error|^'|object has no")

  def test_room_is_exact(self):
    played = learn(CHAT)
    (line,) = played.lines
    self.assertLen(learn(CHAT, room=line.num_tokens).turns, 3)
    with self.assertRaises(Unusable) as caught:
      learn(CHAT, room=line.num_tokens - 1)
    self.assertEqual(caught.exception.kind, conversations.TOO_LONG)
