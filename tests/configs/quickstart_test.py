"""Texts that the quickstart makes one token each are those of its tasks."""

from absl.testing import absltest

from configs import quickstart
from environments.dbbench.generation import words as dbbench
from environments.webshop.generation import words as webshop


class WholeTokensTest(absltest.TestCase):
  def test_names_are_those_of_the_tables(self):
    names = {
      f"{first} {second}"
      for _, firsts, seconds in dbbench.SUBJECTS.values()
      for first in firsts
      for second in seconds
    }
    self.assertSameElements(quickstart.NAMES, names)
    self.assertContainsSubset(names, quickstart.WHOLE_TOKENS)

  def test_options_with_a_unit_are_whole(self):
    values = {v for group in webshop.OPTION_VALUES.values() for v in group}
    with_unit = {v for v in values if v[0].isdigit() and not v.isdigit()}
    self.assertLen(with_unit, 17)
    self.assertContainsSubset(with_unit, quickstart.WHOLE_TOKENS)

  def test_vocabulary_has_room_for_words(self):
    vocab_size = quickstart.get_config().tokenizer.vocab_size
    self.assertGreater(vocab_size - len(quickstart.WHOLE_TOKENS) - 256, 1500)
