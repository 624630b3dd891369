"""Run by `paged_test` with eight devices: heads of pages over four."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model import cache as kv
from agentrl_jax.model import sharding
from agentrl_jax.model.attention import cached, reference
from tests.settings import compute_config


def main() -> None:
  rng = np.random.default_rng(0)
  q = rng.normal(size=(2, 1, 4, 2, 16)).astype(np.float32)
  k, v = rng.normal(size=(2, 5, 4, 128, 16)).astype(np.float32)
  mesh = sharding.make_mesh({"tensor": 4}, jax.devices()[:4])
  one = (2, 1, 1, 8, 16)
  sinks = jnp.arange(8.0).reshape(4, 2)
  position, table = jnp.array([[5], [199]]), jnp.array([[3, 5], [4, 1]])

  @jax.jit
  def attend(q, arrays):
    return cached.attend(
      q,
      arrays,
      table,
      position,
      sinks.reshape(q.shape[2:4]),
      window=50,
      compute=compute_config(cache_attention="ragged"),
      mesh=mesh,
    )

  apart = 0.0
  # Of as many heads as queries; and one that all share, as its own values.
  for queries, cached_arrays in ((q, (k, v)), (q.reshape(one), (k[:, :1],))):
    found = attend(queries, cached_arrays)
    rows = [kv.take_pages(jnp.asarray(x), table) for x in cached_arrays]
    shape = queries.shape[2:4]
    wanted = reference.attend_cache(
      queries, rows[0], rows[-1], position, sinks.reshape(shape), window=50
    )
    apart = max(apart, float(np.max(np.abs(np.asarray(found) - wanted))))
  sys.stdout.write(
    json.dumps({"devices": len(found.sharding.device_set), "apart": apart})
  )


if __name__ == "__main__":
  main()
