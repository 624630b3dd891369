"""Writes the results in tests/golden/vectors.json: the losses on small cases.

  python -m tests.golden.make_test_vectors

A new case is written by hand, with `function`, `about` and `arguments`, and
with null for the gradients to compute. The numbers come from the float64 loops
in tests/reference; neither jax nor the library is imported.
"""

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.golden.vectors import FILE, sections, to_array
from tests.reference import (
  agentrl,
  diagnostics,
  finite_difference,
  kl,
  logprobs,
  policy_gradient,
  ratios,
  reductions,
  value,
)
from tests.reference.advantages import (
  group_advantages,
  group_filters,
  pass_at_k,
  returns,
  step_groups,
  task_moments,
  turns,
)

MOMENTS = ("weight_I", "mean_I", "variance_I")
CREDIT = ("advantage_BT", "return_BT")


@dataclasses.dataclass(frozen=True)
class Loop:
  """The float64 loop of a function of the library.

  It gets those of the arguments that it knows: loops need no sizes that are
  fixed when compiled, such as num_groups.
  """

  function: Callable[..., Any]
  names: tuple[str, ...] = ()  # of what it returns as a tuple
  # Maps (argument, all arguments) to the result, where the docstring calls
  # some part of it a constant.
  slope: Callable[..., Any] | None = None


def _mean(reference: Callable[..., Any]) -> Callable[..., Any]:
  """Adds the quotient to a loop that returns total and weight."""

  def with_value(*args, **kwargs):
    total, weight = reference(*args, **kwargs)
    quotient = total / weight if weight else 0.0
    return {"total": total, "weight": weight, "value()": quotient}

  with_value.__signature__ = inspect.signature(reference)
  return with_value


def _values(reference: Callable[..., Any]) -> Callable[..., Any]:
  def named(**arguments):
    means = reference(**arguments)
    return {name: {"value()": mean} for name, mean in means.items()}

  return named


def _agentrl_loss(policy_logprob_BT, mask_BT, **settings):
  return agentrl.loss(
    policy_logprob_BT,
    settings.pop("behavior_logprob_BT"),
    settings.pop("reference_logprob_BT"),
    settings.pop("advantage_BT"),
    mask_BT,
    **settings,
  )


_agentrl_loss.__signature__ = inspect.signature(lambda **settings: None)


def _ratio_moments(
  log_ratio_BT, mask_BT, version_BT, num_versions, weight_BT=None
):
  moments = diagnostics.by_version(log_ratio_BT, mask_BT, version_BT, weight_BT)
  columns = np.transpose(
    [moments.get(z, (0.0,) * 6) for z in range(num_versions)]
  )
  names = "share effective_sample_size mean_weight kl kl_k1 abs_log_ratio"
  return {f"{n}()": x for n, x in zip(names.split(), columns, strict=True)}


def _extremes(x_BT, mask_BT):
  return {
    "low": min(x_BT[mask_BT], default=math.inf),
    "high": max(x_BT[mask_BT], default=-math.inf),
  }


def _penalised(reward_BT, log_ratio_BT, mask_BT, coefficient, estimator):
  return kl.kl_penalised_reward(
    reward_BT,
    log_ratio_BT,
    mask_BT,
    coefficient=coefficient,
    estimator=getattr(kl, estimator),
  )


def _kl_of_both(x_BT, log_ratio_BT, behavior_log_ratio_BT):
  """Moves both log-ratios, since both are of the policy."""
  step_BT = x_BT - log_ratio_BT
  return kl.unbiased_kl(x_BT, behavior_log_ratio_BT + step_BT)


def _own_ratio(x_BT, log_ratio_BT, mask_BT, **settings):
  return ratios.gspo_token_log_ratio(
    x_BT, mask_BT, **settings, constant_BT=log_ratio_BT
  )


def _value_loss(value_BT, old_value_BT, return_BT, mask_BT, clip):
  loss_BT = value.clipped_value_loss(
    value_BT, old_value_BT, return_BT, clip=clip
  )
  return np.where(mask_BT, loss_BT, 0)


def _explained_variance(value_BT, return_BT, mask_BT):
  share = value.explained_variance(value_BT, return_BT, mask_BT)
  return {"value()": share}


