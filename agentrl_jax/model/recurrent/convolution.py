"""A short causal convolution of each channel by itself.

  y_t = sum_j kernel_j x_{t - W + 1 + j},   j = 0 .. W - 1

It lets a token of a recurrent layer see its last W - 1 neighbours before the
state is read. Sums are float32; there is no bias and no activation.

Axes: B rows, T tokens of a row or C of a chunk, D channels, W taps.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.model.recurrent.ancestry import Ancestry


def convolve(
  x_BTD: jax.Array, kernel_WD: jax.Array, rows: Ancestry
) -> jax.Array:
  """Convolves packed rows; a window holds a token's ancestors alone.

  Before the first token of a sequence or tree stand zeros. Returns
  [B, T, D] of x's dtype.
  """
  x = jnp.where(rows.is_real_BT[..., None], x_BTD, 0).astype(jnp.float32)
  y = sum(
    rows.before(x, back) * tap_D
    for back, tap_D in enumerate(kernel_WD[::-1].astype(jnp.float32))
  )
  return jnp.asarray(y).astype(x_BTD.dtype)


def extend(
  x_BCD: jax.Array,
  kernel_WD: jax.Array,
  window_BWD: jax.Array,
  length_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Convolves the next tokens of sequences.

  Args:
    x_BCD: of which the first `length_B[b]` of row b count; the outputs of
      others mean nothing.
    kernel_WD: the taps, the token's own last.
    window_BWD: the last W - 1 inputs before, [B, W - 1, D]; zeros before the
      first token.
    length_B: at most C; a row of length 0 keeps its window.

  Returns:
    Outputs [B, C, D] of x's dtype, and the window after the last token.
  """
  number = window_BWD.shape[1]
  joined = jnp.concatenate([window_BWD, x_BCD.astype(window_BWD.dtype)], axis=1)
  y = sum(
    joined[:, j : j + x_BCD.shape[1]].astype(jnp.float32) * tap_D
    for j, tap_D in enumerate(kernel_WD.astype(jnp.float32))
  )
  last_BW = length_B[:, None] + jnp.arange(number)
  window_BWD = jnp.take_along_axis(joined, last_BW[..., None], axis=1)
  return jnp.asarray(y).astype(x_BCD.dtype), window_BWD
