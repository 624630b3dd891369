"""Small random models of Hugging Face's families, to be compared with ours."""

import json
import pathlib
import tempfile

import jax
import numpy as np

from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.config import read_model
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.policy import Policy
from tests.settings import compute_config

try:
  import safetensors.torch
  import torch
  import transformers
except ImportError:
  safetensors = torch = transformers = None  # tests then skip, saying so

WITHOUT = "needs torch and transformers: pip install -e .[originals]"
NAMES = (
  "qwen2",
  "qwen3",
  "llama",
  "glm4",
  "mistral",
  "olmo2",
  "qwen3_moe",
  "glm4_moe",
  "gemma3_text",
  "gpt_oss",
  "qwen3_next",
  "qwen3_5_text",
  "qwen3_5_moe_text",
  "gemma4_text",
  "deepseek_v3",
  "glm4_moe_lite",
  "gemma4_e2b",  # a gemma4_text
)
LATENT = ("deepseek_v3", "glm4_moe_lite")
STRETCHES = ("yarn", "default", "llama3", "linear")

# Of GLM-4.5's first model: groups, of which a token has some, and every part.
GROUPS = {
  "n_routed_experts": 20,
  "n_group": 4,
  "topk_group": 2,
  "num_experts_per_tok": 3,
  "n_shared_experts": 2,
  "first_k_dense_replace": 1,
}


def describe(family: str, *, tied: bool, seed: int = 0) -> dict:
  """A config.json of the family, with sizes that depend on the seed."""
  rng = np.random.default_rng([seed, NAMES.index(family), tied])
  kv_heads = int(rng.choice([1, 2, 4]))
  head_dim = int(rng.choice([8, 16]))
  heads = kv_heads * int(rng.choice([1, 2, 3]))
  described = {
    "model_type": family.replace("_e2b", "_text"),
    "vocab_size": int(rng.integers(60, 100)),
    # transformers wants Llama's width to be a multiple of its heads.
    "hidden_size": heads * head_dim if family == "qwen2" else heads * 12,
    "num_hidden_layers": int(rng.integers(2, 5)) if seed else 2,
    "num_attention_heads": heads,
    "num_key_value_heads": kv_heads,
    "head_dim": head_dim,
    "intermediate_size": int(rng.integers(20, 60)),
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": float(rng.choice([1e-5, 1e-6])),
    "rope_theta": float(rng.choice([1e2, 1e4, 1e6])),
    "tie_word_embeddings": tied,
    "pad_token_id": None,
    "eos_token_id": None,
  }
  if family == "glm4":
    described |= {
      "attention_bias": bool(rng.integers(2)),
      "partial_rotary_factor": float(rng.choice([0.5, 0.25])),
    }
  if family == "mistral":
    described["sliding_window"] = None if seed % 2 else 5
  if family in OF_GEMMA:
    described |= OF_GEMMA[family](described, rng)
  if family == "gpt_oss":
    described |= {
      "num_local_experts": int(rng.choice([2, 5, 32])),
      "num_experts_per_tok": 2,  # of one the weight would always be 1
      "sliding_window": int(rng.integers(3, 12)),
      "swiglu_limit": float(rng.choice([0.2, 7.0])),
    }
  if family == "qwen3_moe":
    described |= _mixture(rng)
  if family.startswith(("qwen3_next", "qwen3_5")):
    described |= _delta(family, described, rng)
  if family in ("glm4_moe", *LATENT):
    described |= _glm4_moe(described, rng) | ({} if seed else GROUPS)
    described |= _latent(described, rng)
  return described | _rope(family, seed, rng)


def _mixture(rng: np.random.Generator) -> dict:
  number = int(rng.choice([2, 7, 64]))
  per_token = int(rng.integers(1, min(number, 8) + 1))
  return {
    "num_experts": number,
    "num_experts_per_tok": per_token,
    "moe_intermediate_size": int(rng.integers(8, 20)),
    # The only weight would always be 1, and the router's gradient rounding.
    "norm_topk_prob": bool(rng.integers(2)) and per_token > 1,
  }


def _delta(family: str, described: dict, rng: np.random.Generator) -> dict:
  """All layers but every second or third one have a state."""
  key_heads = int(rng.choice([1, 2, 3]))
  most = min(described["num_hidden_layers"], 3)
  found = {
    # What a state says at first is near 0. A norm that enlarged it would make
    # of one rounding of the params 1e-4 of the logits, theirs as well as ours.
    "rms_norm_eps": 1e-2,
    "full_attention_interval": int(rng.integers(2, most + 1)),
    "partial_rotary_factor": float(rng.choice([0.25, 0.5])),
    "linear_num_key_heads": key_heads,
    "linear_num_value_heads": key_heads * int(rng.choice([1, 2])),
    "linear_key_head_dim": int(rng.choice([6, 8])),
    "linear_value_head_dim": int(rng.choice([4, 12])),
    "linear_conv_kernel_dim": int(rng.choice([2, 4])),
  }
  if family == "qwen3_5_text":
    return found
  found |= _mixture(rng)
  width = found["moe_intermediate_size"] * int(rng.choice([1, 2]))
  found["shared_expert_intermediate_size"] = width
  if family == "qwen3_5_moe_text":  # whose weights always add up to 1
    del found["norm_topk_prob"]
    found["num_experts_per_tok"] = 2
  return found


