"""Settings of the rotation of queries and keys, as a part of `ModelConfig`."""

import dataclasses
from collections.abc import Collection, Mapping

from agentrl_jax.errors import ConfigError

# Fields that each `rope_type` reads.
_BANDS = ("rope_low_frequency", "rope_high_frequency", "rope_original_context")
STRETCHES: Mapping[str, tuple[str, ...]] = {
  "default": (),
  "linear": ("rope_factor",),
  "llama3": ("rope_factor", *_BANDS),
  "yarn": (
    "rope_factor",
    *_BANDS,
    "rope_truncate",
    "rope_attention_factor",
    "rope_mscale",
  ),
  "proportional": ("rope_factor",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryConfig:
  """Frequencies of the rotation (arXiv:2104.09864), and how they are stretched.

  By `rope_type`, rotary wavelengths are stretched by `rope_factor`: all of them
  (linear), or those beyond `rope_original_context / rope_low_frequency`, while
  those below `rope_original_context / rope_high_frequency` are kept. Between
  them llama3 blends by frequency, and yarn (arXiv:2309.00071) by channel.
  With proportional (Gemma 4) the later pairs of a head's channels do not turn,
  and `partial_rotary_factor` is the share of those that do.
  """

  rope_theta: float = 1e4
  rope_type: str = "default"  # or a key of STRETCHES
  rope_factor: float = 1.0
  rope_low_frequency: float = 1.0  # turns within the original context
  rope_high_frequency: float = 4.0
  rope_original_context: int = 0  # tokens
  rope_truncate: bool = True  # yarn blends between whole channels
  rope_attention_factor: float = 1.0  # of rotated queries and keys, in yarn
  rope_mscale: float = 0.0  # yarn's of latent attention: see `score_factor`

  def refuse_idle(self, names: Collection[str], why: str) -> None:
    """Raises `ConfigError` for fields that are set, and of no use by `why`."""
    idle = [
      f"model.{field.name}={getattr(self, field.name)!r}"
      for field in dataclasses.fields(self)
      if field.name in names and getattr(self, field.name) != field.default
    ]
    if idle:
      raise ConfigError(
        f"{', '.join(idle)} means nothing with {why}: change that, "
        "or keep the default"
      )

  def check_stretch(self) -> None:
    """Raises `ConfigError` for settings that do not fit together."""
    if self.rope_type not in STRETCHES:
      raise ConfigError(
        f"model.rope_type={self.rope_type!r} must be one of "
        f"{', '.join(STRETCHES)}"
      )
    others = set(STRETCHES["yarn"]) - set(STRETCHES[self.rope_type])
    self.refuse_idle(others, f"model.rope_type={self.rope_type!r}")
    if not (self.rope_factor >= 1 and self.rope_attention_factor > 0):
      raise ConfigError(
        f"model.rope_factor={self.rope_factor} must be at least 1, and "
        f"model.rope_attention_factor={self.rope_attention_factor} above 0"
      )
    if "rope_original_context" in STRETCHES[self.rope_type] and not (
      self.rope_original_context > 0
      and 0 < self.rope_low_frequency < self.rope_high_frequency
      and self.rope_theta > 1
    ):
      raise ConfigError(
        f"model.rope_type={self.rope_type!r} needs "
        f"model.rope_original_context={self.rope_original_context} above 0, "
        f"0 < model.rope_low_frequency={self.rope_low_frequency} < "
        f"model.rope_high_frequency={self.rope_high_frequency} and "
        f"model.rope_theta={self.rope_theta} above 1"
      )
