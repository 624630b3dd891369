"""The tiny run, with updates that last for as long as a file exists.

Its own checkpoint.grace_s is far shorter than such an update.
"""

import os
import pathlib
import time

import jax
import jax.numpy as jnp

from tests.launch import tiny

HOLD = pathlib.Path(os.environ.get("HOLD", "/nonexistent"))
POLL_S = 0.05


def weight_when_let_go(mask_BT):
  """Weighs all tokens alike, once no file holds the update."""
  shape = jax.ShapeDtypeStruct(mask_BT.shape, jnp.float32)
  return jax.pure_callback(_wait, shape, mask_BT)


def _wait(mask_BT):
  if HOLD.exists():
    HOLD.with_suffix(".reached").touch()
  while HOLD.exists():
    time.sleep(POLL_S)
  return mask_BT.astype(jnp.float32)


def get_config():
  c = tiny.get_config()
  c.train.steps = 1000
  c.checkpoint.grace_s = 0.5
  c.loss.token_weight = "tests.launch.tpu.slow_update:weight_when_let_go"
  return c
