"""Tokens of pieces join to the tokens of the whole, and decode unchanged."""

import json

import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers

from agentrl_jax.data.chat import codec, tokenizer
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.marked_text import IN_TEXT, MarkedTokenizer
from agentrl_jax.data.records import Message, Tool, ToolCall
from agentrl_jax.errors import ConfigError
from tests.data.chat import families

TEXTS = [
  "Show me the price of red shoes, lower than 40 dollars [SEP] Search",
  "SELECT price FROM shoes WHERE colour = 'red'",
  "a long line that every text shares\nand another one that they share",
] * 20
MARKS = (tokenizer.PAD, *codec.SPECIAL_TOKENS)
TOOL = Tool("look", "Looks.", {"type": "object", "properties": {}})

TEMPLATE = codec.CompactTemplate()


def make_codec(**options) -> ChatCodec:
  options = {"vocab_size": 400, **options}
  return ChatCodec(tokenizer.train_tokenizer(TEXTS, **options))


class ChatCodecTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.codec = make_codec(whole_tokens=("[SEP]",), whole_lines=4)

  @settings(max_examples=60, deadline=None)
  @given(st.text())
  def test_any_text_comes_back(self, text):
    self.assertEqual(self.codec.decode(self.codec.encode(text)), text)

  @settings(max_examples=30, deadline=None)
  @given(st.lists(st.text(), min_size=1, max_size=4))
  def test_pieces_are_tokenised_like_the_whole(self, texts):
    opening = [Message("system", texts[0])]
    pieces = [self.codec.start(opening, [TOOL])]
    whole = TEMPLATE.start(opening, [TOOL])
    for text in texts[1:]:
      answer = Message("assistant", text, (ToolCall("look", "{}", "0"),))
      reply = [Message("tool", text)]
      stop = self.codec.stop_tokens[0]
      pieces += [
        self.codec.write(answer),
        self.codec.extend(reply, ended_by=stop),
      ]
      whole += TEMPLATE.write(answer) + TEMPLATE.extend(
        reply, ended_by=codec.END
      )
    np.testing.assert_array_equal(
      np.concatenate(pieces), self.codec.encode(whole)
    )

  def test_conversations_that_begin_alike_share_their_first_tokens(self):
    opening = [Message("system", "red shoes")]
    first = self.codec.start(opening, [TOOL])
    self.assertIs(self.codec.start(list(opening), [TOOL]), first)
    with self.assertRaisesRegex(ValueError, "read-only"):
      first[0] = 0

  def test_long_conversations_are_not_kept_in_memory(self):
    before = self.codec._start_of.cache_info()
    self.codec.start([Message("user", "red shoes " * 10_000)], [TOOL])
    tool = Tool("look", "red shoes " * 10_000, {})
    self.codec.start([Message("user", "red")], [tool])
    call = ToolCall("look", "red shoes " * 10_000, "0")
    self.codec.start([Message("assistant", "", (call,))], [TOOL])
    self.assertEqual(self.codec._start_of.cache_info(), before)

  def test_tools_that_are_equal_but_read_otherwise_share_nothing(self):
    """As Python compares them: keys in another order, and 1 and true."""
    a, b = {"type": "string"}, {"type": "integer"}
    for one, other in (
      ({"a": a, "b": b}, {"b": b, "a": a}),
      ({"a": {"enum": [1]}}, {"a": {"enum": [True]}}),
    ):
      texts = [
        self.codec.decode(
          self.codec.start(
            [Message("system", "s")],
            [Tool("look", "", {"type": "object", "properties": properties})],
          )
        )
        for properties in (one, other)
      ]
      self.assertEqual(one, other)
      self.assertNotEqual(*texts)

  def test_whole_tokens_and_shared_lines_are_one_token(self):
    for text in ("[SEP]", "a long line that every text shares"):
      self.assertLen(self.codec.encode(text), 1)

  def test_lines_that_as_many_texts_share_are_in_the_order_of_the_texts(self):
    lines = [f"line {n} of four words" for n in (7, 3, 9, 1, 8, 2, 6)]
    texts = ["\n".join(lines)] * 3
    self.assertEqual(tokenizer.shared_lines(texts, 6), lines[:6])

  def test_merges_are_learned_of_the_text_between_whole_tokens(self):
    """A word after a whole token that ends in a space has none of its own."""
    texts = ["the color: blue", "a color: red", "the longer color: tan"] * 20
    colors = ChatCodec(
      tokenizer.train_tokenizer(
        texts, vocab_size=400, whole_tokens=(": ", "longer color: ")
      )
    )
    for text in ("the color: blue", "the longer color: blue"):
      pieces = [colors.decode([id]) for id in colors.encode(text)]
      self.assertEqual(pieces[-1], "blue")
      self.assertTrue(pieces[-2].endswith(": "))
      self.assertEqual("".join(pieces), text)
    self.assertEqual(pieces[-2], "longer color: ")

  def test_digits_stand_alone(self):
    self.assertLen(self.codec.encode("1234567"), 7)

  @settings(max_examples=30, deadline=None)
  @given(st.lists(st.sampled_from([*MARKS, "x", "\ufdd0", "0", "1", "<|"])))
  def test_what_is_said_marks_nothing(self, parts):
    said = "".join(parts)
    call = ToolCall("look", json.dumps({said: said}, ensure_ascii=False), "0")
    answer = Message("assistant", "", (call,))
    tool = Tool(said, said, {"type": "object", "properties": {said: {}}})
    opening = [Message("system", said), Message("user", said)]
    pieces = [
      self.codec.start(opening, [tool]),
      self.codec.write(answer),
      self.codec.extend([Message("tool", said)], ended_by=None),
    ]
    ids = list(np.concatenate(pieces))
    for marker in MARKS:
      wanted = sum(
        text.count(marker)
        for text in ("<|system|><|end|><|user|><|end|><|assistant|>",)
        + ("<tool_call></tool_call><|end|><|end|><|tool|><|end|><|assistant|>",)
      )
      (id,) = self.codec.encode(marker)
      self.assertEqual(ids.count(id), wanted, marker)
    self.assertEqual(self.codec.read(pieces[1]), answer)
    self.assertIn(said, self.codec.decode(pieces[2]))

  def test_a_tokenizer_without_markers_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "tool_call"):
      ChatCodec(Tokenizer(models.BPE()))


