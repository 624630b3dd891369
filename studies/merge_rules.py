"""Merges policies that were trained from one base into one policy.

Functions of one array at a time: `base` is the array of the common ancestor,
`experts` those of the policies, all float of one shape. So a merge of large
models needs one array of each in memory, and may run over any tree of arrays.
A change is tau_i = expert_i - base.

  mean             mean of the experts
  task_arithmetic  base + scale sum_i tau_i (arXiv:2212.04089)
  ties             of each tau_i only the largest share `keep`; by entry, the
                   sign with more mass; mean of the changes of this sign, times
                   scale (arXiv:2306.01708)
  dare             of each tau_i a random share `keep`, over `keep`; base +
                   scale times their sum (arXiv:2311.03099)
  ram              by entry, mean of tau_i over the experts that changed it
                   (arXiv:2601.13572)
  ram_plus         the same, and what expert i alone changed times
                   lambda_i = 1 + (boost - 1) min(1, shared_i / unique_i)

Sums are in float64 and in an order that does not depend on that of the experts.
"""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

RULES = ("mean", "task_arithmetic", "ties", "dare", "ram", "ram_plus")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeRule:
  """A rule and its constants; each rule ignores the constants of others."""

  name: str = "mean"
  scale: float = 1.0
  keep: float = 0.2  # of the entries of an array
  boost: float = 1.2
  # Of a change that `ram` counts; None: the two differ in bfloat16, since Adam
  # in float32 moves nearly every entry beyond the paper's 1e-5.
  threshold: float | None = None
  seed: int = 0  # of random choices


@dataclasses.dataclass(frozen=True)
class Overlap:
  """Entries that one expert changed: alone, and together with others."""

  unique: int = 0
  shared: int = 0
  total: int = 0  # entries of the arrays that were looked at

  def __add__(self, other: "Overlap") -> "Overlap":
    return Overlap(
      self.unique + other.unique,
      self.shared + other.shared,
      self.total + other.total,
    )

  def boost(self, most: float) -> float:
    """Returns lambda of `ram_plus`; `most` where nothing is unique."""
    if not self.unique:
      return most
    return 1 + (most - 1) * min(1.0, self.shared / self.unique)


def overlaps(
  base: np.ndarray, experts: Mapping[str, np.ndarray], rule: MergeRule
) -> dict[str, Overlap]:
  """Counts the entries of one array that each expert changed.

  Summed over all arrays of a model, they decide `ram_plus`.
  """
  changed = {name: _changed(base, x, rule) for name, x in experts.items()}
  number = sum(mask.astype(np.int32) for mask in changed.values())
  return {
    name: Overlap(
      unique=int((mask & (number == 1)).sum()),
      shared=int((mask & (number > 1)).sum()),
      total=base.size,
    )
    for name, mask in changed.items()
  }


def merge(
  base: np.ndarray,
  experts: Mapping[str, np.ndarray],
  rule: MergeRule,
  *,
  whole: Mapping[str, Overlap] | None = None,
  array_name: str = "",
) -> np.ndarray:
  """Merges one array of each expert, by the expert's name; the base's dtype.

  `whole` is the overlap in the whole model, which `ram_plus` needs. With
  `array_name` and the expert's name, `rule.seed` decides the random choices of
  `dare`.
  """
  arrays = {name: x.astype(np.float64) for name, x in experts.items()}
  origin = base.astype(np.float64)
  if rule.name == "mean":
    merged = _sum(list(arrays.values())) / len(arrays)
  elif rule.name == "task_arithmetic":
    merged = origin + rule.scale * _sum([x - origin for x in arrays.values()])
  elif rule.name == "ties":
    taus = [_largest(x - origin, rule.keep) for x in arrays.values()]
    merged = origin + rule.scale * _of_one_sign(taus)
  elif rule.name == "dare":
    taus = [
      (x - origin) * _random_mask(base.shape, rule, name, array_name)
      for name, x in arrays.items()
    ]
    merged = origin + rule.scale / rule.keep * _sum(taus)
  else:
    boosts = dict.fromkeys(experts, 1.0)
    if rule.name == "ram_plus":
      assert whole is not None
      boosts = {name: whole[name].boost(rule.boost) for name in experts}
    merged = _ram(base, experts, rule, boosts)
  result: np.ndarray = merged.astype(base.dtype)
  return result


def _ram(
  base: np.ndarray,
  experts: Mapping[str, np.ndarray],
  rule: MergeRule,
  boosts: Mapping[str, float],
) -> np.ndarray:
  origin = base.astype(np.float64)
  masks = {name: _changed(base, x, rule) for name, x in experts.items()}
  number = sum(mask.astype(np.int32) for mask in masks.values())
  changes = [
    np.where(
      masks[name],
      (x.astype(np.float64) - origin)
      * np.where(number == 1, boosts[name], 1.0),
      0.0,
    )
    for name, x in experts.items()
  ]
  return origin + _sum(changes) / np.maximum(number, 1)


def _changed(
  base: np.ndarray, expert: np.ndarray, rule: MergeRule
) -> np.ndarray:
  if rule.threshold is None:
    return np.asarray(
      base.astype(jnp.bfloat16) != expert.astype(jnp.bfloat16), bool
    )
  tau = expert.astype(np.float64) - base.astype(np.float64)
  return np.abs(tau) > rule.threshold


def _largest(tau: np.ndarray, keep: float) -> np.ndarray:
  """Sets all but the largest share `keep` to 0; equals stay together."""
  number = max(1, round(keep * tau.size))
  sizes = np.abs(tau)
  least = np.partition(sizes, tau.size - number, axis=None)[tau.size - number]
  return np.where(sizes >= least, tau, 0.0)


def _of_one_sign(taus: Sequence[np.ndarray]) -> np.ndarray:
  """Means, by entry, over the changes with the sign of their sum."""
  elected = np.sign(_sum(taus))
  agreeing = [np.where(np.sign(tau) == elected, tau, 0.0) for tau in taus]
  number = sum((tau != 0).astype(np.int32) for tau in agreeing)
  return _sum(agreeing) / np.maximum(number, 1)


def _random_mask(
  shape: tuple[int, ...], rule: MergeRule, expert: str, array_name: str
) -> np.ndarray:
  text = f"{rule.seed}/{expert}/{array_name}"
  dice = np.random.default_rng(zlib.crc32(text.encode()))
  return dice.random(shape) < rule.keep


def _sum(arrays: Sequence[np.ndarray]) -> np.ndarray:
  """Sums in order of value by entry, so that names and order do not matter."""
  return np.sort(np.stack(arrays), axis=0).sum(axis=0)
