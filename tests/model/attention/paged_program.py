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
  sinks = jnp.arange(8.0).reshape(4, 2)
  position, table = jnp.array([[5], [199]]), jnp.array([[3, 5], [4, 1]])

  @jax.jit
  def attend(q, k, v):
    return cached.attend(
      q,
      k,
      v,
      table,
      position,
      sinks,
      window=50,
      compute=compute_config(cache_attention="ragged"),
      mesh=mesh,
    )

  found = attend(q, k, v)
  rows = [kv.take_pages(jnp.asarray(x), table) for x in (k, v)]
  wanted = reference.attend_cache(q, *rows, position, sinks, window=50)
  sys.stdout.write(
    json.dumps(
      {
        "devices": len(found.sharding.device_set),
        "apart": float(np.max(np.abs(np.asarray(found) - wanted))),
      }
    )
  )


if __name__ == "__main__":
  main()
