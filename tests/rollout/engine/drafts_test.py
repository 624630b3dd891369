"""Drafts against a search by brute force, and the choice of slots."""

import jax
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.rollout.engine import drafts as drafting

LENGTH, NUM_TOKENS, VOCAB = 48, 5, 3
ALL = 99  # tokens that a slot can use: more than any draft
NUM_SLOTS = 4  # of all drafts and proposals, so that each program compiles once
_propose = jax.jit(drafting.propose, static_argnums=4)
_append, _learn = jax.jit(drafting.append), jax.jit(drafting.learn)
_choose = jax.jit(drafting.choose_slots, static_argnums=1)


def started(sequences, groups=None):
  """Starts one slot after another."""
  drafts = drafting.empty_drafts(NUM_SLOTS, LENGTH)
  # So large that no two n-grams meet in one entry.
  shape = (len(drafting.ORDERS), 2**18)
  drafts = drafts.replace(index_OH=np.full(shape, -1, np.int32))
  groups = groups or [1] * len(sequences)
  for slot, (tokens, group) in enumerate(zip(sequences, groups, strict=True)):
    drafts = begin(drafts, slot, tokens, group)
  return drafts


def begin(drafts, slot, tokens, group=1):
  row = np.zeros((1, drafts.token_BL.shape[1]), np.int32)
  row[0, : len(tokens)] = tokens
  return drafting.begin(
    drafts,
    np.array([slot], np.int32),
    row,
    np.array([len(tokens)], np.int32),
    np.array([group], np.int32),
  )


def propose(drafts, slots, positions, most=ALL):
  """Proposes drafts; rows past the given ones are of slots that are none."""
  slot_P, position_P = np.full((2, NUM_SLOTS), 99, np.int32)
  slot_P[: len(slots)], position_P[: len(slots)] = slots, positions
  most_P = np.full(NUM_SLOTS, most, np.int32)
  proposal = _propose(drafts, slot_P, position_P, most_P, NUM_TOKENS)
  return jax.tree.map(np.asarray, proposal)


def draft_of(proposal, row=0):
  return np.asarray(proposal.token_PK)[row, : proposal.length_P[row]].tolist()


def searched(sequences, groups, slot):
  """Returns the draft of a slot, found in plain Python."""
  own, best = sequences[slot], (0, [])
  for order in drafting.ORDERS:
    # The place that was written last: the latest in the last slot.
    places = [
      (row, j)
      for row, tokens in enumerate(sequences)
      if groups[row] == groups[slot]
      for j in range(order, len(tokens))
      if tokens[j - order : j] == own[len(own) - order :]
    ]
    if len(own) < order or not places:
      continue
    row, j = places[-1]
    tokens, match = sequences[row], 0
    while (
      match < min(8, j, len(own)) and tokens[j - 1 - match] == own[-1 - match]
    ):
      match += 1
    after = tokens[j:]
    if row == slot:
      after = after * NUM_TOKENS
    if match > best[0]:
      best = (match, after[:NUM_TOKENS])
  return best


