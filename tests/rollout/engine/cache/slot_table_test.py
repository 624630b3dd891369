"""Slots that prefill and decode, and what one of them is about to have."""

import unittest

import numpy as np

from agentrl_jax.rollout.api import Request, SamplingParams
from agentrl_jax.rollout.engine.cache.slot_table import SlotTable
from tests.rollout import small

LONG = small.prompt_of(1, 21)
OTHER = (LONG + 1) % small.VOCAB


class SlotTableTest(unittest.TestCase):
  def setUp(self):
    self.table, self.serial = SlotTable(3, 64), 0

  def assign(self, prompt, num_computed=0):
    self.serial += 1
    request = Request(prompt, SamplingParams(max_tokens=10), self.serial)
    slot = self.table.free_slot()
    self.table.assign(slot, request, num_computed)
    return slot

  def test_a_request_can_wait_for_the_prompt_that_a_slot_prefills(self):
    slot = self.assign(LONG, 7)
    branch = np.concatenate([LONG[:12], OTHER])
    for prompt, coming in ((LONG, 20), (branch, 12), (OTHER, 0)):
      request = Request(prompt, SamplingParams(), 9)
      self.assertEqual(self.table.num_coming(request, whole=False), coming)
      alike = coming if prompt is LONG else 0
      self.assertEqual(self.table.num_coming(request, whole=True), alike)
    self.table.num_computed[slot] = 20  # it is there
    request = Request(LONG, SamplingParams(), 9)
    self.assertEqual(self.table.num_coming(request, whole=False), 0)

  def test_tokens_that_a_call_did_not_sample_need_no_room(self):
    slot = self.assign(LONG, 20)  # up to 31
    self.assertEqual(self.table.num_tokens_after(40)[slot], 31)
    self.table.launch(np.array([slot]), 8)
    self.assertEqual(self.table.num_tokens_after(2)[slot], 30)
    self.table.give_back(np.array([slot]), np.array([5]))
    self.assertEqual(self.table.num_tokens_after(2)[slot], 25)

  def test_each_request_gets_a_free_slot(self):
    slots = [self.assign(prompt) for prompt in (LONG, OTHER, OTHER[::-1])]
    self.assertEqual(sorted(slots), [0, 1, 2])
    self.assertTrue(self.table.is_full)
    self.table.free(slots[1])
    self.table.free(slots[0])
    self.assertEqual(
      [self.assign(LONG), self.assign(LONG)], [slots[1], slots[0]]
    )

  def test_a_prompt_of_one_token_needs_no_prefill(self):
    slot = self.assign(np.array([3], np.int32))
    self.assertEqual(self.table.prefilling().tolist(), [])
    self.assertEqual(self.table.decodable().tolist(), [slot])

  def test_prompts_are_prefilled_in_order_of_arrival(self):
    slots = [self.assign(p) for p in (LONG, OTHER, OTHER[::-1])]
    self.table.free(slots[0])
    slots = [*slots[1:], self.assign(LONG)]
    self.assertEqual(self.table.prefilling().tolist(), slots)
