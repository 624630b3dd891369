"""Calls each custom function of a config once, on a few invented numbers.

Signatures are checked when a config is read, results only by a call. The trial
finds before the run starts, and not after its warm start, a wrong shape, NaN,
no gradient, or a result that depends on the cut into micro-batches.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.train import advantages
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.critic import custom_critic_advantages
from agentrl_jax.train.custom import CustomFunction

B, T = 6, 8  # rows and tokens
_STATISTICS_HINT = (
  "statistics of a batch (a quantile, a mean over tokens) are computed by "
  "loss.token_weight, before the batch is cut into micro-batches"
)


def try_loss(config: LossConfig) -> None:
  """Raises `ConfigError` for a wrong result of a function of `loss`."""
  for name in ("surrogate", "kl_estimator"):
    function = config.custom_function(name)
    if function is not None:
      _try_by_token(function)
  weight = config.custom_function("token_weight")
  if weight is not None:
    _try_weight(weight)
  reduction = config.custom_function("reduction")
  if reduction is not None:
    _try_reduction(reduction)


@advantages.on_host_in_float64()
def try_advantage(config: AdvantageConfig) -> None:
  """Raises `ConfigError` for a wrong result of a function of `advantage`."""
  arrays = _arrays()
  keep = config.custom_function("keep")
  if keep is not None:
    jax.eval_shape(
      lambda: advantages.kept_groups(arrays, len(arrays.reward_N), config)
    )
  estimator = config.custom_function("estimator")
  if estimator is None:
    return
  if config.uses_critic:
    result = custom_critic_advantages(estimator, _inputs())
  else:
    compiled = jax.jit(
      partial(
        advantages.custom_advantages,
        estimator,
        num_groups=len(arrays.reward_N),
        num_tasks=2,
        by_turn=config.varies_within_trajectory,
      )
    )
    result = compiled(arrays, arrays.valid_N)
  _require_numbers(estimator, result)


def _try_by_token(function: CustomFunction) -> None:
  """Requires a number per token, with a gradient, that no other row changes."""
  inputs = _inputs()
  shape = jax.eval_shape(lambda: function(inputs))
  function.require_shape(shape, (B, T))
  mask_BT = inputs["mask_BT"]
  moving = sorted(
    function.reads & {"log_ratio_BT", "policy_logprob_BT", "entropy_BT"}
  )

  def total(moved: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    loss_BT = function(inputs | moved)
    return jnp.sum(loss_BT, where=mask_BT), loss_BT

  gradient, loss_BT = jax.jit(jax.grad(total, has_aux=True))(
    {name: inputs[name] for name in moving}
  )
  _require_numbers(function, np.where(mask_BT, loss_BT, 0))
  _require_numbers(function, gradient, "a gradient")
  if not any(np.any(np.where(mask_BT, x, 0)) for x in gradient.values()):
    raise function.refuse(
      f"has a gradient of 0 in {', '.join(moving)}: nothing would be learned"
    )
  call = _compiled(function)
  rows = [call(_rows(inputs, slice(b, b + 1))) for b in range(B)]
  if not _close(loss_BT, np.concatenate(rows), mask_BT):
    raise function.refuse(
      "gives a token other numbers when other rows are beside it, so that the "
      f"result would depend on train.micro_batch: {_STATISTICS_HINT}"
    )


def _try_weight(function: CustomFunction) -> None:
  """Requires a number per token that rows of padding do not change."""
  inputs = _inputs()
  call = _compiled(
    lambda inputs: function.require_shape(
      function(inputs), inputs["mask_BT"].shape
    )
  )
  result = call(inputs)
  _require_numbers(function, np.where(inputs["mask_BT"], result, 0))
  padded = call(
    {
      name: np.pad(x, ((0, B), (0, 0))) if isinstance(x, jax.Array) else x
      for name, x in inputs.items()
    }
  )
  if not _close(result, padded[:B], inputs["mask_BT"]):
    raise function.refuse(
      "changes with rows of padding, of which there are more or fewer with "
      "every batch: read entries where mask_BT is true and no others, as in "
      "jnp.nanquantile(jnp.where(mask_BT, entropy_BT, jnp.nan), 0.8)"
    )


def _try_reduction(function: CustomFunction) -> None:
  """Requires a Mean that adds up over parts of the batch."""
  inputs = _inputs()
  call = _compiled(lambda inputs: function.require_mean(function(inputs)))
  mean = call(inputs)
  _require_numbers(function, mean.value())
  parts = [call(_rows(inputs, slice(b, b + 1))) for b in range(B)]
  _require_numbers(function, parts, "a mean of a row without trained tokens")
  added = sum(parts[1:], parts[0])
  if not np.allclose(added.value(), mean.value(), rtol=1e-3, atol=1e-5):
    raise function.refuse(
      f"gives {float(mean.value()):.6g} of {B} rows at once and "
      f"{float(added.value()):.6g} of them added up: total and weight of "
      "parts must add up to those of the whole"
    )


def _compiled(
  call: Callable[[dict[str, Any]], Any],
) -> Callable[[dict[str, Any]], Any]:
  """Returns a function of all inputs as one program, which a run has, too.

  Called as it is, each of its operations would be compiled.
  """
  compiled = jax.jit(
    lambda arrays, num_segments: call(arrays | {"num_segments": num_segments}),
    static_argnames="num_segments",
  )

  def call_compiled(inputs: dict[str, Any]) -> Any:
    arrays = {n: x for n, x in inputs.items() if n != "num_segments"}
    return compiled(arrays, num_segments=inputs["num_segments"])

  return call_compiled


def _close(x_BT: Any, y_BT: Any, mask_BT: jax.Array) -> bool:
  x_BT, y_BT = (np.where(mask_BT, z, 0) for z in (x_BT, y_BT))
  return np.allclose(x_BT, y_BT, rtol=1e-3, atol=1e-5)


def _require_numbers(
  function: CustomFunction, result: Any, kind: str = "a value"
) -> None:
  for leaf in jax.tree.leaves(result):
    if not np.isfinite(np.asarray(leaf, np.float32)).all():
      raise function.refuse(
        f"gives {kind} that is NaN or infinite on ordinary inputs"
      )


def _rows(inputs: dict[str, Any], rows: slice) -> dict[str, Any]:
  return {
    name: np.asarray(x)[rows] if isinstance(x, jax.Array) else x
    for name, x in inputs.items()
  }


def _inputs() -> dict[str, Any]:
  """Returns inputs by token: rows of two trajectories, partly trained on.

  Row 0 is on policy, and the last one is padding; every sequence has one
  advantage, one of them 0. Numbers grow from row to row, so that statistics
  differ between rows.
  """
  rng = np.random.default_rng(0)
  segment_BT = np.tile(np.repeat([1, 2, 0], [4, 3, 1]), (B, 1))
  mask_BT = (segment_BT > 0) & (rng.random((B, T)) < 0.7)
  mask_BT[:, 1] = True
  segment_BT[-1], mask_BT[-1] = 0, False
  advantage_BT = rng.normal(size=(B, 3))[np.arange(B)[:, None], segment_BT]
  advantage_BT[0, :4] = 0
  x_BT = rng.normal(0, 0.3, (B, T))
  x_BT[0] = 0
  logprob_BT = -rng.gamma(2, 1, (B, T))
  floats = {
    "log_ratio_BT": x_BT,
    "behavior_log_ratio_BT": x_BT + rng.normal(0, 0.1, (B, T)),
    "x_BT": rng.normal(size=(B, T)),
    "advantage_BT": advantage_BT,
    "policy_logprob_BT": logprob_BT,
    "behavior_logprob_BT": logprob_BT - x_BT,
    "entropy_BT": rng.gamma(2, 1, (B, T)),
    "reward_BT": rng.normal(size=(B, T)),
    "value_BT": rng.normal(size=(B, T)),
  }
  scale_B1 = 0.5 * (1 + np.arange(B)[:, None])
  integers = {
    "segment_BT": segment_BT,
    "trajectory_BT": np.where(
      segment_BT > 0, 2 * np.arange(B)[:, None] + segment_BT - 1, 0
    ),
    "turn_BT": np.tile(np.arange(T) % 4 // 2, (B, 1)),
    "task_BT": np.tile(np.arange(B)[:, None] % 2, (1, T)),
    "policy_slot_BT": rng.integers(0, 2, (B, T)),
    "version_BT": rng.integers(0, 3, (B, T)),
  }
  return {
    **{
      n: jnp.asarray(np.where(mask_BT, x * scale_B1, 0), jnp.float32)
      for n, x in floats.items()
    },
    **{n: jnp.asarray(x, jnp.int32) for n, x in integers.items()},
    "mask_BT": jnp.asarray(mask_BT),
    "num_segments": T // 2 + 1,
  }


def _arrays() -> advantages.TrajectoryArrays:
  """Returns six trajectories of two groups, and two entries of padding."""
  rng = np.random.default_rng(0)
  valid_N = np.arange(8) < 6
  exists_NU = valid_N[:, None] & (np.arange(4) < rng.integers(1, 5, (8, 1)))
  reward_NU = np.where(exists_NU, rng.normal(size=(8, 4)), 0)
  return advantages.TrajectoryArrays(
    reward_N=reward_NU.sum(axis=1),
    group_N=np.where(valid_N, np.arange(8) // 3, 0).astype(np.int32),
    task_N=np.where(valid_N, np.arange(8) // 3, 0).astype(np.int32),
    valid_N=valid_N,
    turn_reward_NU=reward_NU,
    num_tokens_NU=np.where(exists_NU, 3, 0).astype(np.int32),
    state_NU=np.zeros((8, 4), np.int32),
    exists_NU=exists_NU,
    num_states=8 * 4,
  )
