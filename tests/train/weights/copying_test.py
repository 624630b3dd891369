"""Copying heads: what changes in fresh params, and what they then prefer."""

import dataclasses

import jax
import numpy as np
from absl.testing import parameterized

from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.weights import copying as heads
from tests.model import drawn

MODEL = ModelConfig(
  vocab_size=97,
  width=64,
  num_layers=3,
  num_heads=4,
  num_kv_heads=2,
  head_dim=16,
  mlp_width=96,
  embedding_scale=7.0,
)


copying = jax.jit(heads.copying)


def _policy(**changes) -> Policy:
  model = dataclasses.replace(MODEL, **changes)
  return Policy(model, ComputeConfig())


class CopyingTest(parameterized.TestCase):
  @parameterized.parameters(1, 2, 4)
  def test_outputs_are_values_transposed(self, num_kv_heads):
    params = drawn.fill(_policy(num_kv_heads=num_kv_heads).abstract_params())
    attention = copying(params, 3.0)["layers"]["attention"]
    groups = 4 // num_kv_heads
    for layer in (1, 2):
      for head in range(num_kv_heads):
        v_DH = np.asarray(attention["v"]["kernel"][layer, :, head])
        o_GHD = np.asarray(attention["o"]["kernel"][layer, head])
        self.assertLen(o_GHD, groups)
        for o_HD in o_GHD:
          np.testing.assert_allclose(o_HD, 3 / groups * v_DH.T, rtol=1e-6)

  def test_nothing_else_changes(self):
    params = drawn.fill(_policy().abstract_params())
    made = jax.tree.map(np.asarray, copying(params, 3.0))
    changed = []
    for (path, old), new in zip(
      jax.tree_util.tree_leaves_with_path(params),
      jax.tree.leaves(made),
      strict=True,
    ):
      self.assertEqual((new.shape, new.dtype), (old.shape, old.dtype))
      if not np.array_equal(old, new):
        changed.append(jax.tree_util.keystr(path))
        np.testing.assert_array_equal(old[0], new[0])  # the first layer
    self.assertEqual(changed, ["['layers']['attention']['o']['kernel']"])

  def test_tokens_of_the_context_become_likelier(self):
    """By more than a standard deviation, and not in random params."""
    policy = _policy(num_kv_heads=4)
    params = policy.init(jax.random.key(1))
    logits = jax.jit(policy.logits)
    rng = np.random.default_rng(0)
    token_BT = np.stack([rng.permutation(97)[:12] for _ in range(16)])
    # The last token itself is likely in any tied model: it is left out.
    seen_BV = np.zeros((16, 97), bool)
    np.put_along_axis(seen_BV, token_BT[:, :-1], True, axis=1)
    last_BV = np.zeros((16, 97), bool)
    np.put_along_axis(last_BV, token_BT[:, -1:], True, axis=1)

    def preference(params) -> float:
      position_BT = np.tile(np.arange(12), (16, 1))
      logits_BTV = logits(
        params, token_BT, position_BT, np.ones((16, 12), np.int32)
      )
      logits_BV = np.asarray(logits_BTV)[:, -1]
      unseen = logits_BV[~seen_BV & ~last_BV]
      return (logits_BV[seen_BV].mean() - unseen.mean()) / unseen.std()

    self.assertLess(abs(preference(params)), 0.5)
    self.assertGreater(preference(copying(params, 4.0)), 1.0)
