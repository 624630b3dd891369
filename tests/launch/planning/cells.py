"""Models on slices: what the matrix of plans is made of.

  python -m tests.launch.planning.cells            # all, as a table
  python -m tests.launch.planning.cells qwen3-8b   # those of one model

Each is AgentRL's own config (configs/pod.py) with rows of 8192 tokens, one per
share of the mesh; the learner has its slice to itself. Long rows are cut over
`sequence` where a chip is small and the model is not.
"""

import dataclasses
import math
import sys

import jax

from agentrl_jax.model.hugging_face.presets import PRESETS
from configs import pod
from launch.config.settings import Settings, read_settings
from launch.planning import formulas
from launch.planning.chips import GIB, parse_slice
from launch.planning.formulas import shape_name
from launch.planning.study import Deployment, Judgement, Planner

MODELS = ("qwen3-1.7b", "qwen3-8b", "qwen2.5-14b", "qwen3-32b")
SLICES = tuple(
  f"{chip}:{shape}"
  for chip, shapes in {
    "v5e": ("2x4", "8x8", "16x16"),
    "v5p": ("2x2x2", "4x4x4", "4x8x8"),
    "v6e": ("2x4", "8x8", "16x16"),
  }.items()
  for shape in shapes
)


@dataclasses.dataclass(frozen=True)
class Cell:
  """A model on a slice."""

  model: str
  slice_name: str

  @property
  def name(self) -> str:
    """To call a test by."""
    return f"{self.model}_{self.slice_name}".replace(":", "_")

  def settings(self) -> Settings:
    """AgentRL on that slice, rollouts elsewhere."""
    slice_ = parse_slice(self.slice_name)
    sequence = SEQUENCE.get((self.model, slice_.chip.name), 1)
    config = pod.get_config(self.model)
    shares = slice_.num_chips // sequence
    # The compiler scatters gradients where each chip has a multiple of 16 rows
    # of a matrix (docs/sharding.md).
    fsdp = math.gcd(shares, PRESETS[self.model].width // 16)
    config.mesh.update(
      data=shares // fsdp, fsdp=fsdp, sequence=sequence, tensor=1
    )
    config.train.micro_batch = shares
    return read_settings(config)

  def judge(self) -> list[Judgement]:
    """The learner's programs, compiled."""
    slice_ = parse_slice(self.slice_name)
    deployment = Deployment(
      learner=slice_,
      rollout=parse_slice(f"{slice_.chip.name}:2x2" + "x1" * _is_cube(slice_)),
    )
    return Planner(deployment).study(self.settings(), ("learner",))


def _is_cube(slice_) -> bool:
  return len(slice_.dims) == 3


# Devices that a row is cut over, where a chip is small and the model is not.
SEQUENCE = {
  ("qwen2.5-14b", "v5e"): 2,
  ("qwen3-32b", "v5e"): 4,
  ("qwen3-32b", "v6e"): 2,
}
CELLS = tuple(Cell(m, s) for m in MODELS for s in SLICES)
# Too much whatever the batch: params, two moments and gradients in float32 and
# the reference in bfloat16 are 18 bytes a parameter.
REFUSED = {
  ("qwen3-8b", "v5e:2x4"),
  ("qwen2.5-14b", "v5e:2x4"),
  ("qwen2.5-14b", "v6e:2x4"),
  ("qwen3-32b", "v5e:2x4"),
  ("qwen3-32b", "v6e:2x4"),
}
# So near the limit that the verdict is the compiler's; it has to come with
# advice where it is no.
TIGHT = {("qwen3-8b", "v6e:2x4"), ("qwen3-32b", "v5p:2x2x2")} | {
  (model, f"{chip}:{shape}")
  for model, chip in SEQUENCE
  for shape in ("8x8", "16x16")
}


def _row(cell: Cell) -> str:
  gradient, apply = cell.judge()
  bound = gradient.roofline
  received = sum(gradient.received.values())
  due = formulas.exchanged(cell.settings())
  speed = (
    f"{bound.links_s * 1e3:,.0f} | {bound.waiting_s * 1e3:,.0f} | "
    f"{bound.step_s * 1e3:,.0f} | {bound.binds} | "
    f"{gradient.tokens_per_s:,.0f}"
    if bound
    else "- | - | - | - | -"
  )
  left = min(gradient.left, apply.left) / GIB
  mesh = shape_name(cell.settings().mesh)
  return (
    f"| {cell.model} | {cell.slice_name} | {mesh} | "
    f"{'yes' if left >= 0 else 'no'} | {left:.1f} | {received / GIB:.1f} | "
    f"{received / due:.2f} | {speed} | "
    f"{gradient.compiled.seconds:.0f} |"
  )


if __name__ == "__main__":
  jax.config.update("jax_platforms", "cpu")
  wanted = sys.argv[1:] or MODELS
  sys.stdout.write(
    "| model | slice | mesh | fits | GiB left | GiB received | of the formula "
    "| ms links | of these synchronous | ms bound | binds | "
    "tokens/s | s to compile |\n|" + "---|" * 13 + "\n"
  )
  for one in CELLS:
    if one.model in wanted:
      sys.stdout.write(f"{_row(one)}\n")
      sys.stdout.flush()
