"""The shape of a policy, checked before anything is allocated."""

import dataclasses

from agentrl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """The `model` section of the config: the Qwen2.5 / Qwen3 family of decoders.

  `attention_block` cuts the queries of a training row into blocks that attend
  to no key after themselves, which skips the upper triangle; 0 does not cut.
  """

  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_width: int
  rope_theta: float = 1e4
  norm_epsilon: float = 1e-6
  tied_embedding: bool = True
  embedding_scale: float = 1.0  # what embedded tokens are multiplied by
  qk_norm: bool = False  # Qwen3
  qkv_bias: bool = False  # Qwen2.5
  attention_block: int = 0  # tokens
  value_head: bool = False  # a critic on the policy's hidden states

  def __post_init__(self) -> None:
    for field in (
      "vocab_size",
      "width",
      "num_layers",
      "num_heads",
      "num_kv_heads",
      "head_dim",
      "mlp_width",
    ):
      if getattr(self, field) < 1:
        raise ConfigError(
          f"model.{field}={getattr(self, field)} must be at least 1"
        )
    if self.num_heads % self.num_kv_heads:
      raise ConfigError(
        f"model.num_heads={self.num_heads} must be a multiple of "
        f"model.num_kv_heads={self.num_kv_heads}: each key/value head serves "
        "the same number of query heads"
      )
    if self.head_dim % 2:
      raise ConfigError(
        f"model.head_dim={self.head_dim} must be even: rotary positions turn "
        "pairs of channels"
      )
    if self.attention_block < 0:
      raise ConfigError(
        f"model.attention_block={self.attention_block} must be 0 (off) or a "
        "number of tokens"
      )
