"""The prefix cache against plain rows: blocks hold what they stand for."""

import unittest

import numpy as np

from agentrl_jax.rollout.engine.cache.prefix_cache import PrefixCache

BLOCK = 4


class Tiers:
  """Copies rows of tokens as `BlockPool` copies keys and values.

  A block holds, for each of its tokens, all tokens up to that one, since keys
  and values depend on them.
  """

  def __init__(self, num_device, num_host, num_slots):
    self.cache = PrefixCache(BLOCK, num_device, num_host)
    self.device = [[None] * BLOCK for _ in range(num_device)]
    self.host = [[None] * BLOCK for _ in range(num_host)]
    self.slots = [[] for _ in range(num_slots)]

  def run(self):
    batch = self.cache.take_batch()
    rows = [self.host[source] for source, _ in batch.uploads]
    for source, target in batch.offloads:
      self.host[target] = self.device[source]
    for (_, target), row in zip(batch.uploads, rows, strict=True):
      self.device[target] = row
    saved = {
      save.block: self.block(save.slot, save.index)
      for save in batch.saves.values()
    }
    for block, row in saved.items():
      self.device[block] = row
    for fill in batch.fills:
      end = (fill.index + 1) * BLOCK
      slot = self.slots[fill.slot]
      slot.extend([None] * (end - len(slot)))
      slot[end - BLOCK : end] = self.device[fill.block]

  def block(self, slot, index):
    row = self.slots[slot][index * BLOCK : (index + 1) * BLOCK]
    return row + [None] * (BLOCK - len(row))

  def feed(self, slot, token):
    self.slots[slot] = [tuple(token[: t + 1]) for t in range(len(token))]

  def save(self, slot, token):
    self.feed(slot, token)
    return self.cache.insert(row(token), slot)

  def fetch(self, slot, token):
    match = self.cache.match_prefix(row(token))
    if match.is_offloading(self.cache.batch_number):
      self.run()
      match = self.cache.match_prefix(row(token))
    return self.cache.load(match, slot), match.size


def row(token):
  return np.array(token, np.int32)


def longest_shared(token, kept):
  def alike(other):
    pairs = list(zip(token, other, strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))

  return max((alike(other) for other in kept), default=0)


class PrefixCacheTest(unittest.TestCase):
  def test_matches_the_longest_prefix_to_the_token(self):
    tiers = Tiers(64, 0, 1)
    rng, kept = np.random.default_rng(0), []
    for _ in range(60):
      token = rng.integers(0, 2, rng.integers(1, 14)).tolist()
      if kept and rng.random() < 0.6:
        token = kept[rng.integers(len(kept))] + token
      size = tiers.cache.match_prefix(row(token[:40])).size
      self.assertEqual(size, longest_shared(token[:40], kept))
      before = tiers.cache.num_used[0]
      if before > 48:
        break
      tiers.save(0, token[:40])
      tiers.run()
      kept.append(token[:40])
      tiers.cache.check()
    self.assertGreater(len(kept), 12)

  def test_shared_blocks_are_kept_once(self):
    tiers = Tiers(16, 0, 2)
    prompt = list(range(8))
    self.assertEqual(tiers.save(0, [*prompt, 50, 51]), 10)
    self.assertEqual(tiers.save(1, [*prompt, 60]), 1)
    self.assertEqual(tiers.cache.num_used, (4, 0))
    tiers.run()
    self.assertEqual(tiers.save(0, [*prompt, 50]), 0)

  def test_the_last_block_of_a_conversation_grows_in_its_place(self):
    tiers = Tiers(16, 0, 2)
    tiers.save(0, [1, 2, 3, 4, 5])
    self.assertEqual(tiers.save(1, [1, 2, 3, 4, 5, 6]), 2)
    self.assertEqual(tiers.cache.num_used, (2, 0))
    tiers.run()
    self.assertEqual(tiers.fetch(0, [1, 2, 3, 4, 5, 6, 7]), (6, 6))
    tiers.run()
    self.assertEqual(tiers.slots[0][5], (1, 2, 3, 4, 5, 6))

  def test_the_least_recently_used_leaf_is_evicted_first(self):
    tiers = Tiers(4, 0, 1)
    for token in ([1] * 8, [2] * 8):
      tiers.save(0, token)
      tiers.run()
    self.assertEqual(tiers.fetch(0, [1] * 8)[0], 8)
    tiers.run()
    tiers.save(0, [3] * 4)
    tiers.run()
    sizes = [tiers.cache.match_prefix(row([n] * 8)).size for n in (1, 2, 3)]
    self.assertEqual(sizes, [8, 4, 4])

  def test_blocks_on_the_host_are_uploaded(self):
    tiers = Tiers(2, 8, 1)
    for n in (1, 2, 3):
      tiers.save(0, [n] * 8)
      tiers.run()
    self.assertEqual(tiers.cache.num_used, (2, 4))
    self.assertEqual(tiers.fetch(0, [1] * 8), (8, 8))
    tiers.run()
    self.assertEqual(tiers.slots[0], [(1,) * (t + 1) for t in range(8)])
    tiers.cache.check()

  def test_a_batch_does_not_evict_what_it_uses(self):
    tiers = Tiers(2, 0, 3)
    tiers.save(0, [1] * 8)
    tiers.run()
    self.assertEqual(tiers.fetch(1, [1] * 8), (8, 8))
    self.assertEqual(tiers.save(0, [2] * 8), 0)
    tiers.run()
    self.assertEqual(tiers.slots[1][7], (1,) * 8)
    self.assertEqual(tiers.save(0, [2] * 8), 8)

  def test_other_weights_match_nothing(self):
    tiers = Tiers(4, 0, 1)
    tiers.cache.set_weights(1)
    tiers.save(0, [1] * 8)
    tiers.run()
    tiers.cache.set_weights(1)
    self.assertEqual(tiers.cache.match_prefix(row([1] * 8)).size, 8)
    tiers.cache.set_weights(2)
    self.assertEqual(tiers.cache.match_prefix(row([1] * 8)).size, 0)
    self.assertEqual(tiers.cache.num_used, (0, 0))
    tiers.cache.check()

  def test_random_batches_load_only_what_was_kept(self):
    sizes = [(6, 0), (6, 5), (12, 30), (1, 1), (3, 40), (40, 3)]
    served = sum(
      self.random_batches(np.random.default_rng(seed), Tiers(*size, 6))
      for seed, size in enumerate(sizes)
    )
    self.assertGreater(served, 4000)

  def random_batches(self, rng, tiers):
    """Saves slots and loads other conversations there, batch by batch."""
    held, ever, served = [[] for _ in tiers.slots], [[1]], 0
    for _ in range(200):
      expected = {}
      for slot in rng.permutation(6)[: rng.integers(1, 7)]:
        wanted = ever[rng.integers(len(ever))][: rng.integers(1, 40)]
        wanted = wanted + rng.integers(0, 3, rng.integers(1, 9)).tolist()
        size, matched = tiers.fetch(slot, wanted)
        self.assertLessEqual(size, matched)
        tiers.cache.insert(row(held[slot]), slot)
        expected[slot], held[slot] = wanted[:size], wanted
        ever = [*ever[-30:], wanted]
        served += size
      tiers.run()
      tiers.cache.check()
      for slot, token in expected.items():
        wanted = [tuple(token[: t + 1]) for t in range(len(token))]
        self.assertEqual(tiers.slots[slot][: len(token)], wanted)
        tiers.feed(slot, held[slot])
      if rng.random() < 0.02:
        tiers.cache.clear()
        tiers.cache.check()
    return served
