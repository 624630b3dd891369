"""Every kernel of attention says what a loop over tokens says."""

import functools
import unittest
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.attention import packed, reference, splash
from agentrl_jax.model.attention.packed import choose
from launch.planning import chips
from launch.planning.chips import parse_slice
from tests.model.attention.trees import random_ends
from tests.settings import compute_config

ROWS, LENGTH, KEYS, GROUP, CHANNELS = 2, 256, 2, 2, 32
VALUES = 24  # channels
WINDOW = 7


def _inputs(length=LENGTH, seed=0):
  """q, k, v, and segments that end within blocks; one row ends in padding."""
  rng = np.random.default_rng(seed)
  q = rng.normal(size=(ROWS, length, KEYS, GROUP, CHANNELS))
  k, v = rng.normal(size=(2, ROWS, length, KEYS, CHANNELS))
  segment = np.ones((ROWS, length), np.int32)
  segment[0, length // 3 :] = 2
  segment[0, -length // 5 :] = 0
  segment[1, length // 2 + 1 :] = 2
  return *(x.astype(np.float32) for x in (q, k, v[..., :VALUES])), segment


def _by_tokens(q, k, v, mark, is_tree):
  """In float64, one query at a time; 0 for padding."""
  out = np.zeros((*q.shape[:-1], VALUES))
  for b, t, n in np.ndindex(q.shape[:3]):
    if not mark[b, t]:
      continue
    before = mark[b, : t + 1]
    seen = np.flatnonzero(t < before if is_tree else before == mark[b, t])
    for g in range(GROUP):
      score = k[b, seen, n].astype(float) @ q[b, t, n, g] / CHANNELS**0.5
      weight = np.exp(score - score.max())
      out[b, t, n, g] = weight @ v[b, seen, n] / weight.sum()
  return out


def _tree_inputs(length=LENGTH):
  """q, k, v, and ends of subtrees; the rows end in padding."""
  q, k, v, _ = _inputs(length)
  rng = np.random.default_rng(0)
  ends = [random_ends(rng, length, padding=5) for _ in range(ROWS)]
  return q, k, v, np.stack(ends)


def _attended(segment, is_tree=False, **compute):
  """Attention, as a function whose output is 0 on padding."""
  attend = functools.partial(
    packed.attend,
    segment_BT=None if is_tree else segment,
    end_BT=segment if is_tree else None,
    compute=compute_config(**compute),
    mesh=None,
  )
  is_real = (segment > 0)[..., None, None, None]
  return lambda q, k, v: jnp.where(is_real, attend(q, k, v), 0)


def _value_and_slopes(q, k, v, segment, is_tree=False, **compute):
  """Attention's output off padding, and the gradients of a function of it."""
  attend = _attended(segment, is_tree, **compute)

  def total(q, k, v):
    out = attend(q, k, v)
    return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape))), out

  gradient = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))
  slopes, out = gradient(q, k, v)
  return out, slopes


@functools.partial(jax.jit, static_argnames=("attend", "first"))
def _value_and_slopes_of(attend, q, k, v, end, weight, first):
  def total(q, k, v):
    return jnp.sum(weight * attend(q, k, v, end, first=first))

  return jax.value_and_grad(total, (0, 1, 2))(q, k, v)


@jax.jit
def _slopes_by_mask(q, k, v, sinks, mask, weight):
  """All pairs at once, and a sink as one more column of scores."""

  def total(q, k, v, sinks):
    score = jnp.einsum("btkgh,bskh->bkgts", q, k) * CHANNELS**-0.5
    score = jnp.where(mask[:, None, None], score, -1e30)
    column = jnp.broadcast_to(sinks[..., None, None], (*score.shape[:4], 1))
    score = jnp.concatenate([score, column], axis=-1)
    share = jax.nn.softmax(score)[..., : k.shape[1]]
    out = jnp.einsum("bkgts,bskh->btkgh", share, v)
    return jnp.sum(out * weight), out

  return jax.grad(total, (0, 1, 2, 3), has_aux=True)(q, k, v, sinks)


