"""Computing shared tokens once changes no loss, metric or gradient."""

import dataclasses

import jax
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.model.policy import Policy
from agentrl_jax.train.batch_builder import BatchBuilder
from agentrl_jax.train.weights.reference import Reference
from tests.data.records import make_branching_group
from tests.settings import COMPUTE, compute_config, lora_config
from tests.train import small

ROW = 64
CASES = (
  (
    "attempts",
    {
      "loss": {
        "surrogate": "gspo",
        "dual_clip": 0.0,
        "reduction": "sequence_mean",
      }
    },
  ),
  ("kl", {"loss": {"kl_coefficient": 0.1, "task_share": "equal"}}),
  ("kl_in_rewards", {"loss": {"kl_coefficient": 0.1, "kl_place": "reward"}}),
  (
    "decoupled",
    {"loss": {"proximal": "recomputed", "importance": "truncated"}},
  ),
  ("entropy", {"loss": {"entropy_coefficient": 0.1}}),
  (
    "critic",
    {
      "loss": {"value_coefficient": 0.5, "value_clip": 0.2},
      "advantage": {"estimator": "gae"},
      "model": {"value_head": True},
    },
  ),
  ("adapters", {"lora": {"rank": 2}}),
  (
    "blocks",
    {"compute": {"attention_block": 16, "scan_layers": True, "remat": "full"}},
  ),
)


def groups_of(seed=0):
  rng = np.random.default_rng(seed)
  system = rng.integers(1, 50, 5)
  return [
    make_branching_group(rng, id=str(n), task="ab"[n % 2], prompt=system)
    for n in range(5)
  ]


def moved(params, seed=1):
  """Other params, so that nothing is 0 because a module starts at 0."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: np.float32(x + 0.1 * rng.normal(size=x.shape)), params
  )


def update(
  groups, *, sharing, loss=(), advantage=(), model=(), lora=(), compute=()
):
  """Metrics and params after an update, and the builder's report."""
  config = dataclasses.replace(small.MODEL, **dict(model))
  loss = small.loss_config(**dict(loss))
  policy, learner = small.make_learner(
    model=config,
    compute=compute_config(**dict(compute)),
    adaptation=lora_config(**dict(lora)),
    loss=loss,
    **small.PLAIN_STEPS,
  )
  params = small.params_of(config)
  trained, frozen = policy.split(params, jax.random.key(3))
  trained = moved(trained, 4)
  plain = Policy(config, COMPUTE)
  builder = BatchBuilder(
    plain,
    loss=loss,
    advantage=small.advantage_config(**dict(advantage)),
    batch=small.batch_config(2, row_length=ROW, sharing=sharing),
    task_ids=small.TASK_IDS,
    temperature=0.9,
    reference=Reference(plain, moved(params, 2), place="resident")
    if loss.kl_coefficient
    else None,
  )
  micro_batches, report = builder.build(
    groups, policy.plain(policy.whole(trained, frozen))
  )
  state, metrics = learner.update(learner.init(trained), micro_batches, frozen)
  return metrics, state.params, report


class SharedTest(parameterized.TestCase):
  def test_changes_no_update(self):
    self.require_no_change({})

  @parameterized.named_parameters(*CASES)
  @pytest.mark.slow
  def test_changes_no_update_by_config(self, settings):
    self.require_no_change(settings)

  def require_no_change(self, settings):
    groups = groups_of()
    wanted, wanted_params, plain = update(groups, sharing=1, **settings)
    found, params, report = update(groups, sharing=6, **settings)
    self.assertGreater(report["batch/shared"], 0.3)
    self.assertEqual(plain["batch/shared"], 0)
    self.assertEqual(set(found), set(wanted))
    for name in wanted:
      np.testing.assert_allclose(
        found[name], wanted[name], atol=1e-6, rtol=1e-6, err_msg=name
      )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
      params,
      wanted_params,
    )
