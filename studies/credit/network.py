"""Small networks for critics that are learned from sampled episodes.

One network for all critics: a history (its turn, and a bit for each thing that
is still possible) and the secret, one bit for each thing; two hidden layers; an
output for each call, and one for the history. A critic that does not see the
secret has zeros in its place, so that critics differ in what they see and not
in size. The last layer starts at 0: every critic knows nothing at first.

Axes: N turns, F inputs, O outputs, W minibatches of a fit, B turns or pairs of
a minibatch. Others as in `exact`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from studies.credit.exact import Rules

HIDDEN = 64
LEARNING_RATE = 3e-3  # of every critic; Adam
Params = tuple[tuple[jax.Array, jax.Array], ...]


def history_inputs(rules: Rules) -> np.ndarray:
  """Returns the inputs of every history, [U, X, U + C]."""
  num_turns, num_sets, _ = rules.shape
  turn_UXU = np.broadcast_to(
    np.eye(num_turns)[:, None], (num_turns, num_sets, num_turns)
  )
  possible_UXC = np.broadcast_to(
    rules.possible_XC, (num_turns, *rules.possible_XC.shape)
  )
  return np.concatenate([turn_UXU, possible_UXC], axis=-1).astype(np.float32)


def secret_inputs(rules: Rules, secret_N: np.ndarray | None, shape: tuple):
  """Returns the secret of each place as bits; zeros if it is not seen."""
  num_things = rules.possible_XC.shape[1]
  if secret_N is None:
    return np.zeros((*shape, num_things), np.float32)
  return np.eye(num_things, dtype=np.float32)[np.broadcast_to(secret_N, shape)]


def new_network(rules: Rules, *, seed: int) -> Params:
  """Draws the params of a network with A + 1 outputs."""
  num_turns, _, num_calls = rules.shape
  num_inputs = num_turns + 2 * rules.possible_XC.shape[1]
  sizes = (num_inputs, HIDDEN, HIDDEN, num_calls + 1)
  rng = np.random.default_rng(seed)
  layers = [
    (rng.normal(0, 1 / np.sqrt(i), (i, o)), np.zeros(o))
    for i, o in zip(sizes[:-1], sizes[1:], strict=True)
  ]
  layers[-1] = tuple(np.zeros_like(x) for x in layers[-1])
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tuple(layers))


def outputs(params: Params, x_F: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns a number for each call [..., A], and one for the history [...]."""
  *hidden, (last_FO, bias_O) = params
  for weight_FO, offset_O in hidden:
    x_F = jnp.tanh(x_F @ weight_FO + offset_O)
  y_O = x_F @ last_FO + bias_O
  return y_O[..., :-1], y_O[..., -1]


@functools.partial(jax.jit, static_argnames="loss")
def fit(
  loss: Callable[[Any, Any], jax.Array], params: Any, state: Any, batches: Any
) -> tuple[Any, Any]:
  """Takes a step of Adam for each of W minibatches.

  Args:
    loss: of params and a minibatch, to a number. One object per kind of loss:
      a new one is compiled anew.
    params: tree of arrays.
    state: of `new_state`, or of an earlier call.
    batches: tree of arrays whose first axis is W.

  Returns:
    (params, state)
  """

  def step(carry, batch):
    params, state = carry
    return adam_step(jax.grad(loss)(params, batch), state, params), None

  return jax.lax.scan(step, (params, state), batches)[0]


def new_state(params: Any) -> Any:
  """Returns the state of Adam before the first step."""
  return _adam().init(params)


def adam_step(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
  """Returns the params and the state after a step."""
  change, state = _adam().update(gradient, state)
  return optax.apply_updates(params, change), state


def _adam() -> optax.GradientTransformation:
  return optax.adam(LEARNING_RATE)