class KernelTest(parameterized.TestCase):
  @parameterized.product(block=(0, 20, 48), is_tree=(False, True))
  def test_plain(self, block, is_tree):
    inputs = (_tree_inputs if is_tree else _inputs)(length=48)
    attend = _attended(
      inputs[3], is_tree, attention="xla", attention_block=block
    )
    wanted = _by_tokens(*inputs, is_tree)
    np.testing.assert_allclose(jax.jit(attend)(*inputs[:3]), wanted, atol=1e-5)

  def test_only_a_cpu_takes_blocks_by_itself(self):
    for platform, chosen, length, block in (
      ("cpu", "xla", 257, 64),
      ("cpu", "xla", 256, 0),
      ("gpu", "xla", 4096, 0),
      ("cpu", "splash", 4096, 0),
      ("tpu", "splash", 4096, 0),
    ):
      self.assertEqual(packed.block_of(platform, chosen, length), block)

  @parameterized.product(
    way=(("splash", 0), ("splash", 128), ("xla", 48)), is_tree=(False, True)
  )
  @pytest.mark.slow
  def test_like_plain(self, way, is_tree):
    """Splash by Pallas's interpreter, which does what the chip does."""
    inputs = _tree_inputs() if is_tree else _inputs()
    attention, block = way
    out, slopes = _value_and_slopes(
      *inputs, is_tree, attention=attention, attention_block=block
    )
    plain, plain_slopes = _value_and_slopes(*inputs, is_tree, attention="xla")
    np.testing.assert_allclose(out, plain, atol=2e-6)
    for found, wanted in zip(slopes, plain_slopes, strict=True):
      np.testing.assert_allclose(found, wanted, atol=2e-5)

  @parameterized.parameters(
    ("xla", 0, False, False),
    ("xla", 0, False, True),
    ("xla", 0, True, True),
    ("xla", 16, False, False),
    ("xla", 16, False, True),
    ("xla", 16, True, True),
    ("splash", 128, False, False),
    ("splash", 128, True, True),
  )
  def test_windows_and_sinks(self, attention, block, is_tree, has_sinks):
    length = 256 if attention == "splash" else 48
    q, k, v, mark = (_tree_inputs if is_tree else _inputs)(length)
    sinks = np.float32([[0.5, -1.0], [3.0, 0.0]]) if has_sinks else None
    depth, mask = np.zeros_like(mark), np.zeros((ROWS, length, length), bool)
    for b, t in np.ndindex(mark.shape):
      s = np.arange(t + 1)
      seen = (t < mark[b, s]) if is_tree else (mark[b, s] == mark[b, t])
      seen &= mark[b, t] > 0
      depth[b, t] = max(seen.sum() - 1, 0)
      mask[b, t, : t + 1] = seen & (depth[b, t] - depth[b, s] < WINDOW)
    compute = compute_config(attention=attention, attention_block=block)
    is_real = (mark > 0)[..., None, None, None]
    shape = (*q.shape[:-1], VALUES)
    weight = np.cos(np.arange(np.prod(shape), dtype=np.float32))
    weight = is_real * weight.reshape(shape)

    def total(q, k, v, sinks):
      marks = {"segment_BT": mark, "window": WINDOW}
      if is_tree:
        begin = packed.first_visible(jnp.asarray(depth), WINDOW)
        marks = {"segment_BT": None, "end_BT": mark, "begin_BT": begin}
      out = packed.attend(
        q, k, v, **marks, sink_KG=sinks, compute=compute, mesh=None
      )
      return jnp.sum(out * weight), out

    which = (0, 1, 2, 3) if has_sinks else (0, 1, 2)
    slopes, out = jax.jit(jax.grad(total, which, has_aux=True))(q, k, v, sinks)
    absent = np.full((KEYS, GROUP), -np.inf, np.float32)
    wanted, wanted_out = _slopes_by_mask(
      q, k, v, sinks if has_sinks else absent, mask, weight
    )
    for found, right in zip(
      (*slopes, is_real * out),
      (*wanted[: len(slopes)], is_real * wanted_out),
      strict=True,
    ):
      np.testing.assert_allclose(found, right, atol=5e-5)

  @parameterized.parameters(True, False)
  def test_splash_of_the_end_of_a_row_skips_what_nobody_sees(self, by_row):
    """As a device of `mesh.sequence` does: 3 blocks of 128, 3 of 256 keys."""
    length, first = 768, 384
    end_2S = np.stack([np.arange(1, length + 1)] * 2)  # of padding
    end_2S[0, :256] = 256  # a tree that no query sees
    end_2S[0, 256:600], end_2S[0, 450:500] = 600, 500
    end_2S[0, 600:700] = 700
    end_2S[1, :400] = 400
    visible = functools.partial(reference.visible_blocks, queries=128, keys=256)
    seen = jax.jit(visible, static_argnums=1)(end_2S, 384, first)
    np.testing.assert_array_equal(
      seen,
      [[[0, 1, 0], [0, 1, 1], [0, 0, 1]], [[1, 1, 0], [0, 0, 1], [0, 0, 1]]],
    )
    q, k, v = (x[:, :, :1] for x in _inputs(length)[:3])
    q, weight = q[:, first:], np.cos(q[:, first:, ..., :VALUES])
    gradient = functools.partial(
      _value_and_slopes_of,
      q=q,
      k=k,
      v=v,
      end=end_2S,
      weight=weight,
      first=first,
    )
    splashed = functools.partial(
      splash.attend, by_row=by_row, block=256, interpret=True, name="attended"
    )
    value, slopes = gradient(splashed)
    wanted, wanted_slopes = gradient(reference.attend_packed)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for found, slope in zip(slopes, wanted_slopes, strict=True):
      np.testing.assert_allclose(found, slope, atol=2e-5)

  def test_splash_takes_whole_blocks(self):
    with self.assertRaisesRegex(
      ConfigError, "row_length=48 must be a multiple"
    ):
      _value_and_slopes(*_inputs(length=48), attention="splash")

  @pytest.mark.full
  def test_cudnn_like_plain(self):
    if jax.default_backend() != "gpu":
      self.skipTest("no GPU at hand")
    *arrays, segment = _inputs()
    low = [jnp.asarray(x, jnp.bfloat16) for x in arrays]
    out, slopes = _value_and_slopes(
      *low, segment, attention="cudnn", dtype="bfloat16"
    )
    plain, plain_slopes = _value_and_slopes(
      *low, segment, attention="xla", dtype="bfloat16"
    )
    for found, wanted in zip(
      (out, *slopes), (plain, *plain_slopes), strict=True
    ):
      np.testing.assert_allclose(
        found.astype(np.float32), wanted.astype(np.float32), atol=0.05
      )


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class CompiledTest(parameterized.TestCase):
  @parameterized.parameters(
    ("v5e:2x2", 1, "end_BT"),
    ("v5p:2x2x1", 4, "segment_BT"),
    ("v6e:2x2", 4, "end_BT"),
  )
  @pytest.mark.slow
  def test_long_rows_on_a_tpu(self, name, shards, mark):
    """Takes memory for tokens, not for pairs of them: rows of 131,072."""
    devices = chips.describe(parse_slice(name))[:shards]
    mesh = sharding.make_mesh({"sequence": shards}, devices)
    compute = compute_config(attention="splash", dtype="bfloat16")

    def total(q, k, v, marks):
      out = packed.attend(
        q, k, v, **{"segment_BT": None, mark: marks}, compute=compute, mesh=mesh
      )
      return jnp.sum(out.astype(jnp.float32))

    def operand(*shape, dtype=jnp.bfloat16):
      spec = PartitionSpec(None, "sequence")
      where = NamedSharding(mesh, spec)
      return jax.ShapeDtypeStruct((2, 2**17, *shape), dtype, sharding=where)

    compiled = (
      jax.jit(jax.grad(total, (0, 1, 2)))
      .trace(
        operand(1, 2, 128),
        operand(1, 128),
        operand(1, 128),
        operand(dtype=jnp.int32),
      )
      .lower(lowering_platforms=("tpu",))
      .compile()
    )
    self.assertIn("splash_mqa_dkv", compiled.as_text())
    taken = compiled.memory_analysis().temp_size_in_bytes
    self.assertLess(taken, 2**34 / shards / 4)  # a quarter of T x T bytes

  @parameterized.parameters("v5e:2x2", "v6e:2x2")
  @pytest.mark.slow
  def test_windows_and_sinks_on_a_tpu(self, name):
    where = SingleDeviceSharding(chips.describe(parse_slice(name))[0])
    mesh = sharding.make_mesh({}, [*where.device_set])
    compute = compute_config(attention="splash", dtype="bfloat16")

    def total(q, k, v, sinks, end, position):
      begin = packed.first_visible(position, 128)
      marks = {"segment_BT": None, "end_BT": end, "begin_BT": begin}
      out = packed.attend(
        q, k, v, **marks, sink_KG=sinks, compute=compute, mesh=mesh
      )
      return jnp.sum(out.astype(jnp.float32))

    def operand(*shape, dtype=jnp.bfloat16):
      return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    row = operand(1, 2048, dtype=jnp.int32)
    keys = operand(1, 2048, 1, 64)
    compiled = (
      jax.jit(jax.grad(total, (0, 1, 2, 3)))
      .trace(operand(1, 2048, 1, 2, 64), keys, keys, operand(1, 2), row, row)
      .lower(lowering_platforms=("tpu",))
      .compile()
    )
    self.assertIn("splash_mqa_dkv", compiled.as_text())


class CacheTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(0)
    self.q = rng.normal(size=(3, 1, 2, 4, 16)).astype(jnp.bfloat16)
    self.k, self.v = rng.normal(size=(2, 3, 2, 32, 16)).astype(jnp.bfloat16)
    self.position = np.array([[0], [7], [31]])

  def test_each_token_sees_its_slot_up_to_itself(self):
    operands = [np.float64(x) for x in (self.q, self.k, self.v)]
    found = np.asarray(
      jax.jit(reference.attend_cache)(*map(np.float32, operands), self.position)
    )
    q, k, v = operands
    for slot, last in enumerate(self.position[:, 0]):
      seen = slice(0, int(last) + 1)
      score = np.einsum("kgh,ksh->kgs", q[slot, 0], k[slot, :, seen]) / 4
      weight = np.exp(score) / np.exp(score).sum(-1, keepdims=True)
      wanted = np.einsum("kgs,ksh->kgh", weight, v[slot, :, seen])
      np.testing.assert_allclose(found[slot, 0], wanted, atol=1e-6)

  @parameterized.parameters("tpu", "cuda")
  def test_the_cache_is_read_as_it_is(self, platform):
    """Written out in float32 first, it would be most of what decoding moves."""
    text = (
      jax.jit(reference.attend_cache)
      .trace(self.q, self.k, self.v, self.position)
      .lower(lowering_platforms=(platform,))
      .as_text()
    )
    self.assertIn("3x2x32x16xbf16", text)
    self.assertNotIn("3x2x32x16xf32", text)


