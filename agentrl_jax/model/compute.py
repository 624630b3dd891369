"""Computation settings of a policy: precision, loops, rematerialisation.

These settings change outputs by rounding only, so two starts of one run may
differ in them; the architecture is in `model.config`.
"""

import dataclasses

import jax

from agentrl_jax.keys import Section, key
from agentrl_jax.model import compiler_options
from agentrl_jax.model.sharding import GATHERED

DTYPES = ("float32", "bfloat16")
# What a layer keeps of its forward pass for the backward pass; the rest is
# computed again. Nothing keeps params that were gathered.
ATTENDED = "attended"  # what attention makes of its values, by name
REMAT_POLICIES = {
  "none": jax.checkpoint_policies.save_anything_except_these_names(GATHERED),
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "attention": jax.checkpoint_policies.save_only_these_names(ATTENDED),
  "full": jax.checkpoint_policies.nothing_saveable,
}
ATTENTIONS = ("auto", "xla", "splash", "cudnn")
CACHE_ATTENTIONS = ("auto", "xla", "ragged")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig(Section, section="compute"):
  """The `compute` section of the config.

  `attention` is the kernel over training rows: "auto" takes "splash" on a TPU,
  "cudnn" on a GPU that supports it (with a warning if not), and "xla"
  elsewhere. With an `attention_block` above 0, "xla" takes blocks of so many
  queries and keys one after another and skips those that nobody sees; with 0 it
  takes blocks of 64 for rows above 256 tokens on a CPU, and else all pairs of a
  row at once; splash then takes blocks of 512.

  `cache_attention` is the kernel of a decode step: "ragged" reads the pages
  that sequences fill, "xla" copies them first; "auto" takes "ragged" on a TPU.

  `remat` says what the backward pass computes again: "none" nothing, "dots" all
  but products with params, "attention" all but attention, "full" everything.

  `scan_layers` compiles one layer for all of them: the time to compile and the
  size of the program no longer grow with depth. Decoding never scans.

  `compiler_options` are those of XLA: "auto" takes the table of
  `model.compiler_options` for the chip, "none" the compiler's defaults. Either
  may be followed by more: "auto,xla_tpu_scoped_vmem_limit_kib=65536".
  """

  dtype: str = key(
    "float32", "of activations and products; params stay float32", one_of=DTYPES
  )
  scan_layers: bool = key(False, "compile one layer for all, for deep models")
  remat: str = key(
    "none", "values recomputed in the backward pass", one_of=REMAT_POLICIES
  )
  attention: str = key(
    "auto",
    "kernel of updates; splash is for TPUs, cudnn for GPUs",
    one_of=ATTENTIONS,
  )
  attention_block: int = key(
    0, "tokens of a block of a training row; 0 lets the kernel choose"
  )
  cache_attention: str = key(
    "auto",
    "kernel of decode steps; ragged is for TPUs",
    one_of=CACHE_ATTENTIONS,
  )
  compiler_options: str = key(
    "auto",
    "of XLA: auto, by the generation of TPU; none, the compiler's defaults. "
    "More may follow: auto,xla_tpu_scoped_vmem_limit_kib=65536",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    compiler_options.parse(self.compiler_options)
