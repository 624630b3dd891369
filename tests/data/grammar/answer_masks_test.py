"""Masks of allowed tokens are recomputed from sampled answers."""

import dataclasses

import numpy as np
from absl.testing import absltest

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.grammar.answer_masks import answer_masks
from agentrl_jax.data.packing import pack
from agentrl_jax.errors import ConfigError, GeneratorFault
from tests.data.records import make_trajectory

VOCAB = 401  # more than the tokenizer has, and no multiple of 32
YES_OR_NO = 'start: "yes" | "no"'
DIGITS = "start: /[0-9]+/"


def said(turn, codec, text, grammar):
  sampled = codec.encode(text)
  zeros = np.zeros(len(sampled), np.float32)
  return dataclasses.replace(
    turn,
    sampled=sampled,
    behavior_logprob=zeros,
    raw_logprob=zeros,
    version=np.zeros(len(sampled), np.int32),
    grammar=grammar,
  )


class AnswerMasksTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.codec = ChatCodec(train_tokenizer(["yes no 1 2"] * 9, vocab_size=340))
    self.grammars = self.codec.grammars(VOCAB)
    rng = np.random.default_rng(0)
    self.trajectories = [make_trajectory(rng, turns=3) for _ in range(5)]

  def say(self, n, number, text, grammar):
    turns = list(self.trajectories[n].turns)
    turns[number] = said(turns[number], self.codec, text, grammar)
    self.trajectories[n] = dataclasses.replace(
      self.trajectories[n], turns=tuple(turns)
    )

  def masks(self, trajectories=None):
    trajectories = trajectories or self.trajectories
    rows = pack(trajectories, row_length=48)
    return rows, answer_masks(rows, trajectories, lambda: self.grammars)

  def test_every_token_has_the_mask_that_it_was_sampled_under(self):
    self.say(1, 0, "no<|end|>", YES_OR_NO)
    self.say(3, 1, "2121<|end|>", DIGITS)
    self.say(3, 2, "yes<|end|>", YES_OR_NO)
    rows, found = self.masks()
    self.assertGreater(len(rows.mask), 1)
    everything = np.full(self.grammars.num_mask_words, 2**32 - 1, np.uint32)
    for n, trajectory in enumerate(self.trajectories):
      for number, turn in enumerate(trajectory.turns):
        here = (rows.trajectory == n) & (rows.turn == number) & rows.mask
        wanted = [everything] * len(turn.sampled)
        if turn.grammar:
          wanted = self.grammars.masks(turn.grammar, turn.sampled)
        np.testing.assert_array_equal(
          found.mask_MX[found.allowed_RT[here]], wanted
        )
    np.testing.assert_array_equal(found.allowed_RT[~rows.mask], 0)

  def test_equal_masks_stand_once_in_a_table_that_few_sizes_have(self):
    self.say(0, 0, "no<|end|>", YES_OR_NO)
    few = self.masks()[1].mask_MX
    for n in range(5):
      self.say(n, 2, "no<|end|>", YES_OR_NO)
    np.testing.assert_array_equal(self.masks()[1].mask_MX, few)
    self.say(0, 1, "12121<|end|>", DIGITS)
    more = self.masks()[1].mask_MX
    self.assertEqual(len(more), 1 << (len(more) - 1).bit_length())
    self.assertGreater(len(more), len(few))

  def test_a_grammar_that_nobody_can_read(self):
    self.say(1, 0, "no<|end|>", YES_OR_NO)
    rows = pack(self.trajectories, row_length=64)
    with self.assertRaisesRegex(ConfigError, "given no `Grammars`"):
      answer_masks(rows, self.trajectories, None)

  def test_a_token_that_was_not_allowed_names_its_attempt(self):
    self.say(4, 1, "1no", DIGITS)
    with self.assertRaisesRegex(
      GeneratorFault, "turn 1 of attempt 0 in group g.*not sampled under its"
    ):
      self.masks()
