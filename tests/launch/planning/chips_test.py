"""Slices by their names, and the links between their chips."""

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from launch.planning.chips import CHIPS, parse_slice
from launch.planning.collectives import Collective
from launch.planning.roofline import bandwidth, roofline


class SlicesTest(parameterized.TestCase):
  @parameterized.parameters(
    ("v5p-64", "v5p:2x4x4", 32),
    ("v5p:4x4x2", "v5p:2x4x4", 32),
    ("v5p:4x4x4", "v5p:4x4x4", 64),
    ("v5p-8", "v5p:2x2x1", 4),
    ("v5e-64", "v5e:8x8", 64),
    ("v5litepod-16", "v5e:4x4", 16),
    ("v6e-256", "v6e:16x16", 256),
    ("v6e:4x2", "v6e:2x4", 8),
  )
  def test_names_count_cores_or_chips(self, name, called, chips):
    found = parse_slice(name)
    self.assertEqual((found.name, found.num_chips), (called, chips))

  @parameterized.parameters(
    ("h100-8", "no known chip"),
    ("v5p-63", "cannot be rented"),
    ("v5e:3x5", "v5e:2x4 .v5e-8."),
    ("v5p", "cannot be rented"),
  )
  def test_what_is_not_rented_is_refused(self, name, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      parse_slice(name)

  def test_every_slice_is_called_by_both_of_its_names(self):
    for chip in CHIPS.values():
      for shape in chip.shapes:
        found = parse_slice(f"{chip.name}:{shape}")
        self.assertEqual(parse_slice(found.rented_as), found)


class LinksTest(parameterized.TestCase):
  @parameterized.parameters(
    ("v5p:2x4x4", ((0, 0, 0), (1, 0, 0)), 1),  # one axis, which ends
    ("v5p:2x4x4", ((0, 0, 0), (1, 1, 1)), 3),
    ("v5p:4x4x4", ((0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)), 2),  # a ring
    ("v5p:4x4x4", ((0, 0, 0), (1, 0, 0)), 1),  # half of it
    ("v5e:4x4", ((0, 0, 0), (1, 1, 0)), 2),
    ("v6e:16x16", tuple((n, 0, 0) for n in range(16)), 2),
  )
  def test_groups_use_the_axes_that_they_span(self, name, members, links):
    found = parse_slice(name)
    self.assertEqual(
      bandwidth(found, members), links * found.chip.link_bandwidth
    )

  def test_the_longest_part_binds(self):
    found = parse_slice("v5e:2x4")
    sent = Collective("all-gather", (0, 1), 9e10, 2, "", is_overlapped=True)
    bound = roofline(
      found.chip,
      executed_flops=1.97e14,
      moved=1.62e12,
      exchanges=[sent],
      slice_=found,
      coordinates=[(0, 0, 0), (1, 0, 0)],
    )
    self.assertEqual(
      (bound.compute_s, bound.memory_s, bound.links_s), (1.0, 2.0, 4.0)
    )
    self.assertEqual((bound.step_s, bound.binds), (4.0, "links"))
    self.assertEqual(bound.in_turn_s, 7.0)

  def test_products_wait_for_synchronous_exchanges_alone(self):
    found = parse_slice("v5e:2x4")
    bound = roofline(
      found.chip,
      executed_flops=1.97e14,
      moved=0,
      exchanges=[
        Collective("all-gather", (0, 1), 4.5e10, 1, "", is_overlapped=True),
        Collective("all-reduce", (0, 1), 4.5e10, 2, "", is_overlapped=False),
      ],
      slice_=found,
      coordinates=[(0, 0, 0), (1, 0, 0)],
    )
    self.assertEqual((bound.links_s, bound.waiting_s), (3.0, 2.0))
    self.assertEqual(bound.step_s, 1.0 + 2.0)
