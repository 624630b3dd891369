"""Comparison of the library with verl and RAGEN, function by function.

`originals.npz` (see `make_originals.py`) holds random batches and what the
originals' results; this module computes ours, under the same names. The tests
compare them, and `bench/learner/parity.py` reports the differences.
"""

import functools
import os
import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from tests.golden.originals import HIGHEST

GOLDEN = pathlib.Path(__file__).with_name("originals.npz")
NUM_GROUPS = 3
REDUCTIONS = {
  "token-mean": losses.token_mean,
  "seq-mean-token-sum": losses.sequence_sum_mean,
  "seq-mean-token-mean": losses.sequence_mean,
  "seq-mean-token-sum-norm": lambda x, mask: losses.fixed_length_mean(
    x, mask, length=mask.shape[1]
  ),
}


def _spread(advantage_B, x):
  return jnp.where(x["mask_BT"], advantage_B[:, None], 0)


def _group_advantages(x):
  rewards, everyone = x["reward_B"], np.ones(len(x["reward_B"]), bool)
  groups = {"num_groups": NUM_GROUPS, "valid_N": everyone}
  own = (rewards, x["group_B"])
  pairs = (rewards, x["pair_group_B"])
  yield "grpo", _spread(losses.group_advantage(*own, **groups), x)
  yield (
    "grpo_no_std",
    _spread(losses.group_advantage(*own, **groups, scale_by_std=False), x),
  )
  yield "rloo", _spread(losses.leave_one_out_advantage(*own, **groups), x)
  yield (
    "best_of_group",
    _spread(losses.best_of_group_advantage(*pairs, **groups), x),
  )
  yield (
    "best_of_group_no_std",
    _spread(
      losses.best_of_group_advantage(*pairs, **groups, scale_by_std=False), x
    ),
  )
  yield (
    "reinforce_plus_plus_baseline",
    _spread(
      losses.reinforce_plus_plus_baseline_advantage(
        *own, x["mask_BT"].sum(axis=1), **groups
      ),
      x,
    ),
  )


def _token_advantages(x):
  mask_BT, (gamma, gae_lambda, high) = x["mask_BT"], x["discount"]
  yield (
    "reinforce_plus_plus",
    losses.reinforce_plus_plus_advantage(
      x["reward_BT"], mask_BT, discount=gamma
    ),
  )
  yield (
    "discounted_returns",
    losses.discounted_returns(x["reward_BT"], mask_BT, discount=gamma),
  )
  advantage_BT, return_BT = losses.gae(
    x["reward_BT"],
    x["value_BT"],
    mask_BT,
    discount=gamma,
    gae_lambda=gae_lambda,
  )
  yield "gae_whitened", losses.whiten(advantage_BT, mask_BT)
  yield "gae_returns", return_BT
  num_rows, num_tokens = mask_BT.shape
  turn_BT = np.tile(np.arange(num_tokens) > 3, (num_rows, 1)).astype(int)
  advantage_BT, return_BT = losses.bi_level_gae(
    x["turn_reward_BT"],
    x["value_BT"],
    x["turn_mask_BT"],
    turn_BT,
    discount=gamma,
    turn_discount=high,
    gae_lambda=gae_lambda,
  )
  yield "bi_level_whitened", losses.whiten(advantage_BT, x["turn_mask_BT"])
  yield "bi_level_returns", return_BT


