"""Chunks of the gated delta rule say what the recurrence says of each path."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from agentrl_jax.model.recurrent import delta_rule
from agentrl_jax.model.recurrent.ancestry import ancestry
from tests.model.recurrent import paths
from tests.model.recurrent.paths import LENGTH, PADDING, ROWS

HEADS, KEYS, VALUES, CHUNK = 2, 6, 5, 8


def _inputs(kind: str, seed: int):
  """q, k, v, g and beta."""
  rng = np.random.default_rng(seed)
  shape = ROWS, LENGTH, HEADS
  q, k = delta_rule.unit(rng.normal(size=(2, *shape, KEYS)))
  v, g = rng.normal(size=(*shape, VALUES)), -rng.exponential(0.3, shape)
  beta = rng.random(shape)
  if kind == "strong":
    g = np.where(rng.random(shape) < 0.5, -20, -0.01)
  elif kind == "repeated":
    k, g = jnp.broadcast_to(k[:, :1], k.shape), np.zeros(shape)
    beta = np.full(shape, 0.999)
  return [jnp.asarray(x, jnp.float32) for x in (q, k, v, g, beta)]


def _weighted(outputs):
  """One number of all outputs, with a slope for each."""
  return sum(jnp.vdot(x, jnp.cos(jnp.arange(x.size))) for x in outputs), outputs


@jax.jit
def _chunked(tokens, segment_BT, end_BT=None):
  def total(*tokens):
    rows = ancestry(segment_BT, end_BT)
    out = delta_rule.chunked(*tokens, rows, chunk=CHUNK)
    return _weighted([jnp.where(rows.is_real_BT[..., None, None], out, 0)])

  return jax.grad(total, range(5), has_aux=True)(*tokens)


@jax.jit
def _by_paths(tokens, path: paths.Paths):
  def total(*tokens):
    alone = [x[path.row_P[:, None], path.token_PT] for x in tokens]
    zeros = jnp.zeros((len(path.row_P), HEADS, KEYS, VALUES))
    out, _ = delta_rule.recurrent(*alone, zeros, path.length_P)
    out = out.reshape(-1, HEADS, VALUES)[path.where_BT]
    return _weighted([jnp.where(path.mark_BT[..., None, None] > 0, out, 0)])

  return jax.grad(total, range(5), has_aux=True)(*tokens)


@functools.partial(jax.jit, static_argnums=0)
def _extended(extend, length_B, *inputs):
  def total(*inputs):
    out, after = extend(*inputs, length_B)
    is_real_BT = jnp.arange(LENGTH) < length_B[:, None]
    return _weighted([jnp.where(is_real_BT[..., None, None], out, 0), after])

  return jax.grad(total, range(6), has_aux=True)(*inputs)


class DeltaRuleTest(parameterized.TestCase):
  def assert_close(self, found, wanted):
    for x, y in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
      np.testing.assert_allclose(x, y, atol=1e-5 * max(1, np.abs(y).max()))

  @parameterized.product(
    kind=("plain", "strong", "repeated"), seed=(0, 1, 2), is_tree=(False, True)
  )
  def test_packed_rows_are_each_path_by_itself(self, kind, seed, is_tree):
    tokens = _inputs(kind, seed)
    rows = paths.draw(seed, is_tree=is_tree)
    spoilt = [x.at[:, -PADDING:].set(np.nan) for x in tokens]
    marks = (None, rows.mark_BT) if is_tree else (rows.mark_BT,)
    found = _chunked(spoilt, *marks)
    self.assert_close(found, _by_paths(tokens, rows))

  @parameterized.parameters("plain", "strong", "repeated")
  def test_sequences_go_on(self, kind):
    """By chunks from a state, as by the recurrence; one is not extended."""
    state = np.random.default_rng(0).normal(size=(ROWS, HEADS, KEYS, VALUES))
    tokens, state = _inputs(kind, 0), jnp.asarray(state, jnp.float32)
    length_B = jnp.array([LENGTH - PADDING, 0])
    spoilt = [x.at[:, -PADDING:].set(np.nan) for x in tokens]
    found = _extended(delta_rule.extend, length_B, *spoilt, state)
    wanted = _extended(delta_rule.recurrent, length_B, *tokens, state)
    self.assert_close(found, wanted)
    np.testing.assert_array_equal(found[1][1][1], state[1])
