"""The gated delta rule in chunks, against its recurrence and XLA's products.

One row of 2,048 tokens with 2 heads of 128 channels, float32: the outputs, and
the gradient of a function of them. Both ways must first agree. The limit is the
arithmetic of the chunks at XLA's rate for a large product. `tree` is a gradient
of the same row as a prompt of half its tokens with 8 answers, over that of
sequences.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model.recurrent import delta_rule
from agentrl_jax.model.recurrent.ancestry import ancestry
from bench import timing
from bench.learner.train_step import WIDTH, square_product
from bench.line_peer import Pythons
from launch.planning.roofline import delta_flops

TOKENS, HEADS, CHANNELS, ANSWERS = 2048, 2, 128, 8
TOLERANCE = 1e-4


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pythons
  load_before = timing.load()
  programs = _programs()
  inputs = _inputs()
  for name in ("forward", "gradient"):
    ways = (programs[f"{way} {name}"](*inputs) for way in ("chunked", "plain"))
    for ours, plain in zip(*map(jax.tree.leaves, ways), strict=True):
      scale = np.abs(plain).max()
      np.testing.assert_allclose(ours / scale, plain / scale, atol=TOLERANCE)
  turns = {
    name: functools.partial(timing.times_of, program, *inputs)
    for name, program in programs.items()
  } | {"product": square_product()}
  timing.in_turn(turns, 1)
  times = timing.in_turn(turns, pairs)
  due = delta_flops(CHANNELS, CHANNELS) * TOKENS * HEADS
  return {
    "work": {"tokens": TOKENS, "heads": HEADS, "channels": CHANNELS},
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "times_faster_than_recurrence": {
      name: timing.ratio(times[f"plain {name}"], times[f"chunked {name}"])
      for name in ("forward", "gradient")
    },
    "share_of_product_rate": timing.ratio(
      times["product"], times["chunked forward"], factor=due / (2 * WIDTH**3)
    ),
    "tree_over_sequences": timing.ratio(
      times["tree gradient"], times["chunked gradient"]
    ),
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


def _inputs() -> list[jax.Array]:
  """Draws q, k, v, g and beta as a layer makes them."""
  q, k, v = jax.random.normal(
    jax.random.key(0), (3, 1, TOKENS, HEADS, CHANNELS)
  )
  g, beta = jax.random.normal(jax.random.key(1), (2, 1, TOKENS, HEADS))
  g, beta = -0.1 * jax.nn.softplus(g), jax.nn.sigmoid(beta)
  return [delta_rule.unit(q), delta_rule.unit(k), v, g, beta]


def _programs():
  end_T = np.full(TOKENS, TOKENS)
  answer = TOKENS // 2 // ANSWERS
  end_T[TOKENS // 2 :] = np.repeat(
    np.arange(TOKENS // 2, TOKENS, answer) + answer, answer
  )
  one = jnp.ones((1, TOKENS), jnp.int32)
  zeros = jnp.zeros((1, HEADS, CHANNELS, CHANNELS))

  def over(*marks):
    return lambda *x: delta_rule.chunked(*x, ancestry(*marks))

  def plain(*x):
    return delta_rule.recurrent(*x, zeros, jnp.array([TOKENS]))[0]

  chunked = over(one)
  functions = {
    "chunked forward": chunked,
    "plain forward": plain,
    "chunked gradient": _gradient(chunked),
    "plain gradient": _gradient(plain),
    "tree gradient": _gradient(over(None, jnp.asarray(end_T)[None])),
  }
  return {
    name: jax.jit(function).lower(*_inputs()).compile()
    for name, function in functions.items()
  }


def _gradient(function):
  return jax.grad(lambda *x: jnp.sum(jnp.sin(function(*x))), argnums=range(5))
