"""Token log-probabilities, forward and backward, against plain torch.

  python -m bench.learner.losses [--pairs=9]
    [--peer_python=.venv-peers/bin/python]

Three measurements, each of a mean negative log-likelihood and its gradient with
respect to hidden states and output matrix:

- loss: N=2048 tokens of width D=512 over V=16384 vocabulary entries in float32
  on the CPU. Torch takes turns with all of our forms, after loss and gradients
  have been found equal; the result is the median of the ratios. The limit is
  the arithmetic of the three matrix products that every form needs, at the rate
  of a large product that is measured in the same turns.
- words: N=16384, D=1024, V=151936 on the CPU: temporary memory by the
  compiler's own account, available memory, and the time of the fused form.
- gpu, if there is one: N=16384, D=1024, V=151936 with bfloat16 states.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.losses import fused_token_logprob, token_logprob
from bench import timing
from bench.torch_peer import TorchPeer

TRAINED = 0.22  # share of tokens that a policy sampled, as in agents' episodes
TOLERANCE = 1e-5  # of the loss, and of gradients relative to their largest
MIB, GIB = 2**20, 2**30
LOSS = {"B": 8, "T": 256, "D": 512, "V": 16384}
WORDS = {"B": 1, "T": 16384, "D": 1024, "V": 151936}
WORDS_TILES = {"chunk_size": 8192, "vocab_chunk_size": 1024}
GPU = {"B": 1, "T": 16384, "D": 1024, "V": 151936}
GPU_TILES = {"chunk_size": 16384, "vocab_chunk_size": 4096}
SQUARE = 8192  # width of the square product that sets the GPU's limit


def make_inputs(size, seed=0):
  """Hidden states, output matrix, tokens and the mask of trained tokens."""
  rng = np.random.default_rng(seed)
  rows = size["B"], size["T"]
  shape = size["D"], size["V"]
  output = rng.standard_normal(shape, np.float32) * size["D"] ** -0.5
  return (
    rng.standard_normal((*rows, size["D"]), np.float32),
    output.astype(np.float32),
    rng.integers(0, size["V"], rows),
    rng.random(rows) < TRAINED,
  )


def plain(hidden, output, token, mask):
  """Computes all logits at once."""
  del mask
  return -token_logprob(hidden @ output, token).mean()


def fused(hidden, output, token, mask, **tiles):
  """Computes the logits of one tile at a time."""
  del mask
  return -fused_token_logprob(hidden, output, token, **tiles)[0].mean()


def trained(hidden, output, token, mask, **tiles):
  """Computes the tiles of trained tokens only."""
  logprob, _ = fused_token_logprob(hidden, output, token, mask, **tiles)
  return -logprob.sum() / mask.sum()


def compiled(loss, *inputs, **options):
  """Compiles the loss and its gradients as one program."""
  loss = functools.partial(loss, **options)
  step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
  return step.lower(*inputs).compile()


def temporary(program) -> int:
  """Temporary memory of a program in bytes, without inputs and outputs."""
  return program.memory_analysis().temp_size_in_bytes


def main() -> None:
  """Prints one JSON object."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--pairs", type=int, default=9)
  parser.add_argument(
    "--peer_python", type=pathlib.Path, default=".venv-peers/bin/python"
  )
  options = parser.parse_args()
  with jax.default_device(jax.devices("cpu")[0]):
    result = {
      "jax": jax.__version__,
      "loss": loss_row(options.pairs, options.peer_python),
      "words": words_row(),
    }
  if jax.default_backend() == "gpu":
    result["gpu"] = gpu_row(options.pairs)
  sys.stdout.write(json.dumps(result, indent=2) + "\n")


