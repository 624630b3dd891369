"""Which slot a request gets, and what it finds there."""

import unittest

import numpy as np

from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.engine.request import Request
from agentrl_jax.rollout.engine.slot_table import Allocation, SlotTable
from tests.rollout import small

WORTH = 4
LONG = small.prompt_of(1, 21)
OTHER = (LONG + 1) % small.VOCAB


class SlotBookTest(unittest.TestCase):
  def setUp(self):
    self.book, self.serial = SlotTable(3, 64), 0

  def request(self, prompt, max_tokens=10):
    self.serial += 1
    return Request(prompt, SamplingSpec(max_tokens=max_tokens), self.serial)

  def assign(self, prompt, publication=1, fed=True):
    request = self.request(prompt)
    seat = self.book.allocate(request, publication, WORTH)
    self.book.assign(request, seat, publication)
    if fed:
      self.book.held[seat.slot] = request.num_prefilled
    return seat.slot

  def find(self, prompt, publication=1):
    return self.book.allocate(self.request(prompt), publication, WORTH)

  def test_a_conversation_finds_its_own_slot(self):
    self.assign(OTHER)
    slot = self.assign(LONG)
    self.book.leave(slot)
    longer = np.append(LONG, [5, 6])
    self.assertEqual(self.find(longer), Allocation(slot, 20, slot))

  def test_a_branch_is_copied_and_leaves_the_conversation_alone(self):
    slot = self.assign(LONG)
    self.book.leave(slot)
    branch = np.concatenate([LONG[:12], OTHER[:4]])
    seat = self.find(branch)
    self.assertEqual((seat.source, seat.reused), (slot, 12))
    self.assertNotEqual(seat.slot, slot)

  def test_a_busy_slot_can_be_copied_from(self):
    slot = self.assign(LONG)
    seat = self.find(LONG)
    self.assertEqual((seat.source, seat.reused), (slot, 20))
    self.assertNotEqual(seat.slot, slot)

  def test_a_few_tokens_are_not_worth_a_copy(self):
    self.assign(LONG)
    seat = self.find(np.concatenate([LONG[: WORTH - 1], OTHER]))
    self.assertEqual((seat.source, seat.reused), (seat.slot, 0))

  def test_waits_for_a_slot_that_is_being_fed_the_same_prompt(self):
    slot = self.assign(LONG, fed=False)
    self.assertIsNone(self.find(LONG))
    self.book.held[slot] = 20 - WORTH + 1  # too little is still to come
    self.assertEqual(self.find(LONG).reused, 20 - WORTH + 1)

  def test_waits_while_no_slot_is_free(self):
    slots = [self.assign(prompt) for prompt in (LONG, OTHER, OTHER[::-1])]
    self.assertEqual(sorted(slots), [0, 1, 2])
    self.assertTrue(self.book.is_full)
    self.assertIsNone(self.find(small.prompt_of(9, 5)))

  def test_what_was_used_longest_ago_is_overwritten_first(self):
    slots = [self.assign(prompt) for prompt in (LONG, OTHER, OTHER[::-1])]
    for i in (1, 2, 0):
      self.book.leave(slots[i])
    self.assertEqual(self.find(small.prompt_of(9, 9)).slot, slots[1])

  def test_useless_slots_are_overwritten_before_useful_ones(self):
    useful, stale = self.assign(LONG), self.assign(OTHER)
    third = self.assign(OTHER[::-1])
    for slot in (useful, stale, third):
      self.book.leave(slot)
    self.book.publication[stale] = 0
    self.assertEqual(self.find(small.prompt_of(9, 9)).slot, stale)

  def test_another_publication_finds_nothing(self):
    self.book.leave(self.assign(LONG, publication=1))
    self.assertEqual(self.find(LONG, publication=2).reused, 0)

  def test_a_swap_restarts_prefill_and_spoils_what_decodes(self):
    feeding = self.assign(LONG, fed=False)
    self.book.held[feeding] = 7
    decoding = self.assign(OTHER)
    self.book.decoding[decoding] = True
    self.book.restart_stale(2)
    self.assertEqual(self.book.held[feeding], 0)
    self.assertEqual(self.book.publication[feeding], 2)
    self.book.leave(decoding)
    for publication in (1, 2):
      self.assertEqual(self.find(OTHER, publication=publication).reused, 0)

  def test_a_prompt_of_one_token_needs_no_prefill(self):
    slot = self.assign(np.array([3], np.int32), fed=False)
    self.assertEqual(self.book.unfilled().tolist(), [])
    self.assertEqual(self.book.filled().tolist(), [slot])

  def test_prompts_are_fed_in_the_order_of_their_requests(self):
    slots = [self.assign(p, fed=False) for p in (LONG, OTHER, OTHER[::-1])]
    self.book.leave(slots[0])
    slots = [*slots[1:], self.assign(LONG, fed=False)]
    self.assertEqual(self.book.unfilled().tolist(), slots)

  def test_room_is_for_what_is_held_and_what_comes_next(self):
    self.assertEqual(self.book.cache_length_needed(1, 4), 1)
    slot = self.assign(LONG)  # 20 held, up to 31
    self.assertEqual(self.book.cache_length_needed(1, 4), 24)
    self.assertEqual(self.book.cache_length_needed(1, 40), 31)
    self.book.leave(slot)
    self.assertEqual(self.book.cache_length_needed(1, 4), 20)
    self.assertEqual(self.book.cache_length_needed(2, 4), 1)


if __name__ == "__main__":
  unittest.main()
