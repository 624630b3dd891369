"""The slot that a request gets, and the tokens that it reuses there."""

import unittest

import numpy as np

from agentrl_jax.rollout.api import Request, SamplingParams
from agentrl_jax.rollout.engine.cache.kv_cache import (
  FROM_PREFIX_CACHE,
  Allocation,
  SlotTable,
)
from tests.rollout import small

MIN_COPIED = 4
LONG = small.prompt_of(1, 21)
OTHER = (LONG + 1) % small.VOCAB


class SlotTableTest(unittest.TestCase):
  def setUp(self):
    self.table, self.serial = SlotTable(3, 64), 0

  def request(self, prompt, max_tokens=10):
    self.serial += 1
    return Request(prompt, SamplingParams(max_tokens=max_tokens), self.serial)

  def assign(self, prompt, publication=1, prefilled=True):
    request = self.request(prompt)
    allocation = self.table.allocate(request, publication, MIN_COPIED)
    self.table.assign(request, allocation, publication)
    if prefilled:
      self.table.num_computed[allocation.slot] = request.prefill_length
    return allocation.slot

  def allocate(self, prompt, publication=1):
    return self.table.allocate(self.request(prompt), publication, MIN_COPIED)

  def test_a_conversation_gets_its_own_slot_again(self):
    self.assign(OTHER)
    slot = self.assign(LONG)
    self.table.free(slot)
    longer = np.append(LONG, [5, 6])
    self.assertEqual(self.allocate(longer), Allocation(slot, 20, slot))

  def test_another_conversation_copies_the_common_prefix(self):
    slot = self.assign(LONG)
    self.table.free(slot)
    branch = np.concatenate([LONG[:12], OTHER[:4]])
    allocation = self.allocate(branch)
    self.assertEqual((allocation.source, allocation.num_reused), (slot, 12))
    self.assertNotEqual(allocation.slot, slot)

  def test_a_busy_slot_can_be_copied_from(self):
    slot = self.assign(LONG)
    allocation = self.allocate(LONG)
    self.assertEqual((allocation.source, allocation.num_reused), (slot, 20))
    self.assertNotEqual(allocation.slot, slot)

  def test_a_few_tokens_are_not_copied(self):
    self.assign(LONG)
    allocation = self.allocate(np.concatenate([LONG[: MIN_COPIED - 1], OTHER]))
    self.assertEqual(
      (allocation.source, allocation.num_reused), (allocation.slot, 0)
    )

  def test_waits_for_a_slot_that_prefills_the_same_prompt(self):
    slot = self.assign(LONG, prefilled=False)
    self.assertIsNone(self.allocate(LONG))
    self.table.num_computed[slot] = (
      20 - MIN_COPIED + 1
    )  # too few are still to be prefilled
    self.assertEqual(self.allocate(LONG).num_reused, 20 - MIN_COPIED + 1)

  def test_the_prefix_cache_is_used_where_it_holds_enough_more(self):
    self.assign(LONG, prefilled=False)
    self.table.num_computed[0] = 20
    longer = np.append(LONG, np.arange(30, dtype=np.int32))
    for more, is_used in ((MIN_COPIED - 1, False), (MIN_COPIED, True)):
      allocation = self.table.allocate(
        self.request(longer), 1, MIN_COPIED, 20 + more
      )
      self.assertEqual(allocation.source == FROM_PREFIX_CACHE, is_used)

  def test_waits_no_longer_where_the_prefix_cache_holds_as_much(self):
    self.assign(LONG, prefilled=False)
    for held, waits in ((20 - MIN_COPIED, True), (21 - MIN_COPIED, False)):
      allocation = self.table.allocate(self.request(LONG), 1, MIN_COPIED, held)
      self.assertEqual(allocation is None, waits)

  def test_tokens_that_a_call_did_not_sample_need_no_room(self):
    slot = self.assign(LONG)  # 20 cached, up to 31
    self.table.launch(np.array([slot]), 8)
    self.assertEqual(self.table.cache_length_needed(1, 2), 30)
    self.table.give_back(np.array([slot]), np.array([5]))
    self.assertEqual(self.table.cache_length_needed(1, 2), 25)

  def test_waits_while_no_slot_is_free(self):
    slots = [self.assign(prompt) for prompt in (LONG, OTHER, OTHER[::-1])]
    self.assertEqual(sorted(slots), [0, 1, 2])
    self.assertTrue(self.table.is_full)
    self.assertIsNone(self.allocate(small.prompt_of(9, 5)))

  def test_the_least_recently_used_slot_is_overwritten_first(self):
    slots = [self.assign(prompt) for prompt in (LONG, OTHER, OTHER[::-1])]
    for i in (1, 2, 0):
      self.table.free(slots[i])
    self.assertEqual(self.allocate(small.prompt_of(9, 9)).slot, slots[1])

  def test_slots_without_usable_tokens_are_overwritten_first(self):
    useful, stale = self.assign(LONG), self.assign(OTHER)
    third = self.assign(OTHER[::-1])
    for slot in (useful, stale, third):
      self.table.free(slot)
    self.table.publication[stale] = 0
    self.assertEqual(self.allocate(small.prompt_of(9, 9)).slot, stale)

  def test_other_publications_reuse_nothing(self):
    self.table.free(self.assign(LONG, publication=1))
    self.assertEqual(self.allocate(LONG, publication=2).num_reused, 0)

  def test_a_swap_restarts_prefill_and_mixes_decoding_slots(self):
    feeding = self.assign(LONG, prefilled=False)
    self.table.num_computed[feeding] = 7
    decoding = self.assign(OTHER)
    self.table.is_decoding[decoding] = True
    self.table.set_weights(2)
    self.assertEqual(self.table.num_computed[feeding], 0)
    self.assertEqual(self.table.publication[feeding], 2)
    self.table.free(decoding)
    for publication in (1, 2):
      self.assertEqual(
        self.allocate(OTHER, publication=publication).num_reused, 0
      )

  def test_a_prompt_of_one_token_needs_no_prefill(self):
    slot = self.assign(np.array([3], np.int32), prefilled=False)
    self.assertEqual(self.table.prefilling().tolist(), [])
    self.assertEqual(self.table.decodable().tolist(), [slot])

  def test_prompts_are_prefilled_in_order_of_arrival(self):
    slots = [
      self.assign(p, prefilled=False) for p in (LONG, OTHER, OTHER[::-1])
    ]
    self.table.free(slots[0])
    slots = [*slots[1:], self.assign(LONG, prefilled=False)]
    self.assertEqual(self.table.prefilling().tolist(), slots)

  def test_cache_length_covers_cached_and_coming_tokens(self):
    self.assertEqual(self.table.cache_length_needed(1, 4), 1)
    slot = self.assign(LONG)  # 20 cached, up to 31
    self.assertEqual(self.table.cache_length_needed(1, 4), 24)
    self.assertEqual(self.table.cache_length_needed(1, 40), 31)
    self.table.free(slot)
    self.assertEqual(self.table.cache_length_needed(1, 4), 20)
    self.assertEqual(self.table.cache_length_needed(2, 4), 1)
