"""Published models have as many parameters as their publishers count."""

import dataclasses
import math

import jax
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.hugging_face.presets import PRESETS, preset
from agentrl_jax.model.policy import Policy
from tests.settings import COMPUTE

# Of the safetensors files beside each model's card; Llama 3 to 3.3 are alike.
LLAMA_8B, LLAMA_70B = 8_030_261_248, 70_553_706_496
SIGHT = 416_866_032
COUNTS = {
  "qwen2.5-0.5b": 494_032_768,
  "qwen2.5-1.5b": 1_543_714_304,
  "qwen2.5-3b": 3_085_938_688,
  "qwen2.5-7b": 7_615_616_512,
  "qwen2.5-14b": 14_770_033_664,
  "qwen2.5-32b": 32_763_876_352,
  "qwen2.5-72b": 72_706_203_648,
  "qwen3-0.6b": 596_049_920,
  "qwen3-1.7b": 1_720_574_976,
  "qwen3-4b": 4_022_468_096,
  "qwen3-8b": 8_190_735_360,
  "qwen3-14b": 14_768_307_200,
  "qwen3-32b": 32_762_123_264,
  "qwen3-30b-a3b": 30_532_122_624,
  "qwen3-235b-a22b": 235_093_634_560,
  "llama-3-8b": LLAMA_8B,
  "llama-3-70b": LLAMA_70B,
  "llama-3.1-8b": LLAMA_8B,
  "llama-3.1-70b": LLAMA_70B,
  "llama-3.2-1b": 1_235_814_400,
  "llama-3.2-3b": 3_212_749_824,
  "llama-3.3-70b": LLAMA_70B,
  "gemma-3-270m": 268_098_176,
  "gemma-3-1b": 999_885_952,
  # Without what sees, and its projection.
  "gemma-3-4b": 4_300_079_472 - SIGHT - 1152 * (2560 + 1),
  "gemma-3-12b": 12_187_325_040 - SIGHT - 1152 * (3840 + 1),
  "gemma-3-27b": 27_432_406_640 - SIGHT - 1152 * (5376 + 1),
  # As llama.cpp counts, without the frequencies of a head's pairs.
  # And without keys and values of layers that read those of others: of 16 and 4
  # layers, and of 15 and 3.
  "gemma-4-e2b": 4_647_450_147
  - 256
  - 16 * (2 * 1536 * 256 + 256)
  - 4 * (2 * 1536 * 512 + 512),
  "gemma-4-e4b": 7_518_069_290
  - 256
  - 15 * (2 * 2560 * 512 + 256)
  - 3 * (2 * 2560 * 1024 + 512),
  "gemma-4-31b": 30_697_345_596 - 256,
  "gemma-4-26b-a4b": 25_233_142_046 - 256,
  "mistral-7b-v0.3": 7_248_023_552,
  "mistral-nemo-12b": 12_247_782_400,
  "mistral-small-24b": 23_572_403_200,
  "olmo-2-1b": 1_484_916_736,
  "olmo-2-7b": 7_298_617_344,
  "olmo-2-13b": 13_716_198_400,
  "olmo-2-32b": 32_234_279_936,
  "glm-4-9b-0414": 9_400_279_040,
  "glm-4-32b-0414": 32_566_081_536,
  # Without the layer that predicts further tokens, with its two embeddings.
  "glm-4.5-air": 110_468_824_832 - 3_616_573_568,
  "glm-4.5": 358_337_791_296 - 5_539_962_272,
  "glm-4.6": 358_337_791_296 - 5_539_962_272,
  # Without the layer that predicts further tokens, and what sees.
  "qwen3-next-80b-a3b": 81_324_862_720 - 1_650_471_424,
  "qwen3.5-27b": 27_781_427_952 - 424_699_392 - 460_730_096,
  "qwen3.5-35b-a3b": 35_951_822_704 - 844_640_768 - 446_571_248,
  "glm-4.7-flash": 31_221_488_576 - 1_278_094_656,
  # And without the scales of blocks in fp8.
  "deepseek-v3": 684_489_845_504 - 13_463_426_304,
  "gpt-oss-20b": 20_914_757_184,
  "gpt-oss-120b": 116_829_156_672,
}


class PresetsTest(parameterized.TestCase):
  def test_every_one_is_counted(self):
    self.assertEqual(set(COUNTS), set(PRESETS))

  @pytest.mark.slow
  def test_counts(self):
    for name, config in PRESETS.items():
      leaves = jax.tree.leaves(Policy(config, COMPUTE).abstract_params())
      self.assertEqual(
        sum(math.prod(leaf.shape) for leaf in leaves), COUNTS[name], name
      )

  def test_shapes_are_those_of_what_is_made(self):
    for name in ("qwen2.5-0.5b", "glm-4-9b-0414"):
      config = dataclasses.replace(
        preset(name), num_layers=2, tied_embedding=False, value_head=True
      )
      policy = Policy(config, COMPUTE)
      made = jax.eval_shape(policy.init, jax.random.key(0))
      self.assertEqual(policy.abstract_params(), made)

  def test_an_unknown_name(self):
    with self.assertRaisesRegex(ConfigError, "'gpt-2' is not one of qwen2.5-0"):
      preset("gpt-2")