def loss_row(pairs: int, peer_python: pathlib.Path) -> dict[str, object]:
  """Compares with torch, the plain form, and the limit."""
  load_before = timing.load()
  inputs = jax.device_put(make_inputs(LOSS))
  programs = {
    "plain": compiled(plain, *inputs),
    "fused": compiled(fused, *inputs, chunk_size=256, vocab_chunk_size=1024),
    # As under jit over a mesh that splits the words.
    "fused_wide": compiled(fused, *inputs, chunk_size=32),
    "trained": compiled(trained, *inputs, chunk_size=24, vocab_chunk_size=1024),
  }
  flat = inputs[0].reshape(-1, LOSS["D"])
  product = jax.jit(jnp.matmul).lower(flat, inputs[1]).compile()
  turns = {
    name: functools.partial(timing.times_of, program, *inputs)
    for name, program in programs.items()
  }
  turns["product"] = functools.partial(
    timing.times_of, product, flat, inputs[1]
  )
  with tempfile.TemporaryDirectory() as folder:
    peer = _peer(peer_python, inputs, pathlib.Path(folder))
    if peer:
      assert_equal(programs, inputs, peer)
      turns["torch"] = peer.loss_times
      turns["torch_product"] = peer.product_times
    timing.in_turn(turns, 1)
    times = timing.in_turn(turns, pairs)
    if peer:
      peer.close()
  return _loss_result(times, programs) | {
    "torch": peer.version if peer else None,
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


def assert_equal(programs, inputs, peer: TorchPeer) -> None:
  """Requires that every form computes torch's loss and gradients."""
  for name in ("plain", "fused", "fused_wide"):
    loss, gradients = programs[name](*inputs)
    np.testing.assert_allclose(loss, peer.loss, rtol=TOLERANCE)
    for found, wanted in zip(gradients, peer.gradients, strict=True):
      np.testing.assert_allclose(
        found.reshape(wanted.shape),
        wanted,
        atol=TOLERANCE * np.abs(wanted).max(),
      )


def _peer(python, inputs, folder) -> TorchPeer | None:
  if not python.exists():
    sys.stderr.write(
      f"{python} is not there, so torch is left out; `make bench` makes it\n"
    )
    return None
  hidden, output, token, _ = map(np.asarray, inputs)
  flat = hidden.reshape(-1, LOSS["D"])
  return TorchPeer(
    python,
    {"hidden": flat, "output": output, "token": token.reshape(-1)},
    folder,
  )


def _loss_result(times, programs) -> dict[str, object]:
  arithmetic = 2 * np.prod(list(LOSS.values()), dtype=float)
  memory = {name: temporary(each) for name, each in programs.items()}
  result = {
    "work": LOSS | {"dtype": "float32", "trained": TRAINED},
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "temporary_mib": {name: size / MIB for name, size in memory.items()},
    "memory_against_plain": memory["fused"] / memory["plain"],
    "times_faster_than_plain": timing.ratio(times["plain"], times["fused"]),
    "share_of_product_limit": {
      name: timing.ratio(times["product"], times[name], factor=3)
      for name in ("plain", "fused", "fused_wide")
    },
    "product_gflops": {
      name: arithmetic / statistics.median(t.wall for t in times[name]) / 1e9
      for name in ("product", "torch_product")
      if name in times
    },
  }
  if "torch" in times:
    result["times_faster_than_torch"] = {
      name: timing.ratio(times["torch"], times[name]) for name in programs
    }
    # What three products alone would reach.
    result["times_faster_than_torch"]["limit"] = timing.ratio(
      times["torch"], times["product"], factor=1 / 3
    )
  return result


def words_row() -> dict[str, object]:
  """Measures memory with the vocabulary of a large language model."""
  inputs = jax.device_put(make_inputs(WORDS))
  some = (inputs[0][:, :64], inputs[1], inputs[2][:, :64], None)
  np.testing.assert_allclose(
    fused(*some, **WORDS_TILES), plain(*some), rtol=TOLERANCE
  )
  program = compiled(fused, *inputs, **WORDS_TILES)
  return {
    "work": WORDS | WORDS_TILES | {"dtype": "float32"},
    "temporary_gib": {
      "plain": temporary(compiled(plain, *inputs)) / GIB,
      "fused": temporary(program) / GIB,
    },
    "memory_gib": os.sysconf("SC_PHYS_PAGES")
    * os.sysconf("SC_PAGE_SIZE")
    / GIB,
    "fused_seconds": timing.times_of(program, *inputs).wall,
  }


def gpu_row(pairs: int) -> dict[str, object]:
  """The rate of the three required products over that of a large one."""
  hidden, output, token, mask = jax.device_put(make_inputs(GPU))
  inputs = (hidden.astype(jnp.bfloat16), output, token, mask)
  square = jax.random.normal(jax.random.key(0), (SQUARE, SQUARE), jnp.bfloat16)
  program = compiled(fused, *inputs, **GPU_TILES)
  product = jax.jit(jnp.matmul).lower(square, square).compile()
  turns = {
    "fused": functools.partial(timing.times_of, program, *inputs),
    "product": functools.partial(timing.times_of, product, square, square),
  }
  timing.in_turn(turns, 1)
  times = timing.in_turn(turns, pairs)
  needed = 3 * np.prod(list(GPU.values()), dtype=float) / SQUARE**3
  return {
    "work": GPU | GPU_TILES | {"dtype": "bfloat16"},
    "device": jax.devices()[0].device_kind,
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "temporary_gib": temporary(program) / GIB,
    "share_of_product_limit": timing.ratio(
      times["product"], times["fused"], factor=needed
    ),
  }


if __name__ == "__main__":
  main()
