"""Whether a mesh divides what it is to split, before anything is compiled."""

from collections.abc import Mapping

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention_splash import check_length
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.train.batches import BatchConfig


def check_mesh(
  mesh: Mapping[str, int],
  model: ModelConfig,
  compute: ComputeConfig,
  batch: BatchConfig,
) -> None:
  """Raises `ConfigError` naming both sides and what to change."""
  for axis, size in mesh.items():
    if size < 1:
      raise ConfigError(f"mesh.{axis}={size} must be at least 1")
  devices = mesh["data"] * mesh["fsdp"]
  if batch.micro_batch % devices:
    raise ConfigError(
      f"train.micro_batch={batch.micro_batch} rows cannot be split over "
      f"mesh.data x mesh.fsdp = {devices} devices: make it a multiple"
    )
  for key, size, axis in (
    ("train.row_length", batch.row_length, "sequence"),
    ("model.width", model.width, "fsdp"),
    ("model.num_kv_heads", model.num_kv_heads, "tensor"),
    ("model.mlp_width", model.mlp_width, "tensor"),
    ("the vocabulary", model.vocab_size, "tensor"),
  ):
    if size % mesh[axis]:
      raise ConfigError(
        f"{key}={size} cannot be split over mesh.{axis}={mesh[axis]} devices: "
        f"set --config.mesh.{axis} to a divisor of {size}"
      )
  if compute.attention == "splash":
    check_length(batch.row_length, mesh["sequence"])
