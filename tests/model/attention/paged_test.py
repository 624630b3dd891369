"""A decode step over pages is that over rows, and reads filled pages only."""

import dataclasses
import functools
import unittest
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from jax.sharding import SingleDeviceSharding

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import cache as kv
from agentrl_jax.model.attention import cached, paged
from agentrl_jax.model.policy import Policy
from launch.planning import chips
from launch.planning.chips import parse_slice
from tests import eight_devices
from tests.model import drawn
from tests.model.policy_test import CONFIG
from tests.settings import COMPUTE, compute_config

RAGGED = compute_config(cache_attention="ragged")
WRITE = jax.jit(kv.write)
LIST_WORK = jax.jit(
  paged.list_work,
  static_argnames=("page_size", "num_pages", "num_lists", "num_joined"),
)


def operands(lengths, heads, queries, size, width, channels, *, seed=0):
  """Queries, keys and values in pages that lie in no order, and the table."""
  rng, num_pages = np.random.default_rng(seed), len(lengths) * width + 3
  q = rng.normal(size=(len(lengths), heads, queries, channels))
  k, v = rng.normal(size=(2, num_pages, heads, size, channels))
  order = iter(rng.permutation(num_pages))
  table = np.full((len(lengths), width), num_pages, np.int32)
  for row, length in enumerate(lengths):
    for w in range(-(-length // size)):
      table[row, w] = next(order)
  q, k, v = (x.astype(np.float32) for x in (q, k, v))
  return q, k, v, table, np.array(lengths, np.int32)


def plain(q, k, v, table, length, sinks=None, window=0):
  """In float64, one sequence at a time; 0 for empty ones."""
  mixed, size = np.zeros(q.shape), k.shape[2]
  for row, end in enumerate(length):
    if end:
      pages = table[row, : -(-end // size)]
      keys, values = (np.concatenate(x[pages], axis=1) for x in (k, v))
      mixed[row] = by_numpy(q[row], keys, values, end, sinks, window)
  return mixed


def by_numpy(q_KGH, k_KSH, v_KSH, end, sinks=None, window=0):
  seen = slice(max(end - window, 0) if window else 0, end)
  q, k, v = (np.float64(x) for x in (q_KGH, k_KSH[:, seen], v_KSH[:, seen]))
  weight = np.exp(np.einsum("kgh,ksh->kgs", q, k) * q.shape[-1] ** -0.5)
  weight /= (weight.sum(-1) + (0 if sinks is None else np.exp(sinks)))[
    ..., None
  ]
  return np.einsum("kgs,ksh->kgh", weight, v)


ATTEND = functools.partial(
  jax.jit(paged.attend, static_argnames=("window", "interpret")), interpret=True
)


def attend(q, k, v, *places, **how):
  return ATTEND(q, (k, v), *places, **how)


class PagesTest(parameterized.TestCase):
  """The plain form, for which pages are copied to rows."""

  def setUp(self):
    super().setUp()
    self.pool = np.zeros((5, 2, 4, 3), np.float32)
    self.table = np.array([[3, 0, 5], [1, 5, 5]])
    rng = np.random.default_rng(0)
    self.entry = rng.normal(size=(2, 7, 2, 3)).astype(np.float32)

  def write(self, position, table):
    position = np.tile(position, (2, 1))
    return np.asarray(WRITE(self.pool, self.entry, position, table))

  def test_what_is_written_is_taken_in_order(self):
    pool, entry = self.write(np.arange(7), self.table), self.entry
    rows = jax.jit(kv.take_pages)(pool, self.table)
    self.assertEqual(rows.shape, (2, 2, 12, 3))
    wanted = np.zeros((2, 2, 12, 3))
    wanted[0, :, :7] = np.swapaxes(entry[0], 0, 1)
    wanted[1, :, :4] = np.swapaxes(entry[1, :4], 0, 1)  # there is one page
    np.testing.assert_allclose(rows, wanted, atol=1e-6)
    for page in (2, 4):
      self.assertFalse(np.any(pool[page]))

  def test_positions_past_the_table_are_dropped(self):
    table = np.array([[3, 0, 1], [1, 4, 2]])
    self.assertFalse(np.any(self.write([12, 13, 15, 16, 20, 24, 99], table)))

  @parameterized.parameters((0, 1), (3, 4), (0, 4))
  def test_windows_and_sinks_by_numpy(self, window, chunk):
    """One token by the kernel, several by the plain form; one by one here."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(3, chunk, 2, 2, 16)).astype(np.float32)
    k, v = rng.normal(size=(2, 3, 2, 512, 16)).astype(np.float32)
    sinks = np.float32([[0.5, -1.0], [3.0, 0.0]])
    position = np.array([[0], [255], [508]]) + np.arange(chunk)
    wanted = np.zeros(q.shape)
    for b, c in np.ndindex(position.shape):
      end = position[b, c] + 1
      wanted[b, c] = by_numpy(q[b, c], k[b], v[b], end, sinks, window)
    attend_cache = functools.partial(
      cached.attend, window=window, compute=RAGGED, mesh=None
    )
    pages = np.arange(3)[:, None]
    found = jax.jit(attend_cache)(q, (k, v), pages, position, sinks)
    np.testing.assert_allclose(found, wanted, atol=1e-6)

  @pytest.mark.slow
  def test_a_policy_extends_pages_as_rows(self):
    policy = Policy(CONFIG, COMPUTE)
    params, rng = policy.init(jax.random.key(0)), np.random.default_rng(0)
    table = jnp.array([[4, 1, 7], [2, 0, 8]])
    rows, pages = policy.empty_cache(2, 12), policy.empty_cache(9, 4)
    extend = jax.jit(policy.extend)
    start = jnp.zeros(2, jnp.int32)
    for chunk, length in ((5, [5, 3]), (1, [1, 0]), (3, [2, 3])):
      token = jnp.asarray(rng.integers(0, CONFIG.vocab_size, (2, chunk)))
      length = jnp.array(length)
      hidden, rows = extend(params, rows, token, start, length)
      other, pages = extend(params, pages, token, start, length, table)
      for row in range(2):
        np.testing.assert_allclose(
          other[row, : length[row]], hidden[row, : length[row]], atol=1e-6
        )
      start += length
    for (k, v), (pool_k, pool_v) in zip(rows, pages, strict=True):
      np.testing.assert_allclose(kv.take_pages(pool_k, table), k, atol=1e-6)
      np.testing.assert_allclose(kv.take_pages(pool_v, table), v, atol=1e-6)
    for page in (3, 5, 6, 8):
      self.assertFalse(np.any(pages[0][0][page]))


class KernelTest(parameterized.TestCase):
  @parameterized.parameters(
    ([512, 0, 1, 440], 2, 4, 128, 4, 64),
    ([1, 129, 384], 2, 1, 128, 3, 16),  # an odd number of sequences
    ([2560, 0, 1, 1024, 1025, 27], 1, 5, 128, 20, 32),
    ([256], 1, 5, 128, 2, 16),
    ([600, 1024], 2, 2, 512, 2, 16),
    ([0, 0, 0, 7], 1, 2, 128, 2, 16),  # one core has nothing to do
  )
  @pytest.mark.slow
  def test_equals_the_plain_form(self, lengths, *shape):
    q, k, v, table, length = operands(lengths, *shape)
    found = attend(q, k, v, table, length)
    np.testing.assert_allclose(
      found, plain(q, k, v, table, length), rtol=0, atol=1e-6
    )

  @parameterized.parameters(
    ([512, 0, 1, 440], 1, 4, 128, 4, 64, 5),
    ([2560, 0, 1, 1024, 1025, 1535], 2, 5, 512, 5, 32, 512),
  )
  def test_windows_and_sinks(self, lengths, *shape_and_window):
    """Pages that the window does not touch are not looked at."""
    *shape, window = shape_and_window
    q, k, v, table, length = operands(lengths, *shape)
    sinks = np.random.default_rng(1).normal(size=q.shape[1:3])
    sinks = sinks.astype(np.float32)
    wanted = plain(q, k, v, table, length, sinks, window)
    for row, size in zip(table, length, strict=True):
      block = 1024 // shape[2] * shape[2]  # of pages that are read together
      unseen = max(size - window, 0) // block * block // shape[2]
      k[row[: unseen if window else 0]] = np.nan
    found = attend(q, k, v, table, length, sinks, window=window)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)

  def test_empty_sequences_give_zeros(self):
    arrays = operands([0, 0], 1, 2, 128, 4, 16)
    self.assertFalse(np.any(attend(*arrays)))

  def test_other_pages_are_not_looked_at(self):
    q, k, v, table, length = operands([130, 128], 1, 2, 128, 4, 16)
    wanted = plain(q, k, v, table, length)
    unused = np.setdiff1d(np.arange(len(k)), table)
    k[unused], v[unused] = np.nan, np.nan
    found = attend(q, k, v, table, length)
    np.testing.assert_allclose(found, wanted, atol=1e-6)

  def test_keys_may_be_their_own_values(self):
    q, k, _, table, length = operands([130, 300], 1, 3, 128, 3, 24)
    found = ATTEND(q, (k,), table, length)
    wanted = plain(q, k, k, table, length)
    np.testing.assert_allclose(found, wanted, atol=1e-6)

  @pytest.mark.slow
  def test_pages_may_be_shared(self):
    q, k, v, table, length = operands([300, 290, 0, 129], 2, 2, 128, 3, 16)
    table[1, :2] = table[3, :2] = table[0, :2]
    found = attend(q, k, v, table, length)
    wanted = plain(q, k, v, table, length)
    np.testing.assert_allclose(found, wanted, atol=1e-6)

  def listed(self, table, lengths, size, num_lists=1, num_joined=1):
    """Blocks to compute by list, as (sequence, positions, pages)."""
    work = LIST_WORK(
      table,
      np.array(lengths),
      page_size=size,
      num_pages=99,
      num_lists=num_lists,
      num_joined=num_joined,
    )
    blocks = [
      list(zip(*rows, strict=True))
      for rows in zip(
        np.asarray(work.row_CM).tolist(),
        np.asarray(work.filled_CM).tolist(),
        np.asarray(work.page_CMJ).tolist(),
        strict=True,
      )
    ]
    self.assertLen(blocks, num_lists)
    return [rows[: int(work.num_blocks)] for rows in blocks]

  def test_work_is_what_sequences_fill(self):
    table = np.array([[7, 99], [99, 99], [2, 5], [99, 99], [99, 99], [4, 99]])
    cores = self.listed(table, [900, 0, 1030, 0, 0, 1], 1024, num_lists=2)
    # A block of a page; those of the first three sequences, then of the others.
    # Behind the end of a list nothing changes, so nothing is fetched.
    self.assertEqual(cores[0], [(2, 1030, [2]), (2, 6, [5]), (0, 900, [7])])
    self.assertEqual(cores[1], [(2, 1, [4]), *cores[1][1:]])
    for _, filled, pages in cores[1][1:]:
      self.assertEqual((filled, pages), (0, [4]))

  def test_pages_past_the_end_are_those_before(self):
    """A step of the grid that asks for the page before it fetches nothing."""
    table = np.array([[3, 4, 5, 6], [1, 2, 99, 99], [7, 99, 99, 99]])
    (blocks,) = self.listed(table, [512, 130, 1], 128, num_joined=4)
    self.assertEqual(
      [
        [row for row, *_ in blocks],
        blocks[0][2][:2],
        *[b[2] for b in blocks[1:3]],
      ],
      [[1, 0, 2], [1, 2], [3, 4, 5, 6], [7, 4, 5, 6]],
    )

  def test_shared_pages_come_one_after_another(self):
    """So the kernel fetches them once for all of their sequences."""
    own = iter(range(20, 99))
    prompt = list(range(8))
    table = np.array(
      [[*prompt, *(next(own) for _ in range(8))] for _ in range(5)]
    )
    (blocks,) = self.listed(table, [2000] * 5, 128, num_joined=8)
    self.assertEqual([pages for *_, pages in blocks[:5]], [prompt] * 5)
    self.assertEqual(sorted(row for row, *_ in blocks[5:]), list(range(5)))

  @parameterized.parameters(
    ((128, 2, 5, 128), 2),
    ((127, 2, 5, 128), 1),
    ((1, 8, 8, 128), 1),
    ((192, 8, 4, 128), 6),
    ((512, 8, 8, 128), 16),
  )
  def test_a_list_has_no_more_sequences_than_fit(self, shape, number):
    queries = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    self.assertEqual(paged._num_lists(queries), number)

  @pytest.mark.slow
  def test_heads_may_be_on_several_devices(self):
    found = eight_devices.run("tests.model.attention.paged_program")
    self.assertEqual(found["devices"], 4)
    self.assertLess(found["apart"], 1e-6)


class ChoiceTest(parameterized.TestCase):
  @parameterized.parameters(
    ("auto", "tpu", 256, "ragged", ""),
    (
      "auto",
      "tpu",
      64,
      "xla",
      "a multiple of 128 positions, and these have 64",
    ),
    ("auto", "cpu", 128, "xla", ""),
    ("auto", "gpu", 128, "xla", ""),
    ("xla", "tpu", 128, "xla", ""),
    ("ragged", "cpu", 128, "ragged", ""),
  )
  def test_by_platform(self, asked, platform, size, chosen, reason):
    compute = compute_config(cache_attention=asked)
    found, why = cached.choose(compute, platform, size)
    self.assertEqual(found, chosen)
    self.assertIn(reason, why)
    self.assertEqual(bool(why), bool(reason))

  def test_what_cannot_be_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "engine.page_size be such a"):
      cached.choose(RAGGED, "tpu", 100)

  def test_a_policy_uses_the_kernel(self):
    """Its answers over pages of 128 are those of the plain form."""
    config = dataclasses.replace(CONFIG, num_layers=1)
    plain_policy, policy = Policy(config, COMPUTE), Policy(config, RAGGED)
    params = drawn.fill(policy.abstract_params())
    arguments = (
      np.array([[7], [8]]),
      np.array([0, 0]),
      np.array([1, 1]),
      np.array([[1, 3], [2, 4]]),
    )
    cache = policy.empty_cache(4, 128)
    with mock.patch.object(paged, "attend", wraps=paged.attend) as kernel:
      hidden = [
        jax.jit(p.extend)(params, cache, *arguments)[0]
        for p in (plain_policy, policy)
      ]
    self.assertEqual(kernel.call_count, 1)
    np.testing.assert_allclose(*hidden, atol=1e-5)


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class CompiledTest(parameterized.TestCase):
  @parameterized.product(
    name=("v5e:2x2", "v5p:2x2x1", "v6e:2x2"),
    shape=((128, 2, 5, 3072), (256, 8, 8, 512)),
  )
  @pytest.mark.slow
  def test_for_a_tpu(self, name, shape):
    """Compiled as it is; and nothing copies the pool to suit the kernel."""
    device = chips.describe(parse_slice(name))[0]
    slots, heads, queries, pages = shape

    def operand(*shape, dtype=jnp.bfloat16):
      return jax.ShapeDtypeStruct(
        shape, dtype, sharding=SingleDeviceSharding(device)
      )

    compiled = (
      jax.jit(functools.partial(paged.attend, window=300, interpret=False))
      .trace(
        operand(slots, heads, queries, 128),
        (operand(pages, heads, 128, 128),) * 2,
        operand(slots, 64, dtype=jnp.int32),
        operand(slots, dtype=jnp.int32),
        operand(heads, queries),  # sinks
      )
      .lower(lowering_platforms=("tpu",))
      .compile()
    )
    self.assertIn("paged_attention", compiled.as_text())
    self.assertLess(compiled.memory_analysis().temp_size_in_bytes, 2**23)
