"""Tests of `bench.system.layouts`: bounds, ties and searches."""

import dataclasses
import pathlib
import unittest
from unittest import mock

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agentrl_jax.errors import ConfigError
from bench.system import layouts, pipeline
from launch.reports import measured

ROOT = pathlib.Path(__file__).parents[3]
ALIKE = layouts.Setting(
  ratio=1.0, sigma=0.0, fixed=0.5, devices=8, switch=0.0, seed=0, steps=4
)


def setting(**changes):
  return dataclasses.replace(ALIKE, **changes)


def rows_of(found):
  return {(row.arm, row.max_staleness): row for row in found}


class LayoutsTest(unittest.TestCase):
  def test_equal_episodes_and_costs_leave_nothing_to_gain(self):
    """The old bench, with a baseline that idles, had twice the speed here."""
    rows = rows_of(layouts.compare(ALIKE, [1, 4]))
    colocated = rows["colocated", 0]
    self.assertAlmostEqual(colocated.share_of_bound, 1.0)
    self.assertEqual(colocated.speed_up, 1.0)
    for most in (1, 4):
      self.assertAlmostEqual(rows["asynchronous", most].speed_up, 1.0)
      self.assertEqual(rows["asynchronous", most].playing, 4)
    self.assertAlmostEqual(rows["split", 0].speed_up, 0.5)
    self.assertAlmostEqual(rows["oversampled", 0].speed_up, 1.0)

  def test_an_odd_ratio_of_alike_episodes_costs_the_asynchronous_one(self):
    rows = rows_of(layouts.compare(setting(ratio=4.0, devices=2), [1]))
    self.assertAlmostEqual(rows["colocated", 0].share_of_bound, 1.0)
    self.assertLess(rows["asynchronous", 1].speed_up, 0.7)  # 1 + 1 of 4 : 1

  def test_uneven_episodes_are_what_there_is_to_gain(self):
    rows = rows_of(layouts.compare(setting(sigma=1.0), [1, 4]))
    self.assertLess(rows["colocated", 0].share_of_bound, 0.75)
    self.assertGreater(rows["asynchronous", 4].speed_up, 1.3)
    self.assertLess(rows["asynchronous", 1].rate, rows["asynchronous", 4].rate)
    oversampled = rows["oversampled", 0]
    self.assertGreater(oversampled.speed_up, 1.05)
    self.assertLess(oversampled.length, 0.98)  # what it costs
    self.assertGreater(oversampled.cut_off, 0.19)

  def test_changing_over_has_its_price(self):
    rows = rows_of(layouts.compare(setting(switch=0.25), []))
    self.assertAlmostEqual(rows["colocated", 0].share_of_bound, 1 / 1.25)
    dear = rows_of(layouts.compare(setting(switch=3.0), []))
    self.assertLess(dear["colocated", 0].speed_up, 1.0)
    self.assertEqual(dear["split", 0].speed_up, 1.0)

  def test_few_sequences_on_many_devices_are_slow(self):
    rows = rows_of(layouts.compare(setting(devices=16), [1]))
    # Half of the places are taken: 0.75 of the time for half of the work.
    self.assertAlmostEqual(rows["colocated", 0].share_of_bound, 2 / 2.5)
    self.assertAlmostEqual(rows["asynchronous", 1].speed_up, 1.25)

  @settings(
    deadline=None,
    database=None,
    max_examples=8,
    phases=[Phase.generate],  # to shrink a failure takes minutes
  )
  @given(
    ratio=st.floats(0.2, 5.0),
    fixed=st.floats(0.0, 1.0),
    devices=st.integers(2, 9),
    max_staleness=st.integers(0, 3),
    data=st.data(),
  )
  def test_no_bound_is_exceeded(
    self, ratio, fixed, devices, max_staleness, data
  ):
    of = setting(ratio=ratio, fixed=fixed, devices=devices, steps=4)
    playing = data.draw(st.integers(1, devices - 1))
    # From the very start, since a window may find finished groups.
    with mock.patch.object(pipeline, "WARM_UP", 0):
      for layout in (
        layouts.colocated(of),
        layouts.split(of, playing),
        layouts.asynchronous(of, playing, max_staleness),
      ):
        rate = pipeline.simulate(layout.pipeline).rate
        self.assertLessEqual(rate, layout.bound * (1 + 1e-9), layout)
        least = layouts.BATCH / of.least_s
        self.assertLessEqual(layout.bound, least * (1 + 1e-9))

  def test_the_search_finds_what_all_simulations_find(self):
    of = setting(sigma=1.0, ratio=3.0, devices=4)
    all_of_them = [layouts.asynchronous(of, k, 2) for k in range(1, 4)]
    rates = [pipeline.simulate(each.pipeline).rate for each in all_of_them]
    layout, found = layouts.best(all_of_them)
    self.assertEqual(found.rate, max(rates))
    self.assertEqual(layout.playing, 1 + rates.index(max(rates)))

  def test_equal_seeds_give_equal_rows(self):
    of = setting(sigma=1.0, devices=2, steps=1)
    first = list(layouts.compare(of, [2]))
    self.assertEqual(first, list(layouts.compare(of, [2])))
    other = list(layouts.compare(dataclasses.replace(of, seed=1), [2]))
    self.assertNotEqual([row.rate for row in first], [r.rate for r in other])

  def test_the_table_has_a_column_for_each_arm(self):
    found = list(layouts.compare(setting(devices=2, steps=1), [1, 3]))
    rows = list(map(dataclasses.asdict, found))
    head, _, line = measured.table(rows, layouts.words([1, 3])).splitlines()
    self.assertIn("| max_staleness 1 | max_staleness 3 |", head)
    self.assertIn("(1 play) | 1.00 (1 play) |", line)

  @pytest.mark.slow
  def test_what_is_kept_is_simulated_again(self):
    path = ROOT / "studies/evidence/asynchronous_layouts.csv"
    kept = [
      row["rate"]
      for row in measured.read(path)
      if (row["ratio"], row["sigma"]) == ("1", "1")
    ]
    again = layouts.compare(setting(sigma=1.0, steps=40), [1, 2, 4])
    self.assertEqual([f"{row.rate:.6g}" for row in again], kept)

  def test_one_device_has_no_asynchronous_layout(self):
    with self.assertRaisesRegex(ConfigError, "2 or more"):
      setting(devices=1)
    with self.assertRaisesRegex(ConfigError, "above 0"):
      setting(ratio=0.0)


if __name__ == "__main__":
  unittest.main()
