"""Inputs and yardsticks of the tests of `fused_token_logprob`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.losses.logprobs import logits

B, T, D, V = 2, 5, 3, 7


def inputs(seed: int, dtype=np.float32):
  rng = np.random.default_rng(seed)
  return (
    rng.normal(size=(B, T, D)).astype(dtype),
    rng.normal(size=(D, V)).astype(dtype),
    rng.integers(V, size=(B, T)),
    rng.random((B, T)) < 0.6,
  )


def plain(hidden_BTD, output_DV, token_BT, mask_BT, *, temperature, cap=None):
  """Log-probability and entropy from all logits at once."""
  logits_BTV = hidden_BTD @ output_DV
  if cap:
    logits_BTV = cap * jnp.tanh(logits_BTV / cap)
  return (
    jnp.where(
      mask_BT, logits.token_logprob(logits_BTV, token_BT, temperature), 0
    ),
    jnp.where(mask_BT, logits.entropy(logits_BTV, temperature), 0),
  )


def weighted(function, token_BT, mask_BT, **options):
  """A number that depends on all that the function returns, and that."""
  weight_BT, other_BT = np.random.default_rng(1).normal(
    size=(2, *mask_BT.shape)
  )

  def total(hidden_BTD, output_DV, temperature):
    found = function(
      hidden_BTD,
      output_DV,
      token_BT,
      mask_BT,
      temperature=temperature,
      **options,
    )
    return (weight_BT * found[0] + other_BT * found[1]).sum(), found

  return total


def measured(function, inputs, *, temperature=0.8, traced=None, **options):
  """That number and all that the function returns, and its three gradients.

  One program for each function, its options, and shapes of its inputs.
  """
  hidden_BTD, output_DV, token_BT, mask_BT = inputs
  arguments = hidden_BTD, output_DV, temperature
  return _program(function, **options)(
    token_BT, mask_BT, traced or {}, *arguments
  )


@functools.cache
def _program(function, **options):
  def found(token_BT, mask_BT, traced, *arguments):
    total = weighted(function, token_BT, mask_BT, **options, **traced)
    return gradient_of(total)(*arguments)

  return jax.jit(found)


def gradient_of(total):
  return jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)


def gradient(total):
  return jax.jit(gradient_of(total))
