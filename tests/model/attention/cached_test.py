"""A decode step reads slots as far as they are filled, and no further."""

import functools
import unittest
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from jax.experimental import pallas as pl
from jax.sharding import SingleDeviceSharding

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention import cached, reference
from agentrl_jax.model.attention import ragged as attention_ragged
from agentrl_jax.model.policy import Policy
from launch.planning import chips
from launch.planning.chips import parse_slice
from tests import eight_devices
from tests.model.policy_test import CONFIG
from tests.settings import COMPUTE, compute_config

RAGGED = compute_config(cache_attention="ragged")


def operands(slots, heads, queries, positions, channels):
  rng = np.random.default_rng(0)
  shapes = (
    (slots, 1, heads, queries, channels),
    (slots, heads, positions, channels),
    (slots, heads, positions, channels),
  )
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


class RaggedTest(parameterized.TestCase):
  @parameterized.parameters(
    (4, 2, 4, 512, 64), (3, 4, 1, 384, 128), (2, 1, 3, 128, 16)
  )
  @pytest.mark.slow
  def test_equals_the_plain_form(self, *shape):
    q, k, v = operands(*shape)
    slots, positions = shape[0], shape[3]
    position = np.linspace(0, positions - 1, slots).astype(np.int32)[:, None]
    found = cached.attend(
      q, k, v, jnp.asarray(position), compute=RAGGED, mesh=None
    )
    wanted = reference.attend_cache(q, k, v, position)
    np.testing.assert_allclose(found, wanted, atol=1e-6)

  @parameterized.parameters((0, 1), (3, 1), (300, 1), (3, 4))
  def test_windows_and_sinks(self, window, chunk):
    """One token by the kernel, several by the plain form; one by one here."""
    q, k, v = operands(3, 2, 2, 512, 16)
    q = np.repeat(q, chunk, axis=1)
    sinks = jnp.array([[0.5, -1.0], [3.0, 0.0]])
    first = np.array([[0], [255], [508]])
    position = first + np.arange(chunk)
    wanted = np.zeros(q.shape)
    for b, c in np.ndindex(position.shape):
      end = position[b, c] + 1
      seen = slice(max(end - window, 0) if window else 0, end)
      score = np.einsum("kgh,ksh->kgs", q[b, c], k[b, :, seen]) / 4
      weight = np.exp(score)
      weight /= (weight.sum(-1) + np.exp(sinks))[..., None]
      wanted[b, c] = np.einsum("kgs,ksh->kgh", weight, v[b, :, seen])
      if chunk == 1:
        k[b, :, : seen.start // 256 * 256] = np.nan  # blocks that are not read
    found = cached.attend(
      q,
      k,
      v,
      jnp.asarray(position),
      sinks,
      window=window,
      compute=RAGGED,
      mesh=None,
    )
    np.testing.assert_allclose(found, wanted, atol=1e-6)

  def test_what_is_past_the_end_is_not_looked_at(self):
    q, k, v = operands(2, 2, 2, 512, 16)
    position = jnp.array([[127], [255]])
    wanted = np.array(reference.attend_cache(q, k, v, position))
    k[0, :, 256:], v[1, :, 256:] = np.nan, np.nan
    found = cached.attend(q, k, v, position, compute=RAGGED, mesh=None)
    np.testing.assert_allclose(found, wanted, atol=1e-6)

  def test_what_is_past_the_end_is_not_fetched(self):
    """A step of the grid that asks for the block before it fetches nothing."""
    q, k, v = operands(5, 2, 1, 1024, 16)
    length = jnp.array([1, 256, 257, 700, 1024])
    with mock.patch.object(pl, "BlockSpec", wraps=pl.BlockSpec) as made:
      attention_ragged.attend(q[:, 0], k, v, length, interpret=True)
    cuts = [call.args for call in made.call_args_list]
    ((shape, asks_for),) = [cut for cut in cuts if cut[0][2] > 1]
    self.assertEqual(shape[2], 256)
    blocks = [
      [int(asks_for(slot, step, length)[2]) for step in range(4)]
      for slot in range(5)
    ]
    self.assertEqual(
      blocks,
      [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
    )

  @pytest.mark.slow
  def test_heads_may_be_on_several_devices(self):
    found = eight_devices.run("tests.model.attention.cached_program")
    self.assertEqual(found["devices"], 4)
    self.assertLess(found["apart"], 1e-6)

  @pytest.mark.slow
  def test_a_policy_decodes_the_same(self):
    plain, ragged = Policy(CONFIG, COMPUTE), Policy(CONFIG, RAGGED)
    params = plain.init(jax.random.key(0))
    hidden = [decoded(policy, params) for policy in (plain, ragged)]
    np.testing.assert_allclose(*hidden, atol=1e-5)


def decoded(policy, params):
  """Hidden states of one token after prompts of three and two."""
  extend = jax.jit(policy.extend)
  _, cache = extend(
    params,
    policy.empty_cache(2, 128),
    jnp.array([[1, 2, 3], [4, 5, 6]]),
    jnp.zeros(2, jnp.int32),
    jnp.array([3, 2]),
  )
  hidden, _ = extend(
    params, cache, jnp.array([[7], [8]]), jnp.array([3, 2]), jnp.array([1, 1])
  )
  return hidden


class ChoiceTest(parameterized.TestCase):
  @parameterized.parameters(
    ("auto", "tpu", 256, "ragged", ""),
    ("auto", "tpu", 100, "xla", "blocks of 128 positions, and slots have 100"),
    ("auto", "cpu", 256, "xla", ""),
    ("auto", "gpu", 256, "xla", ""),
    ("xla", "tpu", 256, "xla", ""),
    ("ragged", "cpu", 256, "ragged", ""),
  )
  def test_by_platform(self, asked, platform, positions, chosen, reason):
    compute = compute_config(cache_attention=asked)
    found, why = cached.choose(compute, platform, positions)
    self.assertEqual(found, chosen)
    self.assertIn(reason, why)
    self.assertEqual(bool(why), bool(reason))

  def test_what_cannot_be_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "engine.context.*multiples of"):
      cached.choose(RAGGED, "tpu", 100)


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class CompiledTest(parameterized.TestCase):
  @parameterized.product(
    name=("v5e:2x2", "v5p:2x2x1", "v6e:2x2"), window=(0, 128)
  )
  @pytest.mark.slow
  def test_for_a_tpu(self, name, window):
    """Compiled as it is; and nothing copies the cache to suit the kernel."""
    device = chips.describe(parse_slice(name))[0]

    def operand(*shape, dtype=jnp.bfloat16):
      return jax.ShapeDtypeStruct(
        shape, dtype, sharding=SingleDeviceSharding(device)
      )

    compiled = (
      jax.jit(
        functools.partial(
          attention_ragged.attend, window=window, interpret=False
        )
      )
      .trace(
        operand(32, 8, 4, 128),
        operand(32, 8, 4096, 128),
        operand(32, 8, 4096, 128),
        operand(32, dtype=jnp.int32),
        operand(8, 4) if window else None,  # sinks
      )
      .lower(lowering_platforms=("tpu",))
      .compile()
    )
    self.assertIn("ragged_attention", compiled.as_text())
    self.assertLess(compiled.memory_analysis().temp_size_in_bytes, 2**20)