def _rope(family: str, seed: int, rng: np.random.Generator) -> dict:
  kind = STRETCHES[(NAMES.index(family) + seed) % len(STRETCHES)]
  if family.startswith("gemma4"):
    return {}
  if family == "gemma3_text" and kind == "yarn":
    kind = "linear"  # as published
  if kind != "default":
    return {"rope_scaling": _stretch(kind, rng)}
  # Without it transformers takes yarn.
  is_needed = family == "gpt_oss"
  return {"rope_scaling": {"rope_type": "default"}} if is_needed else {}


def _gemma3(described: dict, rng: np.random.Generator) -> dict:
  del described["hidden_act"]
  period = int(rng.integers(2, 4))
  return {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": int(rng.integers(4, 20)),
    "sliding_window": int(rng.integers(3, 12)),
    "rope_local_base_freq": 50.0,
    "layer_types": [
      f"{'sliding' if (n + 1) % period else 'full'}_attention"
      for n in range(described["num_hidden_layers"])
    ],
  }


def _gemma4(described: dict, rng: np.random.Generator) -> dict:
  """Full layers have heads, keys and a rotation of their own."""
  period, kv_heads = int(rng.integers(2, 4)), described["num_key_value_heads"]
  layers = period * int(rng.integers(1, 3))
  same = bool(rng.integers(2))
  del described["hidden_act"], described["rope_theta"]
  width = int(rng.integers(8, 16))
  experts = {
    "enable_moe_block": True,
    "num_experts": int(rng.choice([3, 7, 16])),
    "top_k_experts": int(rng.integers(2, 4)),
    "moe_intermediate_size": width,
    "intermediate_size": width * int(rng.integers(1, 4)),
  }
  return (experts if rng.integers(2) else {}) | {
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": layers,
    "layer_types": [
      f"{'sliding' if (n + 1) % period else 'full'}_attention"
      for n in range(layers)
    ],
    "sliding_window": int(rng.integers(3, 12)),
    "global_head_dim": 2 * described["head_dim"],
    "attention_k_eq_v": same,
    "num_global_key_value_heads": kv_heads // int(rng.choice([1, kv_heads]))
    if same
    else None,
    "final_logit_softcapping": float(rng.choice([2.0, 30.0])),
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 10,
    "rope_parameters": {
      "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1e4,
        "partial_rotary_factor": float(rng.choice([0.25, 0.5])),
      },
      "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
  }


def _gemma4_e2b(described: dict, rng: np.random.Generator) -> dict:
  """The last layers share keys and values, and all read the token."""
  found = _gemma4(described, rng)
  kinds = found["layer_types"][
    : found["layer_types"].index("full_attention") + 1
  ]
  periods = int(rng.integers(2, 4))
  return found | {
    "enable_moe_block": False,
    "intermediate_size": int(rng.integers(20, 60)),
    "num_hidden_layers": periods * len(kinds),
    "layer_types": periods * kinds,
    "num_kv_shared_layers": int(
      rng.integers(1, (periods - 1) * len(kinds) + 1)
    ),
    "use_double_wide_mlp": bool(rng.integers(2)),
    # Whose root is exact in every dtype.
    "hidden_size_per_layer_input": int(rng.choice([16, 64])),
    "vocab_size_per_layer_input": described["vocab_size"],
  }


OF_GEMMA = {
  "gemma3_text": _gemma3,
  "gemma4_text": _gemma4,
  "gemma4_e2b": _gemma4_e2b,
}


