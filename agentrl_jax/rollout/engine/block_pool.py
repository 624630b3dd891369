"""The blocks that a `PrefixCache` keeps: on the device, and on the host.

On the device they are a cache whose slots are one block long. Copies are
launched in the order of `Moves` and wait for nothing: what leaves for the host
arrives some steps later. Only what is wanted back before it has arrived is
waited for.
"""

import collections
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from agentrl_jax.model.cache import KVCache
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.prefix_cache import Carry, Fill, Moves, Save

# Blocks per call that programs are compiled for.
_SIZES = (8, 32, 128)
_NOWHERE = 2**30  # a slot or block that does not exist: padding


class _Staged(NamedTuple):
  """Blocks on their way to the host."""

  target_N: np.ndarray  # on the host
  blocks: KVCache


class BlockPool:
  """Arrays for `num_device` and `num_host` blocks of `block_size` tokens."""

  def __init__(
    self,
    policy: Policy,
    block_size: int,
    num_device: int,
    num_host: int,
    sharding: jax.sharding.Sharding | None = None,
  ):
    self._pool = policy.empty_cache(num_device, block_size)
    if sharding is not None:
      self._pool = jax.device_put(self._pool, sharding)
    self._host = jax.tree.map(
      lambda x: np.zeros((num_host, *x.shape[1:]), x.dtype), self._pool
    )
    self._staged: collections.deque[_Staged] = collections.deque()

  def move(self, moves: Moves, cache: KVCache) -> None:
    """Launches what a batch moves into the pool and out to the host.

    `cache` is that of the slots, from which blocks are saved.
    """
    self.land(wait=bool(moves.uploads))
    rows = [(at, self._from_host(at[:, 0])) for at in _padded(moves.uploads, 2)]
    for at_N2 in _padded(moves.spills, 2):
      blocks = programs.read(self._pool, at_N2[:, 0])
      for x in jax.tree.leaves(blocks):
        x.copy_to_host_async()
      self._staged.append(_Staged(at_N2[:, 1], blocks))
    for at_N2, blocks in rows:
      self._pool = programs.upload(self._pool, at_N2[:, 1], blocks)
    for at_N3 in _padded(list(moves.saves.values()), 3):
      self._pool = programs.save(self._pool, cache, *at_N3.T)

  def fill(self, cache: KVCache, fills: Sequence[Fill]) -> KVCache:
    """The cache with blocks of the pool in its slots; takes the old one."""
    for at_N3 in _padded(fills, 3):
      cache = programs.fill(cache, self._pool, *at_N3.T)
    return cache

  def land(self, *, wait: bool = False) -> None:
    """Takes in what has arrived on the host; all there is, to `wait`."""
    while self._staged and (wait or _is_there(self._staged[0].blocks)):
      target_N, blocks = self._staged[0]
      real_N = target_N != _NOWHERE
      for mine, rows in zip(
        jax.tree.leaves(self._host), jax.tree.leaves(blocks), strict=True
      ):
        mine[target_N[real_N]] = np.asarray(rows)[real_N]
      self._staged.popleft()

  @property
  def num_staged(self) -> int:
    """Copies to the host that have not been taken in."""
    return len(self._staged)

  def _from_host(self, source_N: np.ndarray) -> KVCache:
    real_N = np.where(source_N == _NOWHERE, 0, source_N)
    return jax.tree.map(lambda x: x[real_N], self._host)


def _is_there(blocks: KVCache) -> bool:
  return all(x.is_ready() for x in jax.tree.leaves(blocks))


def _padded(
  rows: Sequence[Save | Fill | Carry], num_fields: int
) -> Iterator[np.ndarray]:
  """Rows as int32 [N, fields] in compiled sizes; few of them are padding."""
  left = np.array(rows, np.int32).reshape(-1, num_fields)
  while len(left):
    size = max((n for n in _SIZES if n <= len(left)), default=_SIZES[0])
    at = np.full((size, num_fields), _NOWHERE, np.int32)
    at[: min(size, len(left))] = left[:size]
    yield at
    left = left[size:]
