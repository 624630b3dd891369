"""Hugging Face's families of models, and what their config.json leaves out."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from agentrl_jax.model.hugging_face.families import delta


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """Properties of a `model_type` that its config.json does not contain."""

  architecture: str  # the class that transformers has for it
  default_head_dim: int | None = None  # None: width / heads
  qk_norm: bool | None = False  # None: `use_qk_norm` says
  joint_qk_norm: bool = False
  qkv_bias: bool | None = False  # None: `attention_bias` says
  default_qkv_bias: bool = False  # where it says nothing
  pre_norm: bool = True
  sandwich_norm: bool = False
  zero_centered_norm: bool = False
  activation: str = "silu"
  scaled_embedding: bool = False  # by the root of the width
  # None: no layer has a window. Else every n-th layer has none, as far as no
  # key says otherwise; 0: each has one.
  window_period: int | None = None
  default_rotary_share: float = 1.0
  default_rope_theta: float = 1e4
  interleaved_rotary: bool = False  # channel 2i turns with channel 2i + 1
  fused_gate_up: bool = False  # one tensor, the gate's rows first
  # Keys that must be null, since without them transformers computes otherwise.
  nulls: tuple[str, ...] = ()
  # What config.json may say only so, by key; () is read elsewhere.
  only: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
  value_norm: bool = False
  layer_scale: bool = False
  # In every layer, or all but the first; None: `enable_moe_block` says.
  experts: bool | None = False
  sigmoid_router: bool = False
  # Of these, all in one tensor, with biases and limits, perhaps in MXFP4.
  fused_experts: bool = False
  o_bias: bool = False
  sinks: bool = False
  attention_gate: bool = False
  shared_gate: bool = False
  delta: bool = False  # most layers do not attend: see `families.delta`
  delta_by_head: bool = False
  # What transformers takes where a key is missing, of keys that published
  # folders leave out.
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  latents: bool = False  # of which heads make keys and values; DeepSeek-V3
  # How tensors begin that models of more than text have beside these.
  spare: tuple[str, ...] = ()

  def traits(self) -> dict[str, bool]:
    """Returns the fields of `ModelConfig` that the family decides."""
    traits = {name: getattr(self, name) for name in TRAITS}
    return {name: x for name, x in traits.items() if x is not None}


TRAITS = (
  "qk_norm",
  "joint_qk_norm",
  "pre_norm",
  "sandwich_norm",
  "zero_centered_norm",
  "activation",
  "sigmoid_router",
  "o_bias",
  "sinks",
  "attention_gate",
  "shared_gate",
  "delta_by_head",
  "value_norm",
  "layer_scale",
)

_SIGHT = tuple(
  f"{root}{part}."
  for root in ("", "model.")
  for part in ("vision_tower", "multi_modal_projector")
)

_QWEN3_5: Mapping[str, Any] = {
  "default_head_dim": 256,
  "qk_norm": True,
  "zero_centered_norm": True,
  "default_rotary_share": 0.25,
  "attention_gate": True,
  "delta": True,
}
_WITH_SHARED: Mapping[str, Any] = {"experts": True, "shared_gate": True}
_SEES = (*(f"{root}visual." for root in ("", "model.")), "mtp.")
_SENSES = tuple(
  f"{root}{part}."
  for root in ("", "model.")
  for part in ("vision_tower", "embed_vision", "audio_tower", "embed_audio")
)
# Keys of DeepSeek's own code, as its models are published.
_DEEPSEEK = {
  "rope_interleave": (True,),
  "moe_layer_freq": (1, None),
  "scoring_func": ("sigmoid", None),
  "topk_method": ("noaux_tc", None),
  "auto_map": (
    None,
    {
      "AutoConfig": "configuration_deepseek.DeepseekV3Config",
      "AutoModel": "modeling_deepseek.DeepseekV3Model",
      "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
    },
  ),
}

# A new family is an entry here, as far as its properties go. Other names of
# tensors are in `tensor_names`, another form of calls is in
# `data.chat.dialects`: see docs/models.md.
FAMILIES: Mapping[str, Family] = {
  "qwen2": Family(architecture="Qwen2ForCausalLM", qkv_bias=True),
  "qwen3": Family(
    architecture="Qwen3ForCausalLM", default_head_dim=128, qk_norm=True
  ),
  "qwen3_moe": Family(
    architecture="Qwen3MoeForCausalLM",
    default_head_dim=128,
    qk_norm=True,
    experts=True,
  ),
  "llama": Family(architecture="LlamaForCausalLM"),
  "mistral": Family(
    architecture="MistralForCausalLM",
    window_period=0,
    defaults={"sliding_window": 4096},
  ),
  "olmo2": Family(
    architecture="Olmo2ForCausalLM",
    qk_norm=True,
    joint_qk_norm=True,
    pre_norm=False,
    sandwich_norm=True,
  ),
  "gemma3_text": Family(
    architecture="Gemma3ForCausalLM",
    spare=_SIGHT,
    qk_norm=True,
    sandwich_norm=True,
    zero_centered_norm=True,
    activation="gelu_tanh",
    scaled_embedding=True,
    window_period=6,
    default_rope_theta=1e6,
    defaults={
      "vocab_size": 262_208,
      "num_attention_heads": 8,
      "num_key_value_heads": 4,
      "head_dim": 256,
      "query_pre_attn_scalar": 256,
      "rms_norm_eps": 1e-6,
      "rope_local_base_freq": 1e4,
      "sliding_window": 4096,
      "tie_word_embeddings": True,
    },
  ),
  "gemma4_text": Family(
    architecture="Gemma4ForCausalLM",
    spare=_SENSES,
    qk_norm=True,
    value_norm=True,
    layer_scale=True,
    experts=None,
    sandwich_norm=True,
    activation="gelu_tanh",
    scaled_embedding=True,
    window_period=6,
    default_rope_theta=1e6,
    only={
      "final_logit_softcapping": (),
      "use_bidirectional_attention": (None, "vision"),  # vision: no text
      "query_pre_attn_scalar": (1,),
      "sliding_window_pattern": (None,),
      "rope_scaling": (None,),
      "rope_theta": (None,),
      "partial_rotary_factor": (None,),
    },
    defaults={
      "vocab_size": 262_144,
      "num_attention_heads": 8,
      "num_key_value_heads": 4,
      "head_dim": 256,
      "query_pre_attn_scalar": 1,
      "rms_norm_eps": 1e-6,
      "rope_local_base_freq": 1e4,
      "rope_parameters": {
        "full_attention": {
          "rope_type": "proportional",
          "rope_theta": 1e6,
          "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
      },
      "sliding_window": 512,
      "tie_word_embeddings": True,
      "hidden_size_per_layer_input": 256,
      "vocab_size_per_layer_input": 262_144,
      "num_kv_shared_layers": 0,
    },
  ),
  "glm4": Family(
    architecture="Glm4ForCausalLM",
    default_head_dim=128,
    qkv_bias=None,
    default_qkv_bias=True,
    sandwich_norm=True,
    default_rotary_share=0.5,
    interleaved_rotary=True,
    fused_gate_up=True,
  ),
  "glm4_moe": Family(
    architecture="Glm4MoeForCausalLM",
    qk_norm=None,
    qkv_bias=None,
    default_rotary_share=0.5,
    experts=True,
    sigmoid_router=True,
  ),
  "deepseek_v3": Family(
    architecture="DeepseekV3ForCausalLM",
    latents=True,
    qk_norm=None,
    interleaved_rotary=True,
    experts=True,
    sigmoid_router=True,
    only=_DEEPSEEK,
    defaults={
      "n_group": 8,
      "topk_group": 4,
      "first_k_dense_replace": 3,
      "routed_scaling_factor": 2.5,
    },
  ),
  "glm4_moe_lite": Family(
    architecture="Glm4MoeLiteForCausalLM",
    latents=True,
    qk_norm=None,
    interleaved_rotary=True,
    experts=True,
    sigmoid_router=True,
    only=_DEEPSEEK,
    defaults={"mlp_layer_types": None, "routed_scaling_factor": 1.8},
  ),
  "gpt_oss": Family(
    architecture="GptOssForCausalLM",
    default_head_dim=64,
    qkv_bias=True,
    o_bias=True,
    sinks=True,
    window_period=2,
    default_rope_theta=1.5e5,
    defaults={"sliding_window": 128, "swiglu_limit": 7.0},
    experts=True,
    fused_experts=True,
  ),
  # Also its tensors that predict further tokens are not read.
  "qwen3_next": Family(
    architecture="Qwen3NextForCausalLM",
    **_QWEN3_5,
    **_WITH_SHARED,
    delta_by_head=True,
    defaults=delta.DEFAULTS | {"norm_topk_prob": True},
    only=delta.ONLY,
    spare=("mtp.",),
  ),
  "qwen3_5_text": Family(
    architecture="Qwen3_5ForCausalLM",
    **_QWEN3_5,
    defaults=delta.DEFAULTS,
    only=delta.ONLY,
    spare=_SEES,
  ),
  "qwen3_5_moe_text": Family(
    architecture="Qwen3_5MoeForCausalLM",
    **_QWEN3_5,
    **_WITH_SHARED,
    defaults=delta.DEFAULTS | {"norm_topk_prob": True},
    only={**delta.ONLY, "norm_topk_prob": (True, None)},
    spare=_SEES,
  ),
}
