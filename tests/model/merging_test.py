"""Merges against their papers' formulas, and what no merge may do."""

import itertools

import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.merging import RULES, MergeRule, Overlap, merge, overlaps

EXACT = MergeRule(changed="threshold", threshold=0.0)


def f32(*numbers: float) -> np.ndarray:
  return np.array(numbers, np.float32)


def whole(base, experts, rule):
  return overlaps(base, experts, rule) if rule.name == "ram_plus" else None


def merged(base, experts, **fields):
  rule = MergeRule(**{"changed": "threshold", "threshold": 1e-5} | fields)
  return merge(base, experts, rule, whole=whole(base, experts, rule))


class MergingTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    dice = np.random.default_rng(0)
    self.base = dice.normal(size=(7, 5)).astype(np.float32)
    self.experts = {
      name: (self.base + dice.normal(size=(7, 5)) * dice.integers(0, 2, (7, 5)))
      .astype(np.float32)
      for name in ("a", "b", "c")
    }  # fmt: skip

  def test_formulas_by_hand(self):
    base = f32(1.0, 1.0, 1.0, 1.0)
    experts = {"a": f32(3.0, 2.0, 1.0, 1.0), "b": f32(0.0, 1.0, 1.0, 5.0)}
    for fields, expected in (
      ({"name": "mean"}, (1.5, 1.5, 1.0, 3.0)),
      ({"name": "task_arithmetic", "scale": 0.5}, (1.5, 1.5, 1.0, 3.0)),
      # Signs disagree at the first entry: +2 has more mass than -1.
      ({"name": "ties", "keep": 1.0}, (3.0, 2.0, 1.0, 5.0)),
      # Half of each: 2 and 1 of a, 4 and -1 of b.
      ({"name": "ties", "keep": 0.25}, (3.0, 1.0, 1.0, 5.0)),
      ({"name": "ram"}, (1.5, 2.0, 1.0, 5.0)),
      # Each has one shared entry and one unique: both are boosted whole.
      ({"name": "ram_plus", "boost": 1.5}, (1.5, 2.5, 1.0, 7.0)),
    ):
      with self.subTest(**fields):
        np.testing.assert_allclose(merged(base, experts, **fields), expected)

  @parameterized.parameters(*RULES)
  def test_the_order_of_experts_changes_no_bit(self, name):
    results = [
      merged(self.base, dict(order), name=name)
      for order in itertools.permutations(self.experts.items())
    ]
    for each in results[1:]:
      np.testing.assert_array_equal(each, results[0])

  def test_the_order_changes_nothing_where_sums_cancel(self):
    numbers = {"a": f32(1e30), "b": f32(1.0), "c": f32(-1e30)}
    results = {
      float(merged(f32(0.0), dict(order), name="mean")[0])
      for order in itertools.permutations(numbers.items())
    }
    self.assertLen(results, 1)

  @parameterized.parameters("mean", "ram", "task_arithmetic")
  def test_one_expert_is_itself(self, name):
    one = {"a": self.experts["a"]}
    rule = MergeRule(name=name, changed="threshold", threshold=0.0)
    np.testing.assert_array_equal(merge(self.base, one, rule), one["a"])

  @parameterized.parameters(*RULES)
  def test_equal_to_the_base_is_the_base(self, name):
    same = {"a": self.base, "b": self.base.copy()}
    np.testing.assert_array_equal(merged(self.base, same, name=name), self.base)

  @parameterized.product(name=RULES, changed=("bfloat16", "threshold"))
  def test_dtype_is_the_bases_and_all_is_finite(self, name, changed):
    experts = {name: x * 1e30 for name, x in self.experts.items()}
    found = merged(self.base, experts, name=name, changed=changed)
    self.assertEqual(found.dtype, np.float32)
    self.assertTrue(np.isfinite(found).all())

  def test_dare_keeps_a_share_and_its_mean(self):
    base = np.zeros(100_000, np.float32)
    experts = {"a": np.ones_like(base), "b": np.ones_like(base)}
    found = merged(base, experts, name="dare", keep=0.25)
    self.assertAlmostEqual(found.mean(), 2.0, delta=0.05)
    self.assertEqual(set(np.unique(found)), {0.0, 4.0, 8.0})

  def test_dare_draws_another_mask_for_each_array_and_expert(self):
    base = np.zeros(1000, np.float32)
    rule = MergeRule(name="dare", keep=0.5)
    found = [
      merge(base, {expert: base + 1}, rule, array_name=array)
      for expert in "ab"
      for array in ("w", "v")
    ]
    for one, other in itertools.combinations(found, 2):
      self.assertTrue((one != other).any())

  def test_bfloat16_counts_what_storage_would_keep(self):
    base, expert = f32(1.0, 1.0), f32(1.0 + 1e-4, 1.1)
    found = overlaps(base, {"a": expert}, MergeRule(changed="bfloat16"))
    self.assertEqual(found, {"a": Overlap(unique=1, shared=0, total=2)})

  def test_nothing_unique_is_no_division_by_zero(self):
    self.assertEqual(Overlap(unique=0, shared=9, total=9).boost(1.2), 1.2)
    same = {"a": self.base + 1, "b": self.base + 1}
    found = merged(self.base, same, name="ram_plus")
    np.testing.assert_allclose(found, self.base + 1, rtol=1e-6)

  def test_ram_of_experts_that_changed_everything_is_the_mean(self):
    """So it is for float32 and Adam: a threshold of 1e-5 tells nothing."""
    experts = {n: x + np.float32(0.01) for n, x in self.experts.items()}
    np.testing.assert_allclose(
      merged(self.base, experts, name="ram"),
      merged(self.base, experts, name="mean"),
      atol=1e-6,
    )

  @settings(max_examples=50, deadline=None)
  @given(
    st.sampled_from(RULES),
    st.lists(
      st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3),
      min_size=2,
      max_size=4,
    ),
  )
  def test_no_merge_is_outside_of_what_its_experts_allow(self, name, rows):
    base, *arrays = (np.array(row, np.float32) for row in rows)
    experts = {f"{n}": x for n, x in enumerate(arrays)}
    found = merged(base, experts, name=name, keep=1.0, boost=1.0)
    self.assertTrue(np.isfinite(found).all())
    if name not in ("task_arithmetic", "dare"):
      every = np.stack([base, *arrays]).astype(np.float64)
      margin = 1e-6 * np.abs(every).max() + 1e-6
      self.assertTrue((found >= every.min(axis=0) - margin).all())
      self.assertTrue((found <= every.max(axis=0) + margin).all())

  def test_what_cannot_be_merged_is_refused(self):
    for experts, words in (
      ({}, "at least one"),
      ({"a": np.zeros(3, np.float32)}, "one base"),
      ({"a": np.full((7, 5), np.nan, np.float32)}, "a has .* not finite"),
    ):
      with self.assertRaisesRegex(ConfigError, words):
        merge(self.base, experts, EXACT)
    for fields in ({"name": "best"}, {"keep": 0.0}, {"changed": "much"}):
      with self.assertRaises(ConfigError):
        MergeRule(**fields)
    with self.assertRaisesRegex(ConfigError, "exceeds float32: scale=1e"):
      merged(self.base, self.experts, name="task_arithmetic", scale=1e39)
    with self.assertRaisesRegex(ConfigError, "overlap"):
      merge(self.base, self.experts, MergeRule(name="ram_plus"))


if __name__ == "__main__":
  absltest.main()