class SpacesTest(parameterized.TestCase):
  """Tokenizers of SentencePiece; `families` has them for other tests."""

  @parameterized.parameters(*families.SENTENCE_PIECE)
  def test_a_token_is_read_with_its_space(self, name):
    spaced = families.codec_of(*families.templates()[name])
    ids = spaced.encode("the price", after=IN_TEXT)
    texts = [spaced.decode([id], after=IN_TEXT) for id in ids]
    self.assertEqual(texts, ["t", "h", "e", " price"])
    self.assertEqual(spaced.decode(ids), "the price")

  def test_no_token_crosses_the_border_of_an_answer(self):
    gemma = families.codec_of(*families.templates()["gemma_qwen25"])
    start = gemma.start([Message("user", "x")], [])
    answer = gemma.write(Message("assistant", "\nx"))
    whole = gemma.decode(start) + gemma.decode(answer)
    self.assertEndsWith(whole, "\n\nx<|im_end|>")
    self.assertLen(gemma.encode(whole), len(start) + len(answer) - 1)

  @parameterized.parameters(
    ({"normalized": True}, [], r"\['</s>'\] swallow"),
    ({"lstrip": True}, [], r"\['</s>'\] swallow"),
    ({"single_word": True}, [], r"\['</s>'\] swallow"),
    ({}, [normalizers.Strip()], "otherwise than its two halves"),
  )
  def test_tokenizers_that_read_pieces_otherwise(self, flags, more, message):
    family = families.SENTENCE_PIECE["prepend_tinyllama"]
    changed = Tokenizer.from_str(families.tokenizer_of(family).to_str())
    changed.normalizer = normalizers.Sequence([changed.normalizer, *more])
    changed.add_tokens([AddedToken("</s>", special=True, **flags)])
    with self.assertRaisesRegex(ConfigError, message):
      MarkedTokenizer(changed, family.special)


class TrainTokenizerTest(absltest.TestCase):
  def test_size_is_what_was_asked_for(self):
    self.assertLessEqual(make_codec(vocab_size=300).vocab_size, 300)

  def test_too_small_a_vocabulary(self):
    with self.assertRaisesRegex(ConfigError, "vocab_size=100"):
      make_codec(vocab_size=100)

  def test_padding_is_token_0(self):
    trained = tokenizer.train_tokenizer(TEXTS, vocab_size=300)
    self.assertEqual(trained.token_to_id(tokenizer.PAD), 0)

  def test_missing_file(self):
    import pathlib

    with self.assertRaisesRegex(ConfigError, "no tokenizer at"):
      tokenizer.load_tokenizer(pathlib.Path("/nowhere/tokenizer.json"))
