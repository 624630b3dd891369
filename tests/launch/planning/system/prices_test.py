"""Prices: their table, flags that replace it, and sums over slices."""

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from launch.planning.chips import CHIPS, parse_slice
from launch.planning.system.prices import LIST_PRICES, read_prices

LEARNER, SERVER = parse_slice("v5p-64"), parse_slice("v6e-8")


class PricesTest(parameterized.TestCase):
  def test_only_known_chips_have_one(self):
    self.assertLessEqual(set(LIST_PRICES), set(CHIPS))

  def test_all_chips_of_all_slices_count(self):
    prices = read_prices([])
    # v5p-64 are 64 cores of 32 chips, v6e-8 are 8 chips.
    self.assertAlmostEqual(
      prices.per_hour([LEARNER, SERVER, SERVER]), 32 * 4.2 + 16 * 2.7
    )

  def test_a_flag_replaces_one_price(self):
    prices = read_prices(["v5p=2"])
    self.assertAlmostEqual(
      prices.per_hour([LEARNER, SERVER]), 32 * 2.0 + 8 * 2.7
    )
    told = prices.source([LEARNER, SERVER])
    self.assertIn("v5p $2.00, v6e $2.70 per chip-hour", told)
    self.assertRegex(told, "--price; .*2026-11-23")

  def test_a_source_that_gave_no_price_is_not_named(self):
    self.assertNotIn("list", read_prices(["v5p=2"]).source([LEARNER]))
    self.assertNotIn("--price", read_prices(["v5p=2"]).source([SERVER]))

  @parameterized.parameters(
    ("v3=3", "names the chip 'v3'; there are v4, v5e, v5p, v6e"),
    ("v5p", "must end in dollars"),
    ("v5p=", "must end in dollars"),
    ("v5p=four", "must end in dollars"),
    ("v5p=0", "a number above 0"),
    ("v5p=-1", "a number above 0"),
    ("v5p=nan", "a number above 0"),
    ("v5p=inf", "a number above 0"),
  )
  def test_wrong_ones_are_sentences(self, given, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      read_prices([given])

  def test_two_prices_of_a_chip_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "v5p twice"):
      read_prices(["v5p=2", "v5p=3"])

  def test_a_chip_without_a_price_is_asked_for_by_its_flag(self):
    slices = [parse_slice("v5e-8"), parse_slice("tpu7x-8")]
    with self.assertRaisesRegex(ConfigError, "--price=tpu7x=DOLLARS"):
      read_prices([]).require(slices)
    read_prices(["tpu7x=9.5"]).require(slices)