class ProposeTest(parameterized.TestCase):
  def test_drafts_are_those_of_a_search(self):
    rng = np.random.default_rng(0)
    num_drafts = 0
    for _ in range(12):
      sequences = [
        rng.integers(0, VOCAB, rng.integers(1, LENGTH)).tolist()
        for _ in range(4)
      ]
      groups = rng.integers(1, 3, 4).tolist()
      drafts = started(sequences, groups)
      ends = [len(tokens) - 1 for tokens in sequences]
      proposal = propose(drafts, range(4), ends)
      for slot in range(4):
        match, expected = searched(sequences, groups, slot)
        self.assertEqual(draft_of(proposal, slot), expected)
        self.assertEqual(int(proposal.match_P[slot]), match)
        num_drafts += bool(expected)
    self.assertGreater(num_drafts, 20)

  def test_sampled_tokens_count_as_a_longer_prompt(self):
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCAB, 40).tolist()
    drafts, end = started([tokens[:7], [0, 1]], [1, 2]), 6
    while end < 39:
      count = min(int(rng.integers(0, 4)), 39 - end)
      new = (tokens[end + 1 :] + [9] * 4)[:4]  # those past the count are not
      drafts = _append(
        drafts,
        # Of which only slot 0 exists.
        np.array([0, NUM_SLOTS], np.int32),
        np.array([end, 5], np.int32),
        np.array([new, new], np.int32),
        np.array([count, 3], np.int32),
      )
      end += count
    longer = started([tokens, [0, 1]], [1, 2])
    for name in ("token_BL", "length_B"):
      np.testing.assert_array_equal(
        getattr(drafts, name), getattr(longer, name)
      )
    rows = np.asarray(drafts.index_OH) % LENGTH
    np.testing.assert_array_equal(rows, np.asarray(longer.index_OH) % LENGTH)
    proposals = [propose(x, [0], [39]) for x in (drafts, longer)]
    self.assertEqual(*[draft_of(proposal) for proposal in proposals])

  def test_a_slot_at_its_own_end_goes_on_in_circles(self):
    drafts = started([[5, 6, 7, 5, 6, 7, 5, 6]])
    self.assertEqual(draft_of(propose(drafts, [0], [7])), [7, 5, 6, 7, 5])
    drafts = started([[4] * 6])
    self.assertEqual(draft_of(propose(drafts, [0], [5])), [4] * 5)

  def test_drafts_come_from_the_group_alone(self):
    sibling, own = [1, 2, 3, 4, 5, 6, 7, 8], [9, 3, 4]
    self.assertEqual(
      draft_of(propose(started([sibling, own]), [1], [2])), [5, 6, 7, 8]
    )
    for groups in ([1, 2], [-1, -2]):
      drafts = started([sibling, own], groups)
      self.assertEqual(draft_of(propose(drafts, [1], [2])), [])

  def test_a_row_that_starts_again_leaves_no_draft(self):
    drafts = started([[1, 2, 3, 4, 5], [9, 3, 4]])
    self.assertEqual(draft_of(propose(drafts, [1], [2])), [5])
    drafts = begin(drafts, 0, [7, 7])
    self.assertEqual(draft_of(propose(drafts, [1], [2])), [])

  def test_a_draft_is_no_longer_than_its_slot_can_use(self):
    drafts = started([[4] * 6])
    for most in (0, 1, 3):
      proposal = propose(drafts, [0], [5], most)
      self.assertEqual(draft_of(proposal), [4] * most)
      self.assertEqual(int((proposal.chance_PK > 0).sum()), most)

  def test_slots_that_do_not_exist_get_no_draft(self):
    drafts = started([[4] * 6], [0])
    proposal = propose(drafts, [0, NUM_SLOTS, 7], [5, 0, 5])
    self.assertEqual(proposal.length_P.tolist(), [5, 0, 0, 0])


def checked(drafts, slot, sampled, times=1):
  """Lets a slot sample tokens after its draft was looked up."""
  slot_P = np.array([slot, 99, 99, 99], np.int32)
  token_PC = np.zeros((NUM_SLOTS, NUM_TOKENS + 1), np.int32)
  token_PC[0, : len(sampled)] = sampled
  count_P = np.array([len(sampled), 0, 0, 0], np.int32)
  for _ in range(times):
    end = int(np.asarray(drafts.length_B)[slot]) - 1
    proposal = propose(drafts, [slot], [end])
    drafts = _learn(drafts, slot_P, proposal, token_PC, count_P)
  return drafts


