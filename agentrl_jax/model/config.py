"""Architecture of a policy, checked before anything is allocated."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention.rotary import RotaryConfig

# Keys of params whose leaves are stacked: layers of one shape each.
STACKS = DENSE, DELTA, LOCAL, OTHERS, SHARING_LOCAL, SHARING = (
  "dense_layers",
  "delta_layers",
  "local_layers",
  "layers",
  "sharing_local_layers",
  "sharing_layers",
)
# Stacks of layers that read keys and values of other layers, and of which.
SOURCES = {SHARING_LOCAL: LOCAL, SHARING: OTHERS}
# Fields of routers by sigmoids, and of all mixtures.
_OF_SIGMOID = ("expert_groups", "groups_per_token", "expert_scale")
_OF_EXPERTS = (
  *_OF_SIGMOID,
  "normed_experts",
  "sigmoid_router",
  "swiglu_limit",
  "shared_experts",
  "shared_gate",
  "normed_branches",
  "dense_layers",
  "dense_mlp_width",
)
# Sizes of gated delta layers.
_OF_DELTA = (
  "delta_key_heads",
  "delta_key_dim",
  "delta_value_dim",
  "delta_taps",
)
# Fields of attention by latents, and those that it does without.
_OF_LATENTS = ("query_rank", "rotary_key_dim", "value_dim", "rope_mscale")
_NOT_OF_LATENTS = (
  "qk_norm",
  "qkv_bias",
  "o_bias",
  "sinks",
  "window",
  "query_pre_attn_scalar",
  "partial_rotary_factor",
)

# Of layers of one kind.
_WITHOUT_KINDS = {
  "window": 0,
  "window_period": 0,
  "local_rope_theta": 0.0,
  "global_head_dim": 0,
  "global_kv_heads": 0,
  "shared_kv_layers": 0,
  "double_wide_mlp": False,
}

# The least values of fields.
_LEAST = {
  "vocab_size": 1,
  "width": 1,
  "num_layers": 1,
  "num_heads": 1,
  "num_kv_heads": 1,
  "head_dim": 1,
  "mlp_width": 1,
  "window": 0,
  "window_period": 0,
  "query_pre_attn_scalar": 0,
  "global_head_dim": 0,
  "global_kv_heads": 0,
  "shared_kv_layers": 0,
  "layer_input_dim": 0,
  "logit_cap": 0,
}

ACTIVATIONS = ("silu", "gelu_tanh")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(RotaryConfig):
  """The `model` section of the config: see docs/models.md for the families.

  Local layers attend to the last `window` tokens. Those are all layers, or all
  but every `window_period`-th one.

  With `delta_heads`, all layers but every `delta_period`-th one do not attend:
  they remember by a state, see `layers.delta`.
  """

  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_width: int  # of each expert, where there are experts
  partial_rotary_factor: float = (
    1.0  # of a head's channels that turn; GLM-4: 0.5
  )
  window: int = 0  # tokens; 0: every layer attends to all
  window_period: int = 0  # 0: every layer is local
  local_rope_theta: float = 0.0  # of local layers, not stretched; 0: as others
  # Gemma 4: of layers that are not local, where they have another shape.
  global_head_dim: int = 0
  global_kv_heads: int = 0  # 0: as many as local ones
  # Gemma 4: values are what the keys' matrix makes, of those layers.
  keys_as_values: bool = False
  value_norm: bool = False  # Gemma 4: without a scale
  # Gemma 4 E2B and E4B: the last layers, which read the keys and values of the
  # last one before them that sees as many tokens; and if they have MLPs of
  # twice the width (E2B).
  shared_kv_layers: int = 0
  double_wide_mlp: bool = False
  # Also theirs: channels of what each layer reads of a token itself; 0: none.
  layer_input_dim: int = 0
  query_pre_attn_scalar: int = 0  # its root divides scores; 0: head_dim's
  sinks: bool = False  # a score per head without a value; gpt-oss
  # DeepSeek-V3: channels of a token's latent, from which every head makes its
  # keys and values; 0: these are projections of hidden states.
  latent_dim: int = 0
  query_rank: int = 0  # channels of the latent of queries; 0: there is none
  rotary_key_dim: int = 0  # a head's last channels, whose key all heads share
  value_dim: int = 0  # channels of a head's values
  norm_epsilon: float = 1e-6
  zero_centered_norm: bool = False  # scales are 1 + what is stored; Gemma
  tied_embedding: bool = True
  embedding_scale: float = 1.0  # what embedded tokens are multiplied by
  qk_norm: bool = False  # Qwen3, OLMo 2
  joint_qk_norm: bool = False  # OLMo 2: over all heads at once
  qkv_bias: bool = False  # Qwen2.5, GLM-4, gpt-oss
  o_bias: bool = False  # gpt-oss: of attention's output
  attention_gate: bool = False  # Qwen3-Next: q has a gate of the output, too
  delta_period: int = 0  # every n-th layer attends; 0: none does
  delta_heads: int = 0  # of values, in layers that do not attend
  delta_key_heads: int = 0  # each serves the same number of value heads
  delta_key_dim: int = 0  # channels
  delta_value_dim: int = 0
  delta_taps: int = 0  # tokens that the convolution before the state sees
  # How files order the projections of these layers; Qwen3-Next: by key head.
  delta_by_head: bool = False
  pre_norm: bool = True  # not in OLMo 2: branches are normed at their start
  # GLM-4, OLMo 2: branches are normed before they are added.
  sandwich_norm: bool = False
  layer_scale: bool = False  # Gemma 4: a fixed factor of each layer's output
  logit_cap: float = 0.0  # logits are cap tanh(logits / cap); 0: as they are
  activation: str = "silu"  # of the MLP's gate, or a key of ACTIVATIONS
  num_experts: int = 0  # of each layer; 0: one MLP for all tokens
  experts_per_token: int = 0
  normed_experts: bool = False  # a token's weights of experts add up to 1
  # gpt-oss: of an expert's gate and up, and all experts have biases; 0: neither
  swiglu_limit: float = 0.0
  sigmoid_router: bool = False  # GLM-4.5: see `experts.route`
  expert_groups: int = 1  # of consecutive experts
  groups_per_token: int = 1  # whose experts a token may choose
  expert_scale: float = 1.0  # factor of the chosen experts' weights
  shared_experts: int = 0  # that every token has beside those it chooses
  shared_gate: bool = False  # Qwen3-Next: a token weighs the shared experts
  # Gemma 4: these and the chosen ones are each normed before and after, and the
  # router scales what it reads, and each expert's weight.
  normed_branches: bool = False
  dense_layers: int = 0  # the first ones, which have one MLP for all tokens
  dense_mlp_width: int = 0  # of these
  value_head: bool = False  # a critic on the policy's hidden states
  shares_kv = False  # no field: see `SharingLayer`

  def __post_init__(self) -> None:
    for field, least in _LEAST.items():
      if getattr(self, field) < least:
        raise ConfigError(
          f"model.{field}={getattr(self, field)} must be at least {least}"
        )
    if self.num_heads % self.num_kv_heads:
      raise ConfigError(
        f"model.num_heads={self.num_heads} must be a multiple of "
        f"model.num_kv_heads={self.num_kv_heads}: each key/value head serves "
        "the same number of query heads"
      )
    if self.joint_qk_norm and not self.qk_norm:
      raise ConfigError(
        "model.joint_qk_norm=True says how to norm, and model.qk_norm=False "
        "says not to: set model.qk_norm=True too"
      )
    if not bool(self.num_experts) <= self.experts_per_token <= self.num_experts:
      raise ConfigError(
        f"model.experts_per_token={self.experts_per_token} must lie between 1 "
        f"and model.num_experts={self.num_experts}, or both be 0"
      )
    self._check_experts()
    self._check_branches()
    if self.activation not in ACTIVATIONS:
      raise ConfigError(
        f"model.activation={self.activation!r} must be one of "
        f"{', '.join(ACTIVATIONS)}"
      )
    self._check_window()
    self._check_global()
    self._check_latents()
    self._check_rotary()
    self._check_delta()

  @property
  def local_layers(self) -> tuple[bool, ...]:
    """Says of each layer if it attends to the window alone."""
    period = self.window_period
    return tuple(
      self.window > 0 and (not period or (n + 1) % period > 0)
      for n in range(self.num_layers)
    )

  @property
  def mlp_parts(self) -> dict[str, int]:
    """By field, into how many parts the MLPs of a layer can be split."""
    parts = {
      "num_experts": self.num_experts,
      "shared_experts x model.mlp_width": self.shared_width,
      "dense_mlp_width": self.dense_mlp_width,
    }
    if not self.num_experts:
      return {"mlp_width": self.mlp_width}
    return {key: size for key, size in parts.items() if size}

  @property
  def layer_stacks(self) -> tuple[str, ...]:
    """Names the stack of each layer, first to last; see `STACKS`."""
    if self.global_head_dim:
      kinds = (OTHERS, LOCAL), (SHARING, SHARING_LOCAL)
      return tuple(
        kinds[n >= self.num_own_kv][is_local]
        for n, is_local in enumerate(self.local_layers)
      )
    first = (DENSE,) * self.dense_layers
    period = self.delta_period or self.num_layers + 1
    return first + tuple(
      DELTA if self.delta_heads and (n + 1) % period else OTHERS
      for n in range(self.dense_layers, self.num_layers)
    )

  @property
  def has_mixed_stacks(self) -> bool:
    """Says if layers of several stacks alternate."""
    runs = sum(a != b for a, b in itertools.pairwise(self.layer_stacks)) + 1
    return runs > len(self.stacks)

  @property
  def num_own_kv(self) -> int:
    """Number of the layers that have keys and values of their own."""
    return self.num_layers - self.shared_kv_layers

  @property
  def kv_sources(self) -> tuple[int, ...]:
    """Says of each layer which layer's keys and values it reads."""
    own = self.local_layers[: self.num_own_kv]
    last = {is_local: n for n, is_local in enumerate(own)}
    sharing = self.local_layers[self.num_own_kv :]
    return *range(self.num_own_kv), *(last[kind] for kind in sharing)

  def period(self, first: int, end: int) -> int:
    """Number of layers after which the kinds of `first` to `end` repeat."""
    kinds = list(zip(self.layer_stacks, self.local_layers, strict=True))
    kinds = kinds[first:end]
    return next(
      period
      for period in range(1, len(kinds) + 1)
      if kinds[period:] == kinds[:-period]
    )

  @property
  def layer_places(self) -> tuple[tuple[str, int], ...]:
    """Says of each layer in which stack it is, and its place there."""
    places = {
      layer: (stack, place)
      for stack, (_, numbers) in self.stacks.items()
      for place, layer in enumerate(numbers)
    }
    return tuple(places[layer] for layer in range(self.num_layers))

  @property
  def stacks(self) -> Mapping[str, tuple["ModelConfig", Sequence[int]]]:
    """Maps a key of `STACKS` to its layers' architecture and numbers."""
    numbers: dict[str, list[int]] = {}
    for number, stack in enumerate(self.layer_stacks):
      numbers.setdefault(stack, []).append(number)
    return {
      stack: (self._of_stack(stack), tuple(numbers[stack]))
      for stack in STACKS
      if stack in numbers
    }

  def _of_stack(self, stack: str) -> "ModelConfig":
    """Returns the architecture of the layers of a stack alone."""
    changes: dict[str, Any] = {}
    if self.global_head_dim and SOURCES.get(stack, stack) == LOCAL:
      changes = _WITHOUT_KINDS | {
        "rope_theta": self.local_rope_theta or self.rope_theta,
        "rope_type": "default",
        "rope_factor": 1.0,
        "partial_rotary_factor": 1.0,
        "keys_as_values": False,
      }
    elif self.global_head_dim:
      changes = _WITHOUT_KINDS | {
        "head_dim": self.global_head_dim,
        "num_kv_heads": self.global_kv_heads or self.num_kv_heads,
      }
    elif stack == DELTA:
      changes = {"delta_period": 0}
    elif stack == DENSE:
      changes = {name: getattr(ModelConfig, name) for name in _OF_EXPERTS}
      changes |= {"num_experts": 0, "experts_per_token": 0}
      changes["mlp_width"] = self.dense_mlp_width
    if stack in SOURCES:
      width = self.mlp_width * (2 if self.double_wide_mlp else 1)
      return SharingLayer(**vars(self) | changes | {"mlp_width": width})
    return dataclasses.replace(self, **changes)

  @property
  def delta_channels(self) -> int:
    """Channels of the convolution's inputs, of all heads."""
    keys = 2 * self.delta_key_heads * self.delta_key_dim
    return keys + self.delta_heads * self.delta_value_dim

  @property
  def has_states(self) -> bool:
    """Says if any layer keeps a state in place of keys and values."""
    return self.delta_heads > 0

  @property
  def is_delta(self) -> bool:
    """True for the architecture of a layer that does not attend."""
    return self.delta_heads > 0 and not self.delta_period

  @property
  def shared_kv_heads(self) -> int:
    """The largest number that divides the key/value heads of every layer."""
    return math.gcd(*(c.num_kv_heads for c, _ in self.stacks.values()))

  @property
  def num_mixtures(self) -> int:
    """Number of layers with experts."""
    return (self.num_layers - self.dense_layers) * bool(self.num_experts)

  @property
  def num_delta(self) -> int:
    """Number of layers that keep a state in place of a cache."""
    return self.layer_stacks.count(DELTA)

  @property
  def shared_width(self) -> int:
    """Channels of a layer's shared experts, which are one MLP."""
    return self.shared_experts * self.mlp_width

  @property
  def expert_bias(self) -> bool:
    """True if experts and their router have biases, and limits."""
    return self.swiglu_limit > 0

  @property
  def experts_kind(self) -> tuple[int, int, str]:
    """Layers, experts per token, and the type of experts' numbers.

    The largest number of the type is that of no expert.
    """
    dtype = "uint8" if self.num_experts < 256 else "uint16"
    return self.num_layers, self.experts_per_token, dtype

  @property
  def rotary_channels(self) -> int:
    """Channels of a head that turn: its first ones, with latents its last."""
    if self.rope_type == "proportional":
      return self.head_dim  # of which some turn by nothing
    share = int(self.head_dim * self.partial_rotary_factor)
    return self.rotary_key_dim or share

  @property
  def cached_shapes(self) -> tuple[tuple[int, int], ...]:
    """Heads and channels of a layer's keys and values, or of its latents."""
    if self.latent_dim:
      return ((1, self.latent_dim + self.rotary_key_dim),)
    return ((self.num_kv_heads, self.head_dim),) * 2

  @property
  def score_factor(self) -> float:
    """Factor of scores by yarn (DeepSeek-V3's `mscale_all_dim`)."""
    return (1 + 0.1 * self.rope_mscale * math.log(self.rope_factor)) ** 2

  def _check_window(self) -> None:
    if self.window_period == 1:
      raise ConfigError(
        "model.window_period=1 makes no layer local: set model.window=0, or "
        "the period to 0, for which every layer is local, or from 2 on"
      )
    idle = [
      f"model.{field}={getattr(self, field)}"
      for field in ("window_period", "local_rope_theta")
      if getattr(self, field)
    ]
    if idle and not self.window:
      raise ConfigError(
        f"{', '.join(idle)} means nothing with model.window=0, for which every "
        "layer attends to all tokens: set the window, in tokens"
      )
    if self.local_rope_theta and self.rope_attention_factor != 1:
      raise ConfigError(
        f"model.local_rope_theta={self.local_rope_theta} goes without "
        f"model.rope_attention_factor={self.rope_attention_factor}: one of "
        "them has to be left out"
      )

  def _check_delta(self) -> None:
    if not self.delta_heads:
      others = (*_OF_DELTA, "delta_period", "delta_by_head")
      self.refuse_idle(others, "model.delta_heads=0")
      return
    found = ", ".join(
      f"model.{name}={getattr(self, name)}" for name in _OF_DELTA
    )
    if (
      min(getattr(self, name) for name in _OF_DELTA) < 1
      or self.delta_heads % self.delta_key_heads
    ):
      raise ConfigError(
        f"{found} must be at least 1, and model.delta_heads={self.delta_heads} "
        "a multiple of model.delta_key_heads: each key head serves the same "
        "number of value heads"
      )
    is_period = not self.delta_period or self.delta_period >= 2
    if not is_period or self.delta_period > self.num_layers:
      raise ConfigError(
        f"model.delta_period={self.delta_period} must be from 2 to "
        f"model.num_layers={self.num_layers}, so that some layer attends and "
        "others do not"
      )
    if self.dense_layers or self.window:
      raise ConfigError(
        f"model.dense_layers={self.dense_layers} and model.window="
        f"{self.window} go without model.delta_heads={self.delta_heads}: set "
        "them to 0"
      )

  def _check_global(self) -> None:
    """Checks the layers that are not local, and what else is Gemma 4's."""
    own = self.local_layers[: max(self.num_own_kv, 0)]
    if not self.global_head_dim:
      self.refuse_idle(
        ("global_kv_heads", "shared_kv_layers", "double_wide_mlp"),
        "model.global_head_dim=0",
      )
    elif self.global_head_dim % 2 or self.num_heads % (
      self.global_kv_heads or 1
    ):
      raise ConfigError(
        f"model.global_head_dim={self.global_head_dim} must be even, and "
        f"model.global_kv_heads={self.global_kv_heads} must be 0 or divide "
        f"model.num_heads={self.num_heads}"
      )
    elif self.dense_layers or self.local_layers[-1]:
      raise ConfigError(
        f"model.global_head_dim={self.global_head_dim} needs a last layer that "
        f"sees all tokens, and model.dense_layers={self.dense_layers} to be 0: "
        f"model.num_layers={self.num_layers} must be a multiple of "
        f"model.window_period={self.window_period}"
      )
    elif {*own} != {*self.local_layers} or (
      self.shared_kv_layers and self.num_experts
    ):
      raise ConfigError(
        f"model.shared_kv_layers={self.shared_kv_layers} must leave layers of "
        f"each kind before those, of model.num_layers={self.num_layers} with "
        f"model.window_period={self.window_period}, and goes without "
        f"model.num_experts={self.num_experts}: set either to 0"
      )

  def _check_latents(self) -> None:
    if not self.latent_dim:
      self.refuse_idle(_OF_LATENTS, "model.latent_dim=0")
      return
    self.refuse_idle(_NOT_OF_LATENTS, f"model.latent_dim={self.latent_dim}")
    if (
      min(self.latent_dim, self.value_dim) < 1
      or min(self.query_rank, self.rope_mscale) < 0
      or not 0 < self.rotary_key_dim < self.head_dim
      or self.num_kv_heads != self.num_heads
    ):
      raise ConfigError(
        f"model.latent_dim={self.latent_dim} and model.value_dim="
        f"{self.value_dim} must be at least 1, model.query_rank="
        f"{self.query_rank} and model.rope_mscale={self.rope_mscale} at least "
        f"0, model.rotary_key_dim={self.rotary_key_dim} between 0 and "
        f"model.head_dim={self.head_dim}, and model.num_kv_heads="
        f"{self.num_kv_heads} be model.num_heads={self.num_heads}"
      )

  def _check_rotary(self) -> None:
    if not 0 < self.partial_rotary_factor <= 1:
      raise ConfigError(
        f"model.partial_rotary_factor={self.partial_rotary_factor} must lie "
        "in (0, 1]"
      )
    if self.rotary_channels % 2:
      share = f" x partial_rotary_factor={self.partial_rotary_factor}"
      product = share if self.partial_rotary_factor < 1 else ""
      whole = f"head_dim={self.head_dim}{product}"
      part = f"rotary_key_dim={self.rotary_key_dim}"
      raise ConfigError(
        f"model.{part if self.rotary_key_dim else whole} must be even: rotary "
        "positions turn pairs of channels"
      )
    self.check_stretch()

  def _check_experts(self) -> None:
    if not self.num_experts:
      self.refuse_idle(_OF_EXPERTS, "model.num_experts=0")
      return
    if self.swiglu_limit and not (
      self.swiglu_limit > 0 and self.normed_experts and not self.sigmoid_router
    ):
      raise ConfigError(
        f"model.swiglu_limit={self.swiglu_limit} must be 0, or above 0 with "
        f"model.normed_experts={self.normed_experts} True and "
        f"model.sigmoid_router={self.sigmoid_router} False: it is of gpt-oss's "
        "experts, whose weights add up to 1"
      )
    if (
      min(self.shared_experts, self.dense_layers) < 0
      or self.dense_layers >= self.num_layers
      or bool(self.dense_layers) != (self.dense_mlp_width > 0)
    ):
      raise ConfigError(
        f"model.dense_layers={self.dense_layers} must be 0, or from 1 to "
        f"model.num_layers - 1 = {self.num_layers - 1} and with "
        f"model.dense_mlp_width={self.dense_mlp_width} above 0; "
        f"model.shared_experts={self.shared_experts} must be 0 or more"
      )
    groups, chosen = self.expert_groups, self.groups_per_token
    if not self.sigmoid_router:
      self.refuse_idle(_OF_SIGMOID, "model.sigmoid_router=False")
      return
    if not 1 <= chosen <= groups or (
      self.num_experts % groups
      # A group is as good as its best two experts.
      or self.num_experts // groups < 2
      or self.experts_per_token > self.num_experts // groups * chosen
    ):
      raise ConfigError(
        f"model.expert_groups={groups} must divide model.num_experts="
        f"{self.num_experts} into groups of two or more, of which "
        f"model.groups_per_token={chosen} must exist and hold "
        f"model.experts_per_token={self.experts_per_token} experts"
      )
    if not self.expert_scale > 0:
      raise ConfigError(
        f"model.expert_scale={self.expert_scale} must be above 0"
      )

  def _check_branches(self) -> None:
    if self.normed_branches and (
      not (self.shared_experts and self.normed_experts and self.sandwich_norm)
      or self.sigmoid_router
      or self.expert_bias
    ):
      raise ConfigError(
        "model.normed_branches=True is of Gemma 4's experts: set "
        "model.shared_experts above 0, model.normed_experts and "
        "model.sandwich_norm to True, model.sigmoid_router to False and "
        "model.swiglu_limit to 0"
      )


class SharingLayer(ModelConfig):
  """The architecture of layers that read the keys and values of another."""

  shares_kv = True
