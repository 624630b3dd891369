"""Grammars over a tokenizer allow the right tokens, one by one."""

import numpy as np
from absl.testing import absltest

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.errors import ConfigError, GeneratorFault, GrammarFault

TEXTS = ['Let us see. {"name": "query", "arguments": {"sql": "select 1"}}'] * 9
VOCAB = 401  # more than the tokenizer has, and no multiple of 32


def tokens_of(mask_W: np.ndarray) -> set[int]:
  """The ids that a mask has."""
  bits = np.unpackbits(mask_W.view(np.uint8), bitorder="little")
  return set(map(int, np.flatnonzero(bits)))


class GrammarTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.codec = ChatCodec(train_tokenizer(TEXTS, vocab_size=380))
    self.grammars = self.codec.grammars(VOCAB)

  def ids(self, text: str) -> list[int]:
    return list(map(int, self.codec.encode(text)))

  def test_answer_follows(self):
    answer = self.ids("yes<|end|>")
    mask_AW = self.grammars.masks('start: "yes" | "no"', answer)
    self.assertEqual(mask_AW.shape, (len(answer), 13))
    self.assertEqual(tokens_of(mask_AW[-1]), set(self.codec.stop_tokens))
    begins = {self.codec.decode([t])[0] for t in tokens_of(mask_AW[0])}
    self.assertEqual(begins, {"y", "n"})

  def test_answer_that_does_not_follow(self):
    with self.assertRaisesRegex(GeneratorFault, "not allowed by its grammar"):
      self.grammars.masks('start: "yes"', self.ids("no"))

  def test_answer_that_goes_on_without_being_allowed(self):
    """Text that is forced is allowed in the tokenizer's own tokens only."""
    spelt = [id for letter in "arguments" for id in self.ids(letter)]
    with self.assertRaisesRegex(GrammarFault, "not in the mask there"):
      self.grammars.masks('start: "arguments"', spelt)

  def test_markers_are_no_text(self):
    """Any text at all, and yet no marker, nor an id that no token has."""
    (mask_W,) = self.grammars.masks("start: /(.|\\n)*/", self.ids("see")[:1])
    allowed = tokens_of(mask_W)
    markers = self.ids("<|system|><|user|><|assistant|><|tool|><tool_call>")
    self.assertEmpty(allowed & {0, *markers, *self.ids("</tool_call>")})
    self.assertLess(max(allowed), self.codec.vocab_size)
    self.assertContainsSubset(self.ids("see select\n<|end|>"), allowed)

  def test_marker_by_its_id(self):
    (call,) = self.ids("<tool_call>")
    mask_AW = self.grammars.masks(f'start: <[{call}]> "x"', [call])
    self.assertEqual(tokens_of(mask_AW[0]), {call})

  def test_states_of_one_grammar_are_apart(self):
    one, other = (self.grammars.begin('start: "ab"') for _ in range(2))
    before = other.allowed()
    one.take(self.ids("a")[0])
    np.testing.assert_array_equal(other.allowed(), before)
    self.assertFalse(np.array_equal(one.allowed(), before))

  def test_no_grammar(self):
    with self.assertRaisesRegex(ConfigError, "no grammar can be made of"):
      self.grammars.check("start: what")
