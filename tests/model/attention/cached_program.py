"""Run by `cached_attention_test` with eight devices: heads over four."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model import sharding
from agentrl_jax.model.attention import cached, reference
from tests.settings import compute_config


def main() -> None:
  rng = np.random.default_rng(0)
  q = rng.normal(size=(2, 1, 4, 2, 16)).astype(np.float32)
  k, v = rng.normal(size=(2, 2, 4, 128, 16)).astype(np.float32)
  mesh = sharding.make_mesh({"tensor": 4}, jax.devices()[:4])
  position = jnp.array([[5], [99]])

  sinks = jnp.arange(8.0).reshape(4, 2)

  @jax.jit
  def attend(q, k, v):
    return cached.attend(
      q,
      k,
      v,
      position,
      sinks,
      window=50,
      compute=compute_config(cache_attention="ragged"),
      mesh=mesh,
    )

  found = attend(q, k, v)
  wanted = reference.attend_cache(q, k, v, position, sinks, window=50)
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
