"""A refused folder says to which family it is nearest, and what differs."""

import json
import pathlib
import re
import tempfile

import numpy as np
from absl.testing import parameterized
from hypothesis import given, settings, strategies

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.hugging_face.config import FAMILIES, read_model
from agentrl_jax.model.hugging_face.tensor_files import SINGLE_FILE, write_file
from tests.model.hugging_face.config_test import (
  GLM_4_9B_0414,
  LLAMA_3_2_1B,
  QWEN3_8B,
)

SIZES = {
  "hidden_size": 8,
  "intermediate_size": 6,
  "num_attention_heads": 2,
  "num_key_value_heads": 1,
  "head_dim": 4,
  "num_hidden_layers": 2,
}
LLAMA_LAYER = {
  "input_layernorm": (8,),
  "self_attn.q_proj": (8, 8),
  "self_attn.k_proj": (4, 8),
  "self_attn.v_proj": (4, 8),
  "self_attn.o_proj": (8, 8),
  "post_attention_layernorm": (8,),
  "mlp.gate_proj": (6, 8),
  "mlp.up_proj": (6, 8),
  "mlp.down_proj": (8, 6),
}
UNFUSED = re.compile("gate_proj|up_proj")


def refusal(described, layer=None, prefix="model."):
  """Returns the sentence of `read_model`; `layer` are its tensors' shapes."""
  with tempfile.TemporaryDirectory() as root:
    folder = pathlib.Path(root)
    (folder / "config.json").write_text(json.dumps(described))
    if layer is not None:
      arrays = {
        f"{prefix}layers.{n}.{name}.weight": np.zeros(shape, np.float32)
        for n in range(2)
        for name, shape in layer.items()
      }
      entries = {name: (a.dtype, a.shape) for name, a in arrays.items()}
      write_file(folder / SINGLE_FILE, entries, iter(arrays.values()))
    try:
      read_model(folder)
    except ConfigError as error:
      return str(error)
  raise AssertionError("the folder was read")


class NearestTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      LLAMA_3_2_1B | {"sliding_window": 4096},
      "mistral; what differs: no key, but perhaps its code$",
    ),
    (
      QWEN3_8B | {"hidden_act": "gelu", "num_local_experts": 8},
      'differs: hidden_act="gelu", num_local_experts=8$',
    ),
    (
      LLAMA_3_2_1B | {"rope_parameters": {"partial_rotary_factor": 0.25}},
      "differs: partial_rotary_factor=0.25$|Nearest is glm4",
    ),
    (
      LLAMA_3_2_1B | {"rope_scaling": {"rope_type": "longrope"}},
      'rope_type="longrope"$',
    ),
    (QWEN3_8B | {"layer_types": ["x"] * 36}, "differs: layer_types=.'x', 'x'"),
    (GLM_4_9B_0414, "is glm4; what differs: no key, but perhaps its code$"),
    ({}, "gemma3_text; .* no hidden_size, .* no intermediate_size$"),
    (
      {"text_config": LLAMA_3_2_1B | {"sliding_window": 512}},
      "is mistral for what text_config says; what differs: no key, but per",
    ),
  )
  def test_keys(self, described, sentence):
    text = refusal(described | {"model_type": "new"})
    self.assertRegex(text, sentence)
    self.assertIn('model_type="new" is not one of', text)
    self.assertIn("docs/new_model_family.md", text)

  @parameterized.parameters(
    ({}, (), "is llama; what differs: no key and no tensor, but perhaps"),
    (
      {"self_attn.sinks": (2,), "mlp.experts.gate": (8,), "mlp.router": (8, 4)},
      ("mlp.up_proj",),
      "also has self_attn.sinks, mlp.router, mlp.experts.gate; lacks mlp.up_p",
    ),
    (
      {"self_attn.q_norm": (8,), "self_attn.k_norm": (4,)},
      (),
      r"is qwen3; what differs: shapes: self_attn.q_norm \(8,\), not \(4,\)$",
    ),
    (
      {"mlp.experts.0.w1": (6, 8), "mlp.experts.1.w1": (6, 8)},
      ("mlp.gate_proj",),
      r"each layer also has mlp.experts.\*.w1; lacks mlp.gate_proj$",
    ),
  )
  def test_tensors(self, more, fewer, sentence):
    layer = {k: v for k, v in LLAMA_LAYER.items() if k not in fewer} | more
    described = LLAMA_3_2_1B | SIZES | {"model_type": "new"}
    for prefix in ("model.", "language_model.model."):
      self.assertRegex(refusal(described, layer, prefix), sentence)

  def test_each_family_is_nearest_to_itself(self):
    """A family under another name is recognised by its tensors."""
    layers = {
      "llama": LLAMA_LAYER,
      "qwen3": LLAMA_LAYER
      | {"self_attn.q_norm": (4,), "self_attn.k_norm": (4,)},
      "olmo2": {k: v for k, v in LLAMA_LAYER.items() if k[:5] != "input"}
      | {"self_attn.q_norm": (8,), "self_attn.k_norm": (4,)}
      | {"post_feedforward_layernorm": (8,)},
      "glm4": {k: v for k, v in LLAMA_LAYER.items() if not UNFUSED.search(k)}
      | {"mlp.gate_up_proj": (12, 8)}
      | {"post_self_attn_layernorm": (8,), "post_mlp_layernorm": (8,)},
    }
    self.assertLessEqual({*layers}, {*FAMILIES})
    for name, layer in layers.items():
      described = LLAMA_3_2_1B | SIZES | {"model_type": "new"}
      text = refusal(described, layer)
      self.assertIn(f"Nearest is {name}; what differs: no key and no", text)

  @settings(max_examples=60, deadline=None)
  @given(strategies.data())
  def test_any_config_is_refused_by_a_sentence(self, data):
    described = dict(LLAMA_3_2_1B)
    json_values = strategies.recursive(
      strategies.none()
      | strategies.booleans()
      | strategies.integers()
      | strategies.floats()
      | strategies.text(max_size=3),
      lambda inner: (
        strategies.lists(inner, max_size=3)
        | strategies.dictionaries(
          strategies.sampled_from((*described, "rope_theta", "")),
          inner,
          max_size=3,
        )
      ),
      max_leaves=6,
    )
    for key in data.draw(
      strategies.sets(
        strategies.sampled_from(
          [*described, "", "text_config", "rope_parameters"]
        )
      )
    ):
      described[key] = data.draw(json_values)
    described["model_type"] = "new"
    text = refusal(described)
    self.assertIn("Nearest is ", text)
    self.assertLess(len(text), 1200)
