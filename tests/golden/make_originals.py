"""Makes `originals.npz`: what the originals compute, on random inputs.

  git clone https://github.com/volcengine/verl && git -C verl checkout COMMIT
  git clone https://github.com/RAGEN-AI/RAGEN && git -C RAGEN checkout COMMIT
  python -m tests.golden.make_originals --verl=verl --ragen=RAGEN
  git clone https://github.com/callsys/GMPO && git -C GMPO checkout COMMIT
  python -m tests.golden.make_originals --verl=verl --add=GMPO
  python -m tests.golden.make_originals --verl=verl --add_dppo

the second and third time with verl at its other commits, to add what GMPO and
DPPO compute; with the commits of `originals.COMMITS`, in an environment with
torch and numpy (no jax is needed). Everything is float64. Rows without a
trained token and log-ratios far beyond any clip are among the inputs.
`tests/losses/library/verl_test.py` compares; for more seeds than are committed:

  python -m tests.golden.make_originals --seeds=300 --out=/tmp/many.npz ...
  AGENTRL_JAX_ORIGINALS=/tmp/many.npz \
    python -m pytest tests/losses/library/verl_test.py
"""

import argparse
import pathlib
import types
from collections.abc import Callable, Iterator

import numpy as np
import torch

from tests.golden import originals

B, T = 7, 11
MODES = (
  "token-mean",
  "seq-mean-token-sum",
  "seq-mean-token-mean",
  "seq-mean-token-sum-norm",
)


def inputs(seed: int) -> dict[str, np.ndarray]:
  """One random batch; every third has log-ratios beyond all bounds."""
  rng = np.random.default_rng(seed)
  old_BT = -rng.gamma(2.0, 1.0, (B, T))
  spread = (0.05, 0.6, 12.0)[seed % 3]
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[rng.integers(B)] = False  # a row without a trained token
  mask_BT[0, :2] = True
  ends_BT = np.zeros((B, T), bool)  # the last token of each turn
  ends_BT[:, [3, T - 1]] = True
  reward_B = rng.choice([-0.25, 0.0, 0.5, 1.0], size=B)
  if seed % 2:
    reward_B = rng.normal(size=B)
  return {
    "mask_BT": mask_BT,
    "old_BT": old_BT,
    "logprob_BT": old_BT + rng.normal(scale=spread, size=(B, T)),
    "reference_BT": old_BT + rng.normal(scale=spread, size=(B, T)),
    "advantage_BT": rng.normal(size=(B, T)) * (rng.random((B, T)) < 0.9),
    "loss_BT": rng.normal(size=(B, T)),
    "value_BT": rng.normal(size=(B, T)),
    "old_value_BT": rng.normal(size=(B, T)),
    "return_BT": rng.normal(size=(B, T)),
    "reward_BT": rng.normal(size=(B, T)) * (rng.random((B, T)) < 0.3),
    "turn_mask_BT": mask_BT | ends_BT,
    "turn_reward_BT": np.where(ends_BT, rng.normal(size=(B, T)), 0),
    "reward_B": reward_B,
    "group_B": np.array([0, 1, 0, 1, 0, 1, 2])[rng.permutation(B)],
    "pair_group_B": np.array([0, 1, 0, 1, 0, 1, 1]),
    "clip": np.array([rng.uniform(0.05, 0.3), rng.uniform(0.05, 0.4), 3.0]),
    "discount": np.array([rng.uniform(0.8, 1.0), rng.uniform(0.8, 1.0), 0.9]),
  }


