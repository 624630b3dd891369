"""Text that grows token by token and is cut at a stop text."""

import random
import unittest

from agentrl_jax.rollout.openai.detokenizer import Detokenizer
from tests.data.chat import families
from tests.rollout import talking

TEXT = "Größe: 1 + 2 = 3 €, naïve 😀 end. Größe again, the end?"


def byte_tokens(text):
  """Makes a token of each byte, so that characters are cut in the middle."""
  tokenizer = talking.tokenizer()
  whole = tokenizer.encode(text, add_special_tokens=False).ids
  ids = []
  for id in whole:
    pieces = tokenizer.id_to_token(id)
    ids += [tokenizer.token_to_id(piece) for piece in pieces]
  return ids


def grown(ids, stops=(), sizes=None, codec=talking.codec):
  """Feeds tokens; returns the released texts, the detokenizer and a count."""
  text = Detokenizer(codec().decode, stops)
  out, taken = [], 0
  while taken < len(ids) and text.stopped_by is None:
    piece = ids[taken : taken + (next(sizes) if sizes else 1)]
    taken += text.add(piece)
    out.append(text.release())
  text.end()
  return [*out, text.release()], text, taken


def any_sizes(seed):
  draw = random.Random(seed)
  while True:
    yield draw.randint(1, 9)


class GrowingTextTest(unittest.TestCase):
  def test_no_character_is_let_out_in_part(self):
    ids = byte_tokens(TEXT)
    self.assertGreater(len(ids), len(TEXT))
    for seed in range(20):
      out, text, _ = grown(ids, sizes=any_sizes(seed))
      self.assertEqual("".join(out), TEXT)
      self.assertEqual(text.text, TEXT)
      self.assertNotIn("\ufffd", "".join(out))

  def test_bytes_that_are_no_character_come_at_the_end(self):
    ids = byte_tokens("a€")[:-1]
    out, text, _ = grown(ids)
    self.assertEqual(out[:-1], ["a", "", ""])
    self.assertEqual(out[-1], "\ufffd")
    self.assertEqual(text.text, "a\ufffd")

  def test_broken_bytes_are_not_read_again_with_every_token(self):
    decode, num_read = talking.codec().decode, 0

    def counting(ids):
      nonlocal num_read
      num_read += len(ids)
      return decode(ids)

    ids = byte_tokens("€")[:1] * 2000
    text = Detokenizer(counting, ["never"])
    out = ""
    for id in ids:
      text.add([id])
      out += text.release()
    self.assertGreater(len(out), 1900)
    text.end()
    self.assertEqual(text.text, decode(ids))
    self.assertLess(num_read, 50 * len(ids))

  def test_the_text_of_any_bytes_is_that_of_all_tokens(self):
    decode, characters = talking.codec().decode, byte_tokens("€😀é")
    for seed in range(300):
      draw = random.Random(seed)
      ids = [draw.choice(characters) for _ in range(draw.randint(1, 40))]
      ids += byte_tokens("😀")[: draw.randint(0, 4)]
      out, text, _ = grown(ids, sizes=any_sizes(seed))
      self.assertEqual("".join(out), decode(ids))
      self.assertEqual(text.text, decode(ids))

  def test_spaces_before_texts_are_those_of_all_tokens(self):
    for name in families.SENTENCE_PIECE:
      codec = families.codec_of(*families.templates()[name])
      some = [*codec.encode("€ é\nprice of"), *codec.stop_tokens]
      for seed in range(60):
        ids = random.Random(seed).choices(some, k=seed)
        out, _, _ = grown(ids, (), any_sizes(seed), lambda: codec)  # noqa: B023
        self.assertEqual("".join(out), codec.decode(ids))

  def test_nothing_of_a_stop_text_is_ever_let_out(self):
    ids = byte_tokens(TEXT)
    for stops in (["end"], ["e again", "€,"], ["😀"], ["? no", "the end?"]):
      cut = min(TEXT.index(stop) for stop in stops if stop in TEXT)
      for seed in range(10):
        out, text, taken = grown(ids, stops, any_sizes(seed))
        self.assertEqual("".join(out), TEXT[:cut])
        self.assertIn(text.stopped_by, stops)
        # The token that completes it is the last one that is taken.
        result = talking.codec().decode(ids[:taken])
        self.assertTrue(result.endswith(text.stopped_by), result)

  def test_the_begin_of_a_stop_text_is_released_later(self):
    ids = byte_tokens("enend of the e")
    out, text, _ = grown(ids, ["ends"])
    self.assertEqual(out[:3], ["", "", "en"])
    self.assertEqual("".join(out), "enend of the e")
    self.assertIsNone(text.stopped_by)

  def test_of_two_stop_texts_the_first_in_the_text_counts(self):
    words = ["x", "abcd"]  # a token that completes both
    for stops in (["d", "bc"], ["bc", "d"]):
      text = Detokenizer(lambda ids: "".join(words[n] for n in ids), stops)
      self.assertEqual(text.add([0, 1, 0]), 2)
      self.assertEqual((text.text, text.stopped_by), ("xa", "bc"))