def _by_attempt(
  advantage_N, task_N, num_tokens_N, valid_N, num_tasks, over="tokens"
):
  """Each attempt, laid out as its tokens, or as one token."""
  counts_N = valid_N & (num_tokens_N > 0)
  length_N = num_tokens_N if over == "tokens" else np.ones_like(num_tokens_N)
  mask_NT = np.arange(length_N.max()) < (length_N * counts_N)[:, None]
  advantage_NT, task_NT = (
    np.broadcast_to(x_N[:, None], mask_NT.shape)
    for x_N in (advantage_N, task_N)
  )
  return group_advantages.task_normalise(advantage_NT, task_NT, mask_NT)[:, 0]


def _whiten_by_attempt(x_N, num_tokens_N, valid_N):
  mask_NT = np.arange(num_tokens_N.max()) < num_tokens_N[:, None]
  mask_NT &= valid_N[:, None]
  x_NT = np.broadcast_to(x_N[:, None], mask_NT.shape)
  return task_moments.whiten(x_NT, mask_NT)[:, 0]


def _by_moments(x, task, mask, moments, center=True, scale=True):
  moments = [moments[name] for name in MOMENTS]
  return task_moments.normalise_by_moments(
    x, task, mask, moments, center=center, scale=scale, epsilon=1e-6
  )


def _blend(running, batch, decay):
  """The decayed moments, from entries that have the moments given."""
  seen = [_entries(**moments) for moments in (running, batch)]
  return task_moments.moments_of(seen, len(running["weight_I"]), decay)


def _entries(weight_I, mean_I, variance_I):
  """Two entries of each task, to either side of its mean."""
  # The variance is unbiased.
  share_I = np.maximum(weight_I - 1, 0) / np.maximum(weight_I, 1)
  deviation_I = np.sqrt(variance_I * share_I)
  return task_moments.entries(
    np.concatenate([mean_I - deviation_I, mean_I + deviation_I]),
    np.tile(np.arange(len(mean_I)), 2),
    np.tile(weight_I / 2, 2),
  )


def _plain(module: Any, *names: str) -> dict[str, Loop]:
  """Loops that have their function's name."""
  return {name: Loop(getattr(module, name)) for name in names}


LOOPS = {
  **_plain(
    group_advantages,
    "group_advantage",
    "leave_one_out_advantage",
    "best_of_group_advantage",
    "group_has_signal",
    "task_normalise",
  ),
  **_plain(
    group_filters,
    "group_std",
    "keep_groups_above",
    "keep_top_groups",
    "keep_top_signal",
    "keep_top_softmax",
  ),
  **_plain(pass_at_k, "pass_at_k_advantage", "max_at_k_advantage"),
  **_plain(step_groups, "gigpo_advantage", "step_advantage"),
  **_plain(
    task_moments,
    "whiten",
    "reinforce_plus_plus_advantage",
    "reinforce_plus_plus_baseline_advantage",
  ),
  "task_normalise_weighted": Loop(_by_attempt),
  "whiten_weighted": Loop(_whiten_by_attempt),
  "normalise_by_moments": Loop(_by_moments),
  "measure_tasks": Loop(task_moments.measure_tasks, MOMENTS),
  "unseen_tasks": Loop(
    lambda num_tasks: task_moments.moments_of([], num_tasks), MOMENTS
  ),
  "blend_moments": Loop(_blend, MOMENTS),
  "gae": Loop(returns.gae, CREDIT),
  **_plain(returns, "discounted_returns"),
  "turn_gae": Loop(turns.turn_gae, CREDIT),
  "bi_level_gae": Loop(turns.bi_level_gae, CREDIT),
  **_plain(turns, "turn_returns", "first_of_turn"),
  "agentrl_loss": Loop(_mean(_agentrl_loss)),
  "ratio_moments": Loop(_ratio_moments),
  "clip_fractions": Loop(_values(diagnostics.clip_fractions)),
  "extremes": Loop(_extremes),
  **_plain(kl, "k1", "k2", "k3", "reverse_kl"),
  "unbiased_kl": Loop(kl.unbiased_kl, slope=_kl_of_both),
  "kl_penalised_reward": Loop(_penalised),
  **_plain(logprobs, "token_logprob", "entropy"),
  "fused_token_logprob": Loop(
    logprobs.fused_token_logprob, ("logprob_BT", "entropy_BT")
  ),
  **_plain(
    policy_gradient,
    "reinforce",
    "clipped_surrogate",
    "decoupled_surrogate",
    "cispo",
    "binary_divergence",
    "dppo",
    "sapo",
    "gmpo",
    "negative_log_likelihood",
  ),
  **_plain(
    ratios,
    "log_ratio",
    "sequence_log_ratio",
    "truncated_weight",
    "masked_weight",
    "stale_failure_weight",
  ),
  "gspo_token_log_ratio": Loop(ratios.gspo_token_log_ratio, slope=_own_ratio),
  "normalised_weight": Loop(
    lambda weight_BT, mean: ratios.normalised_weight(
      weight_BT, mean["total"], mean["weight"]
    )
  ),
  "with_gradient_of": Loop(
    lambda value, gradient: value, slope=lambda x, value, gradient: x
  ),
  **{
    name: Loop(_mean(getattr(reductions, name)))
    for name in (
      "token_mean",
      "sequence_mean",
      "segment_mean",
      "sequence_sum_mean",
      "fixed_length_mean",
      "weighted_mean",
    )
  },
  "pair_mean": Loop(
    _mean(lambda x_P, valid_P: reductions.token_mean(x_P[None], valid_P[None]))
  ),
  **_plain(reductions, "task_weights"),
  "clipped_value_loss": Loop(_value_loss),
  "explained_variance": Loop(_explained_variance),
}