class ChanceTest(absltest.TestCase):
  def setUp(self):
    self.drafts = started([[4] * 12, [4] * 12], [1, 2])

  def chances(self, drafts, slot):
    return np.asarray(propose(drafts, [slot], [11]).chance_PK)[0]

  def test_chances_fall_along_a_draft(self):
    chances = self.chances(self.drafts, 0)
    self.assertTrue((np.diff(chances) < 0).all(), chances)
    right = checked(self.drafts, 0, [4] * 6, times=99)
    chances = self.chances(right, 0)
    self.assertTrue((np.diff(chances) < 0).all(), chances)
    self.assertGreater(chances[-1], 0.8)

  def test_a_slot_whose_drafts_fail_expects_nothing_of_the_next(self):
    right = checked(self.drafts, 0, [4] * 6, times=30)
    drafts = checked(right, 1, [5], times=12)
    self.assertLess(self.chances(drafts, 1)[0], 0.3)
    self.assertGreater(self.chances(drafts, 0)[0], 0.6)
    # One token is sampled without a draft, and shows that it were right.
    again = checked(drafts, 1, [4], times=25)
    self.assertGreater(self.chances(again, 1)[0], 0.6)
    before = self.chances(drafts, 1)[0]
    new = begin(drafts, 1, [4] * 12, 2)
    self.assertGreater(self.chances(new, 1)[0], before)

  def test_tokens_after_a_wrong_one_are_not_checked(self):
    drafts = checked(self.drafts, 0, [5, 4, 4, 4, 4, 4])
    rates = np.asarray(drafts.rate_M)
    self.assertLess(rates[8], 0.5)
    self.assertAlmostEqual(float(np.asarray(drafts.hits_B)[0]), 2.0)
    self.assertAlmostEqual(float(np.asarray(drafts.expected_B)[0]), 2.5)
    drafts = checked(self.drafts, 0, [4, 4, 5])
    self.assertAlmostEqual(float(np.asarray(drafts.hits_B)[0]), 4.0)
    self.assertAlmostEqual(float(np.asarray(drafts.expected_B)[0]), 3.5)


class ChooseSlotsTest(absltest.TestCase):
  def choose(self, chance_PK, *, cost, num_active=None, sizes=(1, 2, 4)):
    chance_PK = np.asarray(chance_PK, np.float32)
    zero_P = np.zeros(len(chance_PK), np.int32)
    proposal = drafting.Proposal(
      token_PK=np.zeros(chance_PK.shape, np.int32),
      length_P=zero_P,
      match_P=zero_P,
      chance_PK=chance_PK,
    )
    active = len(chance_PK) if num_active is None else num_active
    choice, order_P = _choose(proposal, sizes, active, cost)
    size = (0, *sizes)[int(choice)]
    return sorted(np.asarray(order_P)[:size].tolist())

  def test_drafts_that_do_not_pay_are_not_computed(self):
    self.assertEqual(self.choose(np.zeros((4, 2)), cost=0.01), [])
    self.assertEqual(self.choose(np.full((4, 2), 0.3), cost=0.4), [])
    self.assertEqual(self.choose(np.full((4, 2), 0.9), cost=0.4), [0, 1, 2, 3])

  def test_slots_that_gain_most_are_chosen(self):
    chances = [[0.1, 0], [0.9, 0.9], [0.2, 0.1], [0.9, 0.8]]
    self.assertEqual(self.choose(chances, cost=0.4), [1, 3])
    self.assertEqual(self.choose(chances, cost=0.01), [0, 1, 2, 3])

  def test_the_most_tokens_per_time_are_chosen(self):
    rng = np.random.default_rng(2)
    for _ in range(40):
      chances = np.sort(rng.random((4, 3)), axis=1)[:, ::-1]
      cost, active = rng.uniform(0.05, 1), int(rng.integers(1, 5))
      gains = np.sort(chances.sum(axis=1))[::-1]
      speeds = [
        (active + gains[:size].sum()) / (1 + cost * size * 3 / 4)
        for size in (0, 1, 2, 4)
      ]
      chosen = self.choose(chances, cost=cost, num_active=active)
      self.assertLen(chosen, (0, 1, 2, 4)[int(np.argmax(speeds))])