def with_gradient(
  function: Callable[[torch.Tensor], torch.Tensor], x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The value, and the gradient of its sum with respect to x."""
  variable = torch.tensor(x, requires_grad=True)
  value = function(variable)
  value.sum().backward()
  return value.detach().numpy(), variable.grad.numpy()


def results(
  verl, corrections, ragen, x: dict[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
  """Name and value of all that is compared, for one batch."""
  yield from _advantages(verl, ragen, x)
  yield from _losses(verl, x)
  yield from _corrections(corrections, x)


def _advantages(verl, ragen, x):
  mask = torch.tensor(x["mask_BT"], dtype=torch.float64)
  turns = torch.tensor(x["turn_mask_BT"], dtype=torch.float64)
  # The originals take an outcome as the sum of a row of rewards.
  outcome = torch.zeros((B, T), dtype=torch.float64)
  outcome[:, -1] = torch.tensor(x["reward_B"])
  config = originals.AlgoConfig(norm_adv_by_std_in_grpo=True, gamma=1.0)
  plain = originals.AlgoConfig(norm_adv_by_std_in_grpo=False)
  group, pairs = x["group_B"], x["pair_group_B"]

  def first(advantage_and_return):
    return advantage_and_return[0].numpy()

  grpo = verl.compute_grpo_outcome_advantage
  yield "grpo", first(grpo(outcome.clone(), mask, group))
  yield (
    "grpo_no_std",
    first(grpo(outcome.clone(), mask, group, norm_adv_by_std_in_grpo=False)),
  )
  rloo = verl.compute_rloo_outcome_advantage
  yield "rloo", first(rloo(outcome.clone(), mask, group))
  best = verl.compute_grpo_passk_outcome_advantage
  yield "best_of_group", first(best(outcome, mask, pairs, config=config))
  yield "best_of_group_no_std", first(best(outcome, mask, pairs, config=plain))
  baseline = verl.compute_reinforce_plus_plus_baseline_outcome_advantage
  yield (
    "reinforce_plus_plus_baseline",
    first(baseline(outcome.clone(), mask, group)),
  )
  reward, value = torch.tensor(x["reward_BT"]), torch.tensor(x["value_BT"])
  gamma, gae_lambda, high = (float(d) for d in x["discount"])
  config = originals.AlgoConfig(gamma=gamma)
  plus_plus = verl.compute_reinforce_plus_plus_outcome_advantage
  advantage, returns = plus_plus(reward, mask, config=config)
  yield "reinforce_plus_plus", advantage.numpy()
  yield "discounted_returns", returns.numpy()
  advantage, returns = verl.compute_gae_advantage_return(
    reward, value, mask, gamma, gae_lambda
  )
  yield "gae_whitened", advantage.numpy()
  yield "gae_returns", returns.numpy()
  advantage, returns = ragen.compute_bi_level_gae_advantage_return(
    torch.tensor(x["turn_reward_BT"]), value, turns, gamma, gae_lambda, high
  )
  yield "bi_level_whitened", advantage.numpy()
  yield "bi_level_returns", returns.numpy()


def gmpo(verl, lines, x) -> Iterator[tuple[str, np.ndarray]]:
  """verl's GMPO of all rows, and the authors' of each row that is trained on.

  All tokens of a row have the advantage of its first.
  """
  mask = torch.tensor(x["mask_BT"])
  old = torch.tensor(x["old_BT"])
  advantage = torch.tensor(x["advantage_BT"])[:, :1].expand(B, T)
  low, high, _ = (float(c) for c in x["clip"])
  config = originals.ActorConfig(
    clip_ratio=low, clip_ratio_low=low, clip_ratio_high=high
  )
  loss = verl.get_policy_loss_fn("geo_mean")
  yield from _named(
    "gmpo",
    lambda v: loss(old, v, advantage, mask.double(), config=config)[0],
    x["logprob_BT"],
  )

  def of_row(b: int, new: torch.Tensor) -> torch.Tensor:
    row = slice(b, b + 1)
    names = {
      "torch": torch,
      "self": types.SimpleNamespace(args=types.SimpleNamespace(cliprange=high)),
      "new_logps": new[row],
      "mb_logps": old[row],
      "mb_advantage": advantage[row, :1],
      "mb_response_masks": mask[row],
    }
    exec(lines, names)  # noqa: S102
    return names["pg_losses"].reshape(1)

  yield from _named(
    "gmpo_authors",
    lambda v: torch.cat(
      [of_row(b, v) if mask[b].any() else torch.zeros(1) for b in range(B)]
    ),
    x["logprob_BT"],
  )


def dppo(verl, x: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
  """DPPO's losses by total variation and KL divergence."""
  low, high, cap = (float(c) for c in x["clip"])
  config = originals.ActorConfig(
    clip_ratio=low, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=cap
  )
  # Some of the inputs are above 0, and no probability is above 1.
  old = torch.tensor(np.minimum(x["old_BT"], originals.HIGHEST))
  advantage = torch.tensor(x["advantage_BT"])
  mask = torch.tensor(x["mask_BT"], dtype=torch.float64)
  for name in ("dppo_tv", "dppo_kl"):
    loss = verl.get_policy_loss_fn(name)
    yield from _named(
      name,
      lambda v, f=loss: f(
        old, v.clamp(max=originals.HIGHEST), advantage, mask, config=config
      )[0],
      x["logprob_BT"],
    )


def add(path: pathlib.Path, compute: Callable) -> None:
  """Adds the results of `compute` on each batch to a file of batches."""
  with np.load(path) as file:
    stored = {name: file[name] for name in file.files}
  inputs = {n: x for n, x in stored.items() if n.startswith("in/")}
  found = [
    dict(compute({n[3:]: x[seed] for n, x in inputs.items()}))
    for seed in range(len(stored["in/mask_BT"]))
  ]
  stored |= {
    f"out/{name}": np.stack([np.asarray(x[name], np.float64) for x in found])
    for name in found[0]
  }
  np.savez_compressed(path, **stored)


def _losses(verl, x):
  mask = torch.tensor(x["mask_BT"], dtype=torch.float64)
  old = torch.tensor(x["old_BT"])
  advantage = torch.tensor(x["advantage_BT"])
  low, high, dual = (float(c) for c in x["clip"])
  config = originals.ActorConfig(
    clip_ratio=low,
    clip_ratio_low=low,
    clip_ratio_high=high,
    clip_ratio_c=dual,
    tau_pos=1.0,
    tau_neg=1.05,
  )
  for mode in MODES:
    yield from _named(
      f"reduce/{mode}",
      lambda v, m=mode: verl.agg_loss(v, mask, m),
      x["loss_BT"],
    )
    for name in ("vanilla", "cispo"):
      loss = verl.get_policy_loss_fn(name)
      yield from _named(
        f"{name}/{mode}",
        lambda v, m=mode, f=loss: f(old, v, advantage, mask, m, config)[0],
        x["logprob_BT"],
      )
  for name in ("gspo", "sapo"):
    loss = verl.get_policy_loss_fn(name)
    yield from _named(
      name,
      lambda v, f=loss: f(old, v, advantage, mask, config=config)[0],
      x["logprob_BT"],
    )
  _, metrics = verl.get_policy_loss_fn("vanilla")(
    old, torch.tensor(x["logprob_BT"]), advantage, mask, "token-mean", config
  )
  for name, value in metrics.items():
    yield f"metrics/{name.removeprefix('actor/')}", np.array(value)
  reference = torch.tensor(x["reference_BT"])
  for name in ("k1", "k2", "k3", "k1+", "k3+"):
    yield from _named(
      f"kl/{name}",
      lambda v, n=name: verl.kl_penalty(v, reference, n),
      x["logprob_BT"],
    )
  yield from _named(
    "value",
    lambda v: verl.compute_value_loss(
      v,
      torch.tensor(x["return_BT"]),
      torch.tensor(x["old_value_BT"]),
      mask,
      0.3,
    )[0],
    x["value_BT"],
  )


def _corrections(corrections, x):
  mask = torch.tensor(x["mask_BT"], dtype=torch.float64)
  log_ratio = torch.tensor(x["logprob_BT"] - x["old_BT"])
  for level in ("token", "sequence"):
    for name, threshold in (("truncated", 2.0), ("masked", "0.5_2.0")):
      for normalize in (False, True):
        try:
          weights, _ = corrections.compute_rollout_correction_weights(
            log_ratio,
            mask,
            rollout_is=level,
            rollout_is_threshold=threshold,
            rollout_is_batch_normalize=normalize,
          )
        except ZeroDivisionError:  # theirs, if no weight is left
          continue
        suffix = "_normalized" if normalize else ""
        yield f"weights/{level}_{name}{suffix}", weights.numpy()


def _named(name, function, x):
  value, gradient = with_gradient(function, x)
  yield name, value
  yield f"{name}/gradient", gradient


def main() -> None:
  """Writes the inputs and results of every seed to one file."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--verl", type=pathlib.Path, required=True)
  parser.add_argument("--ragen", type=pathlib.Path)
  parser.add_argument("--add", type=pathlib.Path, help="a checkout of GMPO")
  parser.add_argument("--add_dppo", action="store_true")
  parser.add_argument("--seeds", type=int, default=6)
  parser.add_argument(
    "--out",
    type=pathlib.Path,
    default=pathlib.Path(__file__).with_name("originals.npz"),
  )
  arguments = parser.parse_args()
  # Else constants that verl makes on the way are rounded to float32.
  torch.set_default_dtype(torch.float64)
  verl, corrections = originals.load_verl(arguments.verl)
  if arguments.add:
    lines = originals.load_gmpo(arguments.add)
    add(arguments.out, lambda x: gmpo(verl, lines, x))
    return
  if arguments.add_dppo:
    add(arguments.out, lambda x: dppo(verl, x))
    return
  ragen = originals.load_ragen(arguments.ragen)
  batches = []
  for seed in range(arguments.seeds):
    x = {
      # Float32 can hold them, so that it loses nothing before it starts.
      name: value.astype(np.float32).astype(float)
      if value.dtype == float
      else value
      for name, value in inputs(seed).items()
    }
    batch = {f"in/{name}": value for name, value in x.items()}
    for name, value in results(verl, corrections, ragen, x):
      batch[f"out/{name}"] = np.asarray(value, np.float64)
    batches.append(batch)
  names = {name: batch[name] for batch in batches for name in batch}
  np.savez_compressed(
    arguments.out,
    **{
      # NaN where an original had no answer.
      name: np.stack(
        [b[name] if name in b else np.full(like.shape, np.nan) for b in batches]
      )
      for name, like in names.items()
    },
  )


if __name__ == "__main__":
  main()
