"""Operations by formula, against the compiler's own count where it is right.

The compiler counts what a program without loops executes. One layer's worth is
what a model of two layers has beyond a model of one.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.presets import PRESETS
from agentrl_jax.model.policy import Policy
from launch.planning import roofline
from launch.planning.roofline import Attempts, Load
from tests.settings import compute_config

MODEL = ModelConfig(
  vocab_size=512,
  width=256,
  num_layers=1,
  num_heads=4,
  num_kv_heads=2,
  head_dim=64,
  mlp_width=768,
)
ROWS, LENGTH = 2, 256


# A prompt of 64 tokens and six answers of 32.
ATTEMPTS = Attempts(prompt=64, turns=32, num=6)


def _counted(compute: ComputeConfig, num_layers: int, is_tree: bool) -> float:
  policy = Policy(dataclasses.replace(MODEL, num_layers=num_layers), compute)

  def loss(params, token_BT):
    position_BT = jnp.broadcast_to(jnp.arange(LENGTH), token_BT.shape)
    marks = {"end_BT" if is_tree else "segment_BT": token_BT // 512 + 1}
    hidden = policy.hidden(
      params, token_BT, position_BT, **{"segment_BT": None, **marks}
    )
    return jnp.sum(hidden.astype(jnp.float32))

  token = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
  traced = jax.jit(jax.grad(loss)).trace(policy.abstract_params(), token)
  return traced.lower().compile().cost_analysis()["flops"]


def _load(length: int, visited: float, *, tokens: int) -> Load:
  return Load(
    attempts=None,
    tokens=tokens,
    computed=tokens,
    of_trajectories=tokens,
    keys_needed=length / 2,
    keys_visited=visited,
  )


def _tree_load() -> Load:
  """Trees that fill their rows, with attention over whole rows."""
  row = roofline.pack_attempts(ATTEMPTS, row_length=LENGTH, sharing=4)
  return Load(
    attempts=ATTEMPTS,
    tokens=ROWS * LENGTH,
    computed=ROWS * row.computed,
    of_trajectories=ROWS * row.tokens,
    keys_needed=row.keys_needed(),
    keys_visited=LENGTH,
  )


class FlopsTest(parameterized.TestCase):
  @parameterized.parameters(("none", False), ("full", False), ("none", True))
  def test_a_layer_costs_what_the_compiler_counts(self, remat, is_tree):
    compute = compute_config(remat=remat, attention="xla")
    counted = _counted(compute, 2, is_tree) - _counted(compute, 1, is_tree)
    rows = _load(LENGTH, LENGTH, tokens=ROWS * LENGTH)
    by_formula = functools.partial(
      roofline.gradient,
      compute=compute,
      load=_tree_load() if is_tree else rows,
      kernel="xla",
    )
    two = dataclasses.replace(MODEL, num_layers=2)
    layer = by_formula(two).executed - by_formula(MODEL).executed
    # The rest is norms, softmax, rotation and activation.
    self.assertBetween(counted / layer, 0.98, 1.08)

  def test_a_tree_stands_for_more_tokens_than_it_computes(self):
    load = _tree_load()
    self.assertEqual(load.computed, load.tokens)
    self.assertEqual(load.of_trajectories, ROWS * 6 * 96)

  @parameterized.parameters(
    ("qwen3-1.7b", 1.72e9),
    ("qwen3-8b", 8.19e9),
    ("qwen2.5-14b", 14.77e9),
    ("qwen3-32b", 32.76e9),
    ("qwen3-30b-a3b", 30.53e9),
    ("glm-4.5-air", 106.9e9),
    ("qwen3.5-27b", 26.9e9),
    ("qwen3-next-80b-a3b", 79.67e9),
    ("glm-4.7-flash", 29.94e9),
    ("deepseek-v3", 671.0e9),
  )
  def test_params_are_as_many_as_published(self, name, published):
    self.assertBetween(
      roofline.num_params(PRESETS[name]) / published, 0.995, 1.005
    )

  def test_recomputing_costs_a_third_of_the_layers_less_one_product(self):
    c = PRESETS["qwen3-8b"]
    found = {
      remat: roofline.gradient(
        c,
        compute_config(remat=remat),
        _load(8192, (8192 + 512) / 2, tokens=1),
        kernel="splash",
      ).executed
      for remat in ("none", "full")
    }
    again = 2 * (
      roofline.layers_weights(c) - c.width * roofline.mlp_channels(c)
    )
    attended = roofline.attention(c, (8192 + 512) / 2)
    self.assertAlmostEqual(
      found["full"] - found["none"], again + c.num_layers * attended, -3
    )

  def test_the_busiest_chip_has_more_keys_and_equal_products(self):
    c, compute = PRESETS["qwen3-8b"], compute_config(remat="full")
    mean = _load(8192, 4000, tokens=64)
    most = dataclasses.replace(mean, keys_visited=6000)
    flops, more = (
      roofline.gradient(c, compute, load, kernel="splash")
      for load in (dataclasses.replace(mean, imbalance=1.5), most)
    )
    self.assertLess(flops.executed, more.executed)
    self.assertAlmostEqual(flops.of_busiest(8) / (more.executed / 8), 1)

  @parameterized.parameters(
    ("xla", 0, "none", 0),
    ("xla", 0, "attention", 1),  # the compiler counts as much as for "full"
    ("xla", 0, "full", 1),
    ("xla", 64, "none", 0.5),
    ("xla", 64, "attention", 1.5),
    ("cudnn", 0, "none", 0.5),
    ("splash", 0, "none", 1.5),
    ("splash", 0, "attention", 1.5),
    ("splash", 0, "full", 2.5),
  )
  def test_attention_computed_again(self, kernel, block, remat, passes):
    compute = compute_config(remat=remat, attention_block=block)

    def executed(visited):
      load = _load(LENGTH, visited, tokens=1)
      return roofline.gradient(MODEL, compute, load, kernel=kernel).executed

    attended = roofline.attention(MODEL, LENGTH)
    self.assertAlmostEqual(
      (executed(LENGTH) - executed(0)) / attended, 3 + passes
    )

  def test_kernels_skip_what_lies_above_the_diagonal(self):
    def visited(kernel, **compute):
      return roofline.keys_visited(
        compute_config(**compute), 8192, kernel, seen=4096, length=8192
      )

    found = [*map(visited, ("xla", "cudnn", "splash"))]
    self.assertEqual(
      [*found, visited("xla", attention_block=1024)],
      [8192, 8192, (8192 + 512) / 2, 4608],
    )
