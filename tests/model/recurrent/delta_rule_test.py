"""Chunks of the gated delta rule say what the recurrence says of each path."""

import functools

import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from agentrl_jax.model.recurrent import delta_rule
from agentrl_jax.model.recurrent.ancestry import ancestry
from tests.model.recurrent import paths
from tests.model.recurrent.paths import CHUNK, LENGTH, PADDING, ROWS

HEADS, KEYS, VALUES = 2, 6, 5
STATES = ROWS, HEADS, KEYS, VALUES
KINDS = ("plain", "strong", "repeated")


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


def _chunked(marks, *tokens):
  rows = ancestry(*marks)
  out = delta_rule.chunked(*tokens, rows, chunk=CHUNK)
  return [paths.off_padding(rows.is_real_BT, out)]


def _by_paths(path: paths.Paths, *tokens):
  zeros = jnp.zeros((len(path.row_P), *STATES[1:]))
  apart = map(path.apart, tokens)
  return [path.together(delta_rule.recurrent(*apart, zeros, path.length_P)[0])]


def _continued(extend, length_B, *inputs):
  out, after = extend(*inputs, length_B)
  return paths.off_padding(jnp.arange(LENGTH) < length_B[:, None], out), after


_by_chunks, _by_tokens = (
  functools.partial(_continued, way)
  for way in (delta_rule.extend, delta_rule.recurrent)
)


class DeltaRuleTest(parameterized.TestCase):
  @parameterized.product(kind=KINDS, seed=(0, 1, 2), is_tree=(False, True))
  def test_packed_rows_are_each_path_by_itself(self, kind, seed, is_tree):
    tokens, rows = _inputs(kind, seed), paths.draw(seed, is_tree=is_tree)
    found = paths.slopes(_chunked, rows.marks, paths.spoilt(tokens))
    paths.assert_close(found, paths.slopes(_by_paths, rows, tokens))

  @parameterized.parameters(*KINDS)
  def test_sequences_go_on(self, kind):
    """By chunks from a state, as by the recurrence; one is not extended."""
    tokens, length_B = _inputs(kind, 0), jnp.array([LENGTH - PADDING, 0])
    state = jnp.sin(jnp.arange(np.prod(STATES), dtype=float)).reshape(STATES)
    found = paths.slopes(_by_chunks, length_B, [*paths.spoilt(tokens), state])
    wanted = paths.slopes(_by_tokens, length_B, [*tokens, state])
    paths.assert_close(found, wanted)
    np.testing.assert_array_equal(found[1][1][1], state[1])