def _surrogates(x):
  """Functions of the policy's log-probabilities, by name."""
  old_BT, advantage_BT, mask_BT = x["old_BT"], x["advantage_BT"], x["mask_BT"]
  low, high, dual = x["clip"]
  clip = {"clip_low": low, "clip_high": high}

  def vanilla(logprob_BT):
    return losses.clipped_surrogate(
      losses.log_ratio(logprob_BT, old_BT, mask_BT),
      advantage_BT,
      **clip,
      dual_clip=dual,
    )

  def cispo(logprob_BT):
    log_ratio_BT = losses.log_ratio(logprob_BT, old_BT, mask_BT)
    return losses.cispo(log_ratio_BT, advantage_BT, logprob_BT, mask_BT, **clip)

  def gspo(logprob_BT):
    log_ratio_BT = losses.gspo_token_log_ratio(
      losses.log_ratio(logprob_BT, old_BT, mask_BT, limit=None), mask_BT
    )
    return losses.clipped_surrogate(log_ratio_BT, advantage_BT, **clip)

  def sapo(logprob_BT):
    return losses.sapo(
      losses.log_ratio(logprob_BT, old_BT, mask_BT), advantage_BT
    )

  yield from _dppo(x)
  for mode, reduce in REDUCTIONS.items():
    for name, loss in (("vanilla", vanilla), ("cispo", cispo)):
      yield (
        f"{name}/{mode}",
        lambda v, f=loss, r=reduce: r(f(v), mask_BT).value(),
      )
  yield from _gmpo(x)
  for name, loss in (("gspo", gspo), ("sapo", sapo)):
    yield name, lambda v, f=loss: losses.sequence_mean(f(v), mask_BT).value()


def _dppo(x):
  low, high, cap = x["clip"]
  behavior_BT, mask_BT = jnp.minimum(x["old_BT"], HIGHEST), x["mask_BT"]

  def dppo(logprob_BT, divergence):
    logprob_BT = jnp.minimum(logprob_BT, HIGHEST)
    loss_BT = losses.dppo(
      losses.log_ratio(logprob_BT, behavior_BT, mask_BT),
      x["advantage_BT"],
      logprob_BT,
      mask_BT,
      divergence=divergence,
      clip_low=low,
      clip_high=high,
      weight_cap=cap,
    )
    return losses.token_mean(loss_BT, mask_BT).value()

  for divergence in ("tv", "kl"):
    yield f"dppo_{divergence}", functools.partial(dppo, divergence=divergence)


def _gmpo(x):
  """The authors' of each sequence; verl's is a mean over rows, trained or not.

  The first has one bound for both sides.
  """
  old_BT, mask_BT = x["old_BT"], x["mask_BT"]
  advantage_BT = jnp.broadcast_to(x["advantage_BT"][:, :1], mask_BT.shape)
  low, high, _ = x["clip"]

  def by_token(logprob_BT, **clip):
    log_ratio_BT = losses.log_ratio(logprob_BT, old_BT, mask_BT, limit=None)
    return losses.gmpo(log_ratio_BT, advantage_BT, mask_BT, **clip)

  def of_verl(logprob_BT):
    loss_BT = by_token(logprob_BT, clip_low=low, clip_high=high)
    return losses.sequence_mean(loss_BT, mask_BT).total / len(mask_BT)

  def of_authors(logprob_BT):
    loss_BT = by_token(logprob_BT, clip_low=high, clip_high=high)
    num_tokens_B = jnp.maximum(mask_BT.sum(axis=1), 1)
    return jnp.sum(loss_BT, axis=1, where=mask_BT) / num_tokens_B

  yield "gmpo", of_verl
  yield "gmpo_authors", of_authors


def _divergences(x):
  everywhere = np.ones(x["mask_BT"].shape, bool)

  def log_ratio(logprob_BT, limit=None):
    return losses.log_ratio(
      logprob_BT, x["reference_BT"], everywhere, limit=limit
    )

  def k3(logprob_BT):
    return losses.k3(log_ratio(logprob_BT, limit=20.0), limit=10.0)

  yield "kl/k1", lambda v: losses.k1(log_ratio(v))
  yield "kl/k2", lambda v: losses.k2(log_ratio(v))
  yield "kl/k3", k3
  yield (
    "kl/k1+",
    lambda v: losses.with_gradient_of(
      losses.k1(log_ratio(v)), losses.k2(log_ratio(v))
    ),
  )
  yield (
    "kl/k3+",
    lambda v: losses.with_gradient_of(k3(v), losses.k2(log_ratio(v))),
  )


