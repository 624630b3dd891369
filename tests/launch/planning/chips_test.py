"""Slices by their names, and the links between their chips."""

import collections
import re
import unittest

import jax
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from launch.planning import chips
from launch.planning.chips import CHIPS, GIB, parse_slice, rentable
from launch.planning.compiler.collectives import Collective
from launch.planning.roofline import bandwidth, roofline
from launch.planning.study import Deployment


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
    ("v6e-1", "v6e:1x1", 1),
    ("v5e:1x1", "v5e:1x1", 1),
    ("v5p-384", "v5p:4x4x12", 192),
    ("v5p:12x4x4", "v5p:4x4x12", 192),
    ("v5p-4096", "v5p:8x16x16", 2048),
    ("v5p-12288", "v5p:16x16x24", 6144),
    ("v4-32", "v4:2x2x4", 16),
    ("tpu7x-8", "tpu7x:2x2x1", 4),
    ("v7x-128", "tpu7x:4x4x4", 64),
    ("2xv5p-64", "2xv5p:2x4x4", 64),
    ("3xv6e:4x4", "3xv6e:4x4", 48),
    ("1xv5p-8", "v5p:2x2x1", 4),
  )
  def test_names_count_cores_or_chips(self, name, called, chips):
    found = parse_slice(name)
    self.assertEqual((found.name, found.num_chips), (called, chips))

  @parameterized.parameters(
    ("h100-8", "no known chip"),
    ("v5p-63", r"cannot be rented; .* v5p:2x2x4 \(v5p-32\), v5p:2x4x4 .v5p-64"),
    ("v5e:3x5", "v5e:2x4 .v5e-8."),
    # Of 64 cubes there is a better shape, by which v5p-8192 is known.
    ("v5p:4x4x256", r"cannot be rented; .*v5p:16x16x16 \(v5p-8192\)"),
    ("v5p-999999", r"v5p:16x16x24 \(v5p-12288\)"),
    ("v5p", "no name of a slice"),
    ("0xv5p-8", "no name of a slice"),
    ("2xv5p-64x2", "no name of a slice"),
    ("v5p:4x4x4junk", "no name of a slice"),
    ("v5p:4x4x4 ", "no name of a slice"),
    ("v5p-64-spot", "no name of a slice"),
    ("junk v5e:2x4", "no name of a slice"),
    ("v5e:2xx4", "no name of a slice"),
    ("v5e-08", "no name of a slice"),
    ("2x2xv5e-8", "no name of a slice"),
    ("", "no name of a slice"),
  )
  def test_slice_that_is_not_rented_is_refused(self, name, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      parse_slice(name)

  def test_every_slice_is_called_by_both_of_its_names(self):
    for one in rentable():
      self.assertEqual(parse_slice(one.rented_as), one)
      self.assertEqual(parse_slice(one.name), one)
      for count in (2, 16):
        several = parse_slice(f"{count}x{one.rented_as}")
        self.assertEqual(parse_slice(several.name), several)
        self.assertEqual(several.num_chips, count * one.num_chips)
        self.assertFalse(several.is_one_host)

  def test_names_tell_the_number_of_cores_or_chips(self):
    self.assertEqual({one.chip.name for one in rentable()}, set(CHIPS))
    for one in rentable():
      kind, _, number = one.rented_as.partition("-")
      self.assertEqual(kind, one.chip.name)
      self.assertEqual(int(number), one.num_chips * one.chip.cores)
      self.assertIn(one.num_chips / one.num_hosts, (1, 4, 8))
      self.assertEqual(one.dims, tuple(sorted(one.dims, key=_two_by_two)))

  def test_grids_of_three_axes_are_of_cubes(self):
    cubes = collections.defaultdict(set)
    for one in rentable():
      if len(one.dims) == 3 and one.num_chips >= 64:
        self.assertEqual([size % 4 for size in one.dims], [0, 0, 0])
        self.assertLessEqual(max(one.dims), 256)
        # The longest side is as short as it can be, and then the second.
        flattest = min(_boxes(one.num_chips // 64), key=lambda box: box[::-1])
        self.assertEqual(one.dims, tuple(4 * size for size in flattest))
        cubes[one.chip.name].add(one.num_chips // 64)
    for kind, most in (("v4", 64), ("v5p", 96), ("tpu7x", 144)):
      # With a large prime factor they make a slice that is too long.
      missing = set(range(1, most + 1)) - cubes[kind]
      self.assertTrue(all(_has_large_prime(n) for n in missing), missing)
      self.assertEqual(max(cubes[kind]), most)

  @parameterized.parameters("2xv5p-8", "2xv5p:2x2x1")
  def test_a_rollout_server_is_one_slice(self, name):
    with self.assertRaisesRegex(ConfigError, "2xv5p-8: a rollout server is in"):
      Deployment(learner=parse_slice("v5p-8"), rollout=parse_slice(name))


def _boxes(volume: int):
  """Boxes of whole sides, which ascend."""
  for a in range(1, round(volume ** (1 / 3)) + 1):
    for b in range(a, volume // a + 1):
      if volume % (a * b) == 0 and volume // (a * b) >= b:
        yield a, b, volume // (a * b)


def _two_by_two(size: int) -> int:
  """2x2x1 is the one shape that does not ascend."""
  return -1 if size == 2 else size


def _has_large_prime(number: int) -> bool:
  for prime in (2, 3, 5, 7):
    while number % prime == 0:
      number //= prime
  return number > 64


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class DescribedTest(parameterized.TestCase):
  @parameterized.parameters(
    "v4-8",
    "v4-384",
    "v5e-1",
    "v6e-1",
    "v5e-8",
    "v6e-256",
    "v5p-8",
    "v5p-384",
    "v5p-4096",
    "v5p-12288",
    "tpu7x-8",
    "tpu7x-384",
    "2xv4-8",
    "3xv5e-16",
    "2xv6e-1",
    "2xv5p-64",
    "2xtpu7x-8",
  )
  def test_the_compiler_sees_the_devices_of_each_slice(self, name):
    found = parse_slice(name)
    devices = chips.describe(found)
    self.assertLen(devices, found.num_devices)
    in_slice = collections.Counter(
      getattr(device, "slice_index", None) or 0 for device in devices
    )
    self.assertLen(in_slice, found.num_slices)
    places = chips.coordinates(devices)
    self.assertLen(places, found.num_devices // found.num_slices)
    largest = tuple(max(axis) + 1 for axis in zip(*places, strict=True))
    self.assertEqual(largest[: len(found.dims)], found.dims)

  @parameterized.parameters("v4-8", "v5e-1", "v5p-8", "v6e-1", "tpu7x-8")
  @pytest.mark.slow
  def test_memory_is_what_the_compiler_grants(self, name):
    found = parse_slice(name)
    mesh = sharding.make_mesh({}, chips.describe(found)[:1])
    where = sharding.replicated(mesh)
    shape = jax.ShapeDtypeStruct((2**28, 512), "bfloat16", sharding=where)
    traced = jax.jit(lambda x: x + 1).trace(shape)
    with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "HBM") as refused:
      traced.lower(lowering_platforms=("tpu",)).compile()
    (granted,) = set(
      re.findall(r"available HBM \(([\d.]+)G", str(refused.exception))
    )
    self.assertEqual(int(float(granted) * GIB), found.chip.memory)


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
    crosses = Collective(
      "all-reduce", (1, 2), 3.125e9, 3, "", is_overlapped=True, num_slices=2
    )
    bound = roofline(
      found.chip,
      executed_flops=1.97e14,
      moved=1.62e12,
      exchanges=[sent, crosses],
      slice_=found,
      coordinates=[(0, 0, 0), (1, 0, 0)],
    )
    self.assertEqual(
      (bound.compute_s, bound.memory_s, bound.links_s), (1.0, 2.0, 4.0)
    )
    self.assertEqual(
      (bound.network_s, bound.step_s, bound.binds, bound.in_turn_s),
      (3.0, 4.0, "links", 10.0),
    )

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

  def test_the_devices_of_a_chip_share_its_links(self):
    """One device a chip has half of the links; both together have all."""
    found = parse_slice("tpu7x-128")
    link = found.chip.link_bandwidth
    ring = [(n, 0, 0) for n in range(4)]
    groups = (ring, [*ring, *ring], [(1, 2, 3)] * 2)
    self.assertEqual(
      [bandwidth(found, group) for group in groups],
      [2 * link / 2, 2 * link, 6 * link],
    )