def _glm4_moe(described: dict, rng: np.random.Generator) -> dict:
  groups = int(rng.choice([1, 2, 4]))
  number = groups * int(rng.choice([2, 5, 16]))
  chosen_groups = int(rng.integers(1, groups + 1))
  most = min(number // groups * chosen_groups, 8)
  per_token = int(rng.integers(1, most + 1))
  return {
    "attention_bias": bool(rng.integers(2)),
    "use_qk_norm": bool(rng.integers(2)),
    "partial_rotary_factor": float(rng.choice([0.5, 0.25])),
    "n_routed_experts": number,
    "n_group": groups,
    "topk_group": chosen_groups,
    "num_experts_per_tok": per_token,
    "moe_intermediate_size": int(rng.integers(8, 20)),
    "n_shared_experts": int(rng.integers(3)),
    "first_k_dense_replace": int(
      rng.integers(min(described["num_hidden_layers"], 3))
    ),
    "routed_scaling_factor": float(rng.choice([1.0, 2.5])),
    # A single weight would always be 1, and the router's gradient rounding.
    "norm_topk_prob": bool(rng.integers(2)) and per_token > 1,
  }


def _latent(described: dict, rng: np.random.Generator) -> dict:
  if described["model_type"] not in LATENT:
    return {}
  num_heads = int(rng.choice([1, 2, 3, 5]))
  turning = int(rng.choice([4, 6]))
  num_dense = described["first_k_dense_replace"]
  num_sparse = described["num_hidden_layers"] - num_dense
  found = {
    "hidden_size": 24,
    "num_attention_heads": num_heads,
    "num_key_value_heads": num_heads,
    "attention_bias": False,
    "partial_rotary_factor": 1.0,
    "use_qk_norm": False,
    "q_lora_rank": [None, 12, 20][int(rng.integers(3))],
    "kv_lora_rank": int(rng.choice([10, 16])),
    "qk_rope_head_dim": turning,
    "head_dim": turning,
    "qk_nope_head_dim": int(rng.choice([5, 8])),
    "v_head_dim": int(rng.choice([6, 16])),
  }
  if described["model_type"] == "glm4_moe_lite":
    found["mlp_layer_types"] = ["dense"] * num_dense + ["sparse"] * num_sparse
  return found


def _stretch(kind: str, rng: np.random.Generator) -> dict:
  """Rotary settings under which some wavelengths are kept, others stretched.

  The original context is shorter than the rows that tests compare.
  """
  rope = {"rope_type": kind, "factor": float(rng.choice([4, 8, 32]))}
  if kind != "linear":
    rope["original_max_position_embeddings"] = int(rng.choice([16, 20]))
  if kind == "llama3":
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
  if kind == "yarn":
    rope |= rng.choice(
      [
        {"beta_fast": 2.5, "beta_slow": 0.5},
        {"attention_factor": 0.7, "truncate": False},
        {
          "mscale": 0.7,
          "mscale_all_dim": 1.0,
          "beta_fast": 3,
          "beta_slow": 0.1,
        },
      ]
    )
  return rope


def build(described: dict, *, dtype: str = "float32", seed: int = 0):
  """Hugging Face's model, with no weight at its neutral start."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "config.json"
    path.write_text(json.dumps(described))
    config = transformers.AutoConfig.from_pretrained(folder)
  torch.manual_seed(seed)
  model = transformers.AutoModelForCausalLM.from_config(
    config,
    attn_implementation="eager",
    experts_implementation="eager",
    dtype=getattr(torch, dtype),
  ).eval()
  if described["model_type"] in ("gemma3_text", "gemma4_text"):
    # Rounded to the dtype above, and not made anew by `model.float()`.
    exact = torch.tensor(described["hidden_size"] ** 0.5)
    model.model.embed_tokens.embed_scale = exact
  with torch.no_grad():
    routers = (
      buffer
      for name, buffer in model.named_buffers()
      if name.endswith(("_bias", "layer_scalar"))
    )
    for weight in (*model.parameters(), *routers):
      weight.add_(0.1 * torch.randn_like(weight))
    for name, weight in model.named_parameters():
      if name.endswith(("A_log", "dt_bias")):
        # Exact in our files. Strong decays cost transformers' own differences
        # of sums their digits.
        weight.data = weight.data.float().clamp(max=0.5)
  return model


def build_seeing(text: dict):
  """Gemma 3 with a text model as described, and a small one that sees."""
  vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
  vision |= {"num_attention_heads": 1, "image_size": 28, "patch_size": 14}
  config = transformers.Gemma3Config(
    text_config={k: v for k, v in text.items() if k != "model_type"},
    vision_config=vision,
    mm_tokens_per_image=4,
  )
  return transformers.Gemma3ForConditionalGeneration(config).eval()


def saved(model, folder: pathlib.Path, *, max_shard_size: int):
  """The model in a folder, as transformers writes it."""
  transformers.utils.logging.disable_progress_bar()
  model.save_pretrained(folder, max_shard_size=max_shard_size)
  return folder


def load(folder: pathlib.Path):
  """Our policy and its params from a folder, on one device."""
  config, _ = read_model(folder)
  policy = Policy(config, compute_config(scan_layers=True))
  mesh = sharding.make_mesh({}, jax.devices()[:1])
  return policy, read_params(folder, policy, mesh)