class ChoiceTest(parameterized.TestCase):
  @parameterized.parameters(
    ("tpu", "float32", 64, "splash", ""),
    ("gpu", "bfloat16", 128, "cudnn", ""),
    ("gpu", "float32", 128, "xla", "cudnn computes in bfloat16"),
    ("gpu", "bfloat16", 512, "xla", "cudnn takes heads of up to 256"),
    ("gpu", "bfloat16", 12, "xla", "a multiple of 8"),
    ("cpu", "float32", 64, "xla", ""),
  )
  def test_auto(self, platform, dtype, head_dim, wanted, reason):
    chosen, why = choose(compute_config(dtype=dtype), platform, head_dim)
    self.assertEqual(chosen, wanted)
    self.assertIn(reason, why)
    self.assertEqual(bool(reason), bool(why))

  def test_a_kernel_that_cannot(self):
    compute = compute_config(attention="cudnn")
    with self.assertRaisesRegex(ConfigError, "runs on NVIDIA GPUs.*is a cpu"):
      choose(compute, "cpu", 64)
    with self.assertRaisesRegex(
      ConfigError, "bfloat16 .*compute.dtype='float3"
    ):
      choose(compute, "gpu", 64)

  @pytest.mark.slow
  def test_falling_back_is_loud(self):
    """Once per reason, by the log that `launch.train` shows."""
    packed.warn_once.cache_clear()
    compute = compute_config(dtype="float32")
    inputs = [jnp.asarray(x) for x in _inputs(length=8)]
    with (
      mock.patch.object(packed, "platform_of", lambda mesh: "gpu"),
      self.assertLogs("absl", "WARNING") as log,
    ):
      for _ in range(2):
        packed.attend(
          *inputs[:3], segment_BT=inputs[3], compute=compute, mesh=None
        )
    self.assertLen(log.output, 1)
    self.assertIn("cudnn computes in bfloat16", log.output[0])
