"""Run by `fused_sharding_test` in a process with eight devices of its own.

The vocabulary of the output matrix is split over a mesh axis "tensor", and the
rows over "data". Prints, for each way to say so, by how much log-probability,
entropy and gradients differ from those of one device, and what the devices of a
compiled program send each other, as JSON.
"""

import functools
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from agentrl_jax.losses import AllowedTokens, fused_token_logprob

B, T, D, V = 4, 6, 5, 264
ROWS, VOCABULARY = P("data"), P(None, "tensor")
IN_SPECS = (ROWS, VOCABULARY, P(), ROWS, ROWS, P(None, "data"), ROWS, P())
TEMPERATURE = 0.7
# Options that change the numbers.
ALONE = ("masked", "entropy_gradient", "constrained")


def inputs():
  """Returns hidden states, output matrix, temperature, and data of tokens."""
  rng = np.random.default_rng(0)
  return (
    rng.normal(size=(B, T, D)).astype(np.float32),
    rng.normal(size=(D, V)).astype(np.float32),
    np.float32(TEMPERATURE),
    rng.integers(V, size=(B, T)),
    rng.random((B, T)) < 0.6,
    rng.normal(size=(2, B, T)).astype(np.float32),
    rng.integers(2, size=(B, T), dtype=np.int32),
    _masks(rng),
  )


def _masks(rng):
  """One that allows everything, and one that allows some, here and there."""
  mask_MX = rng.integers(2**32, size=(2, -(-V // 32)), dtype=np.uint32)
  mask_MX[0] = 2**32 - 1
  return mask_MX


def _total(
  hidden,
  output,
  temperature,
  token,
  mask,
  weight,
  row,
  table,
  masked=True,
  constrained=False,
  **options,
):
  """A number that depends on every log-probability and every entropy."""
  logprob, entropy = fused_token_logprob(
    hidden,
    output,
    token,
    mask if masked else None,
    temperature=temperature,
    allowed=AllowedTokens(row, table) if constrained else None,
    **{"chunk_size": 2} | options,
  )
  if constrained:  # a token that was not allowed has -inf
    logprob = jnp.maximum(logprob, -100)
  used = jnp.where(mask, weight[0] * logprob + weight[1] * entropy, 0)
  return jnp.sum(used), (logprob, entropy)


def gradient_of(**options):
  """Returns the total and its gradient, on one device."""
  return _gradient(functools.partial(_total, **options))


def _gradient(total):
  return jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)


def _compiled(mesh: Mesh, **options):
  """The compiler finds out what to send."""
  on = functools.partial(NamedSharding, mesh)
  return jax.jit(
    gradient_of(**options),
    in_shardings=tuple(map(on, IN_SPECS)),
    out_shardings=(
      (on(P()), (on(ROWS), on(ROWS))),
      (on(ROWS), on(VOCABULARY), on(P())),
    ),
  )


def mapped(mesh: Mesh, *, check_vma: bool = True, **options):
  """Every device computes with its shard; the gradient is taken outside."""

  def total(*arguments):
    value, found = _total(*arguments, vocab_axis="tensor", **options)
    return jax.lax.psum(value, "data"), found

  return jax.jit(
    _gradient(
      jax.shard_map(
        total,
        mesh=mesh,
        in_specs=IN_SPECS,
        out_specs=(P(), (ROWS, ROWS)),
        check_vma=check_vma,
      )
    )
  )


def _mapped_gradient(mesh: Mesh, **options):
  """The gradient is taken inside, by each device."""

  def total(*arguments):
    value, found = _total(*arguments, vocab_axis="tensor", **options)
    return jax.lax.psum(value, "data"), found

  return jax.jit(
    jax.shard_map(
      _gradient(total),
      mesh=mesh,
      in_specs=IN_SPECS,
      out_specs=((P(), (ROWS, ROWS)), (ROWS, VOCABULARY, P())),
    )
  )


def _cases():
  """Mesh, name, way and its options."""
  for shape in ((2, 4), (1, 8)):
    yield shape, "compiled", _compiled, {}
    yield shape, "mapped", mapped, {}
    yield shape, "mapped gradient", _mapped_gradient, {}
  yield (2, 4), "no mask", _compiled, {"masked": False}
  yield (2, 4), "entropy constant", mapped, {"entropy_gradient": False}
  yield (2, 4), "narrow tiles", mapped, {"vocab_chunk_size": 10}
  yield (2, 4), "unchecked", mapped, {"check_vma": False}
  constrained = {"constrained": True}
  yield (2, 4), "constrained", _compiled, constrained
  yield (2, 4), "constrained and mapped", mapped, constrained
  yield (
    (2, 4),
    "in narrow tiles",
    mapped,
    constrained | {"vocab_chunk_size": 10},
  )


def difference(found, wanted) -> float:
  """The largest, relative to the largest entry of each array."""
  return max(
    float(np.max(np.abs(np.asarray(a) - b)) / np.max(np.abs(b)))
    for a, b in zip(
      jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True
    )
  )


def _sent(program) -> list[tuple[str, int]]:
  """Kind of each collective of the program, and size of its largest array."""
  found = re.findall(
    r"= (.*?) (all-gather|all-to-all|all-reduce|reduce-scatter|"
    r"collective-permute)(?:-start)?\(",
    program.as_text(),
  )
  return [
    (kind, max(_size(shape) for shape in re.findall(r"\[([\d,]*)\]", result)))
    for result, kind in found
  ]


def _size(shape: str) -> int:
  return int(np.prod([int(n) for n in shape.split(",") if n]))


def main() -> None:
  """Compares each way with one device."""
  devices = jax.devices()
  if len(devices) != 8:
    sys.exit(f"eight devices are needed, found {len(devices)}")
  arguments = inputs()

  @functools.cache
  def alone(**options):
    return jax.jit(gradient_of(**options))(*arguments)

  differences, sent = {}, {}
  for shape, name, way, options in _cases():
    mesh = Mesh(np.reshape(devices, shape), ("data", "tensor"))
    program = way(mesh, **options).lower(*arguments).compile()
    name = f"{name} {shape[0]}x{shape[1]}"
    found = program(*arguments)
    options = {k: v for k, v in options.items() if k in ALONE}
    differences[name] = difference(found, alone(**options))
    sent[name] = _sent(program)
  sys.stdout.write(json.dumps({"differences": differences, "sent": sent}))


if __name__ == "__main__":
  main()
