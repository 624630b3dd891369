"""Pages of a cache: who holds them, which are found, which are evicted."""

import unittest
from collections import Counter

import numpy as np

from agentrl_jax.rollout.engine.cache.pages import PagePool, PageTree

SIZE = 4


def tokens(*values):
  return np.array(values, np.int32)


class PagePoolTest(unittest.TestCase):
  def test_a_page_is_free_once_all_have_released_it(self):
    pool = PagePool(3)
    first, second = pool.take(2)
    pool.share([first])
    pool.release([first, second])
    self.assertEqual(pool.num_free, 2)
    pool.check(Counter([first]))
    pool.release([first])
    self.assertEqual(pool.num_free, 3)
    pool.check(Counter())

  def test_more_than_are_free_cannot_be_taken(self):
    pool = PagePool(2)
    pool.take(1)
    with self.assertRaisesRegex(RuntimeError, "2 pages .* 1 of 2 are free"):
      pool.take(2)
    self.assertEqual(pool.num_free, 1)

  def test_a_page_is_not_released_twice(self):
    pool = PagePool(3)
    pages = pool.take(2)
    pool.release(pages[:1])
    for wrong in (pages, pages[:1], [pages[1], pages[1]]):
      with self.assertRaisesRegex(RuntimeError, "released too often"):
        pool.release(wrong)
    pool.check(Counter(pages[1:]))  # nothing has changed

  def test_a_free_page_cannot_be_shared(self):
    with self.assertRaisesRegex(RuntimeError, "page 2 has 0 holders"):
      PagePool(3).share([2])

  def test_check_finds_lost_and_ghostly_holders(self):
    pool = PagePool(3)
    pages = pool.take(2)
    pool.check(Counter(pages))
    for wrong in (pages[:1], [*pages, pages[0]], []):
      with self.assertRaises(AssertionError):
        pool.check(Counter(wrong))


class PageTreeTest(unittest.TestCase):
  def setUp(self):
    self.pool = PagePool(12)
    self.tree = PageTree(self.pool, SIZE)

  def add(self, values):
    """Inserts a sequence that has ended; returns its pages."""
    pages = self.pool.take(-(-len(values) // SIZE))
    self.tree.insert(tokens(*values), pages)
    self.pool.release(pages)
    return pages

  def check(self, *running):
    self.tree.check()
    held = Counter(page for pages in running for page in pages)
    self.pool.check(held + Counter(self.tree.pages))

  def found(self, values):
    match = self.tree.match_prefix(tokens(*values))
    return match.size, [node.page for node in match.nodes]

  def test_finds_the_longest_prefix(self):
    pages = self.add(range(10))
    self.assertEqual(self.found(range(20)), (10, pages))
    self.assertEqual(self.found(range(6)), (6, pages[:2]))
    self.assertEqual(self.found([0, 1, 2, 3, 9]), (4, pages[:1]))
    self.assertEqual(self.found([9]), (0, []))
    self.check()

  def test_common_pages_are_held_once(self):
    first = self.add(range(10))
    self.add([*range(8), 50, 51])
    self.assertEqual(self.pool.num_free, 12 - 4)
    self.assertEqual(self.found(range(8)), (8, first[:2]))
    self.check()

  def test_a_part_of_a_page_grows(self):
    self.add(range(6))
    pages = self.add(range(7))
    self.assertEqual(self.found(range(9))[0], 7)
    self.assertEqual(self.found(range(9))[1][1], pages[1])
    self.add(range(5))  # is there already
    self.assertEqual(self.found(range(9))[0], 7)
    self.assertEqual(self.pool.num_free, 10)
    self.check()

  def test_the_least_recently_used_leaf_is_evicted_first(self):
    first, second = self.add(range(8)), self.add(range(50, 58))
    self.tree.touch(self.tree.match_prefix(tokens(*range(8))).nodes)
    self.tree.evict(1)
    self.assertEqual(self.found(range(50, 58)), (4, second[:1]))
    self.tree.evict(2)
    self.assertEqual(self.found(range(50, 58)), (0, []))
    self.assertEqual(self.found(range(8)), (4, first[:1]))
    self.assertEqual(self.tree.num_evicted, 3)
    self.check()

  def test_pages_in_use_are_not_evicted(self):
    pages = self.pool.take(3)
    self.tree.insert(tokens(*range(10)), pages)
    self.add(range(50, 54))
    self.assertEqual(self.tree.num_evictable, 1)
    self.tree.evict(4)
    self.assertEqual(self.found(range(10)), (10, pages))
    self.check(pages)
    self.pool.release(pages)
    self.assertEqual(self.tree.num_evictable, 3)

  def test_pages_above_another_sequence_can_be_had(self):
    """The second sequence has a page of its own for the first tokens."""
    self.add(range(4))
    pages = self.pool.take(2)
    self.tree.insert(tokens(*range(8)), pages)
    self.assertEqual((self.tree.num_evictable, self.pool.num_free), (1, 9))
    self.tree.evict(1)
    self.assertEqual(self.pool.num_free, 10)
    self.check(pages)

  def test_other_weights_find_nothing(self):
    self.tree.set_weights(1)
    pages = self.pool.take(2)
    self.tree.insert(tokens(*range(8)), pages)
    self.tree.set_weights(1)
    self.assertEqual(self.found(range(8))[0], 8)
    self.tree.set_weights(2)
    self.assertEqual(self.found(range(8)), (0, []))
    self.check(pages)

  def test_random_sequences_lose_no_page(self):
    rng, running = np.random.default_rng(1), []
    for _ in range(3000):
      if running and rng.random() < 0.5:
        values, pages = running.pop(int(rng.integers(len(running))))
        if rng.random() < 0.7:
          self.tree.insert(tokens(*values), pages)
        self.pool.release(pages)
      else:
        values = rng.integers(0, 2, rng.integers(1, 17)).tolist()
        match = self.tree.match_prefix(tokens(*values))
        self.tree.touch(match.nodes)
        shared = [n.page for n in match.nodes[: match.size // SIZE]]
        self.pool.share(shared)
        number = -(-len(values) // SIZE) - len(shared)
        self.tree.evict(number - self.pool.num_free)
        if number > self.pool.num_free:
          self.pool.release(shared)
        else:
          running.append((values, shared + self.pool.take(number)))
      self.check(*(pages for _, pages in running))
    self.assertGreater(self.tree.num_evicted, 100)