def text() -> str:
  """Returns the file, with results and gradients computed again."""
  modules = []
  for module, cases in sections().items():
    blocks = ",\n".join(
      "    " + _text(computed(case), depth=2, indent="    ") for case in cases
    )
    modules.append(f"  {json.dumps(module)}: [\n{blocks}\n  ]")
  return "{\n" + ",\n".join(modules) + "\n}\n"


def computed(case: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the case with the results and gradients of the loops."""
  loop = LOOPS[case["function"]]
  known = _known(loop.function, case["arguments"])
  result = loop.function(**known)
  if loop.names:
    result = dict(zip(loop.names, result, strict=True))
  fields = {name: case[name] for name in ("function", "about", "arguments")}
  fields["returns"] = _rounded(result)
  if "gradient" in case:
    fields["gradient"] = {
      name: _rounded(np.round(_gradient(loop, known, name), 7))
      for name in case["gradient"]
    }
  return fields


def _known(
  function: Callable[..., Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
  parameters = inspect.signature(function).parameters
  every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
  return {
    name: _numpy(x)
    for name, x in arguments.items()
    if every or name in parameters
  }


def _numpy(x: Any) -> Any:
  if isinstance(x, Mapping):
    return {name: _numpy(entry) for name, entry in x.items()}
  return to_array(x) if isinstance(x, list) else x


def _gradient(loop: Loop, known: Mapping[str, Any], name: str) -> np.ndarray:
  """Returns central differences of the sum of the result.

  Of several results it is the first, of a mean the total.
  """

  def summed(x: np.ndarray) -> float:
    if loop.slope:
      return np.sum(loop.slope(x, **known))
    result = loop.function(**{**known, name: x})
    if isinstance(result, dict):
      return result["total"]
    return np.sum(result[0] if isinstance(result, tuple) else result)

  return finite_difference.gradient(summed, known[name])


def _text(value: Any, depth: int, indent: str) -> str:
  """Returns JSON with a line for each entry of the outer objects."""
  if not (isinstance(value, dict) and value and depth):
    return json.dumps(value, allow_nan=False)
  inner = indent + "  "
  entries = (
    f"{inner}{json.dumps(name)}: {_text(entry, depth - 1, inner)}"
    for name, entry in value.items()
  )
  return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def _rounded(value: Any) -> Any:
  """Returns values of JSON with 9 significant digits."""
  if isinstance(value, dict):
    return {name: _rounded(x) for name, x in value.items()}
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  if isinstance(value, list | tuple):
    return [_rounded(x) for x in value]
  if not isinstance(value, float):
    return value
  if math.isnan(value):
    return None
  if math.isinf(value):
    return str(value)
  return float(f"{value:.9g}") + 0.0  # without a minus before 0


def main() -> None:
  """Writes the file to its place."""
  FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
  main()
