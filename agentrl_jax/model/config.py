"""Architecture of a policy, checked before anything is allocated."""

import dataclasses

from agentrl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """The `model` section of the config: Qwen2.5, Qwen3, Llama 3 and GLM-4.

  Llama 3 stretches rotary wavelengths beyond `rope_original_context /
  rope_low_frequency` by `rope_factor`, keeps those below
  `rope_original_context / rope_high_frequency`, and blends between.
  """

  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_width: int
  rope_theta: float = 1e4
  rope_factor: float = 1.0  # 1 does not stretch
  rope_low_frequency: float = 1.0  # turns within the original context
  rope_high_frequency: float = 4.0
  rope_original_context: int = 0  # tokens
  partial_rotary_factor: float = (
    1.0  # of a head's channels that turn; GLM-4: 0.5
  )
  norm_epsilon: float = 1e-6
  tied_embedding: bool = True
  embedding_scale: float = 1.0  # what embedded tokens are multiplied by
  qk_norm: bool = False  # Qwen3
  qkv_bias: bool = False  # Qwen2.5, GLM-4
  sandwich_norm: bool = (
    False  # GLM-4: branches are normed before they are added
  )
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
    self._check_rotary()

  @property
  def rotary_channels(self) -> int:
    """Number of channels of a head that are rotated, the first ones."""
    return int(self.head_dim * self.partial_rotary_factor)

  def _check_rotary(self) -> None:
    if not 0 < self.partial_rotary_factor <= 1:
      raise ConfigError(
        f"model.partial_rotary_factor={self.partial_rotary_factor} must lie "
        "in (0, 1]"
      )
    if self.rotary_channels % 2:
      share = f" x partial_rotary_factor={self.partial_rotary_factor}"
      product = share if self.partial_rotary_factor < 1 else ""
      raise ConfigError(
        f"model.head_dim={self.head_dim}{product} must be even: rotary "
        "positions turn pairs of channels"
      )
    if not self.rope_factor >= 1:
      raise ConfigError(
        f"model.rope_factor={self.rope_factor} must be 1 (off) or above"
      )
    if self.rope_factor > 1 and not (
      self.rope_original_context > 0
      and 0 < self.rope_low_frequency < self.rope_high_frequency
    ):
      raise ConfigError(
        f"model.rope_factor={self.rope_factor} needs "
        f"model.rope_original_context={self.rope_original_context} above 0 and "
        f"0 < model.rope_low_frequency={self.rope_low_frequency} < "
        f"model.rope_high_frequency={self.rope_high_frequency}"
      )