def _weights(x):
  mask_BT = x["mask_BT"]
  ratio_BT = losses.log_ratio(x["logprob_BT"], x["old_BT"], mask_BT, limit=None)
  whole_BT = losses.sequence_log_ratio(
    ratio_BT, mask_BT, average=False, limit=None
  )
  for level, log_ratio_BT, reduce in (
    ("token", ratio_BT, losses.token_mean),
    ("sequence", whole_BT, losses.sequence_mean),
  ):
    weights = {
      "truncated": losses.truncated_weight(log_ratio_BT, cap=2.0),
      "masked": losses.masked_weight(log_ratio_BT, low=0.5, high=2.0),
    }
    for name, weight_BT in weights.items():
      normalised_BT = losses.normalised_weight(
        weight_BT, reduce(weight_BT, mask_BT)
      )
      yield f"weights/{level}_{name}", jnp.where(mask_BT, weight_BT, 0)
      yield (
        f"weights/{level}_{name}_normalized",
        jnp.where(mask_BT, normalised_BT, 0),
      )


def _metrics(x):
  low, high, dual = x["clip"]
  log_ratio_BT = losses.log_ratio(x["logprob_BT"], x["old_BT"], x["mask_BT"])
  stopped = losses.clip_fractions(
    log_ratio_BT,
    x["advantage_BT"],
    x["mask_BT"],
    clip_low=low,
    clip_high=high,
    dual_clip=dual,
  )
  moments = losses.ratio_moments(log_ratio_BT, x["mask_BT"])
  yield (
    "metrics/pg_clipfrac",
    stopped["above"].value() + stopped["below"].value(),
  )
  yield "metrics/pg_clipfrac_lower", stopped["dual"].value()
  yield "metrics/ppo_kl", moments.kl_k1()[0]


def _value(x):
  def loss(value_BT):
    loss_BT = losses.clipped_value_loss(
      value_BT, x["old_value_BT"], x["return_BT"], x["mask_BT"], clip=0.3
    )
    return losses.token_mean(loss_BT, x["mask_BT"]).value()

  yield "value", loss


def results(x):
  """Name and value of all that the originals computed as well."""
  yield from _group_advantages(x)
  yield from _token_advantages(x)
  yield from _weights(x)
  yield from _metrics(x)
  for functions, argument in (
    (_surrogates(x), "logprob_BT"),
    (_divergences(x), "logprob_BT"),
    (_value(x), "value_BT"),
  ):
    for name, function in functions:
      yield name, function(x[argument])
      yield (
        f"{name}/gradient",
        jax.grad(lambda v, f=function: f(v).sum())(x[argument]),
      )
  for mode, reduce in REDUCTIONS.items():

    def value(loss_BT, reduce=reduce):
      return reduce(loss_BT, x["mask_BT"]).value()

    yield f"reduce/{mode}", value(x["loss_BT"])
    yield f"reduce/{mode}/gradient", jax.grad(value)(x["loss_BT"])


def batches() -> Iterator[tuple[dict, dict]]:
  """Inputs and the originals' results, seed by seed.

  The results stand where a loss would read them, and are 0 off the mask.
  AGENTRL_JAX_ORIGINALS names another file than the one that is committed.
  """
  path = os.environ.get("AGENTRL_JAX_ORIGINALS", GOLDEN)
  with np.load(path) as file:
    stored = {name: file[name] for name in file.files}
  for seed in range(len(stored["in/mask_BT"])):
    sides = ({}, {})
    for name, values in stored.items():
      sides[name.startswith("out/")][name.split("/", 1)[1]] = values[seed]
    x, expected = sides
    for name, mask in (
      ("gae_whitened", "mask_BT"),
      ("gae_returns", "mask_BT"),
      ("bi_level_whitened", "turn_mask_BT"),
      ("bi_level_returns", "turn_mask_BT"),
    ):
      expected[name] = np.where(x[mask], expected[name], 0)
    yield x, expected


def in_float32(x: dict) -> dict:
  """A batch as training has it."""
  return {
    name: value.astype(np.float32) if value.dtype == float else value
    for name, value in x.items()
  }
