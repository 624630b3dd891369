"""Merges against those of mergekit 0.1.5 and of the RAM paper's own code.

`make_merge_vectors.py` recorded what they made of random arrays.
"""

import json
import pathlib

import numpy as np
from absl.testing import parameterized

from studies.merge_rules import MergeRule, Overlap, merge, overlaps

_FILE = pathlib.Path(__file__).with_name("merge_vectors.json")
_EXPERTS = ("a", "b", "c")
_EXACT = {"threshold": 1e-5}


class OriginalsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    recorded = json.loads(_FILE.read_text())
    self.theirs = recorded["merged"]
    self.models = {
      model: {name: np.array(x, np.float32) for name, x in arrays.items()}
      for model, arrays in recorded["models"].items()
    }

  def experts(self, array):
    return {expert: self.models[expert][array] for expert in _EXPERTS}

  def whole(self, rule):
    found = dict.fromkeys(_EXPERTS, Overlap())
    for name, base in self.models["base"].items():
      for expert, counted in overlaps(base, self.experts(name), rule).items():
        found[expert] += counted
    return found

  @parameterized.parameters(
    ("task_arithmetic", {"name": "task_arithmetic", "scale": 0.7}),
    ("ties", {"name": "ties", "scale": 0.7, "keep": 0.5}),
    ("ram", {"name": "ram"}),
    ("ram of the paper", {"name": "ram"}),
    ("ram_plus", {"name": "ram_plus", "boost": 1.2}),
  )
  def test_the_same_numbers(self, key, fields):
    rule = MergeRule(**fields, **_EXACT)
    whole = self.whole(rule)
    for name, base in self.models["base"].items():
      ours = merge(base, self.experts(name), rule, whole=whole)
      np.testing.assert_allclose(ours, self.theirs[key][name], atol=1e-6)

  def test_dare_keeps_a_share_and_its_mean(self):
    base = np.zeros(100_000, np.float32)
    experts = {"a": np.ones_like(base), "b": np.ones_like(base)}
    found = merge(base, experts, MergeRule(name="dare", keep=0.25))
    self.assertAlmostEqual(found.mean(), 2.0, delta=0.05)
    self.assertEqual(set(np.unique(found)), {0.0, 4.0, 8.0})

  def test_bfloat16_counts_what_storage_would_keep(self):
    base = np.array([1.0, 1.0], np.float32)
    expert = np.array([1.0 + 1e-4, 1.1], np.float32)
    found = overlaps(base, {"a": expert}, MergeRule())
    self.assertEqual(found, {"a": Overlap(unique=1, shared=0, total=2)})
