"""Tests of AgentRL's objective, as one function and composed."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from agentrl_jax.losses import agentrl, policy_gradient, ratios, reductions
from tests.reference import agentrl as reference
from tests.reference import finite_difference

B, T, V, D = 6, 5, 4, 3


def _batch(seed: int):
  """Logprobs of policy, behavior, reference; advantage; mask; NaN off it."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  behavior_BT = rng.normal(-2, 1, size=(B, T))
  policy_BT, reference_BT = behavior_BT + rng.normal(size=(2, B, T))
  advantage_BT = rng.normal(size=(B, T))
  arrays = (policy_BT, behavior_BT, reference_BT, advantage_BT)
  return *(np.where(mask_BT, x_BT, np.nan) for x_BT in arrays), mask_BT


class AgentRLLossTest(parameterized.TestCase):
  def test_without_a_reference_it_is_the_clipped_surrogate(self):
    policy_BT, behavior_BT, _, advantage_BT, mask_BT = _batch(seed=2)
    surrogate_BT = policy_gradient.clipped_surrogate(
      ratios.log_ratio(policy_BT, behavior_BT, mask_BT),
      advantage_BT,
      clip_low=0.2,
      clip_high=0.2,
      dual_clip=3.0,
    )
    chex.assert_trees_all_equal(
      agentrl.agentrl_loss(
        policy_BT, behavior_BT, None, advantage_BT, mask_BT, kl_coefficient=0
      ),
      reductions.token_mean(surrogate_BT, mask_BT),
    )

  @pytest.mark.slow
  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(seed=st.integers(0, 999))
  def test_on_policy_at_the_reference_it_is_reinforce(self, seed):
    policy_BT, _, _, advantage_BT, mask_BT = _batch(seed)
    gradient_BT = jax.grad(
      lambda x: agentrl.agentrl_loss(
        x, policy_BT, policy_BT, advantage_BT, mask_BT
      ).value()
    )(policy_BT)
    np.testing.assert_allclose(
      gradient_BT,
      np.where(mask_BT, -advantage_BT, 0) / mask_BT.sum(),
      atol=1e-6,
    )


NUM_GROUPS, NUM_TASKS = 2, 2
OBJECTIVE_SETTINGS = dict(temperature=0.8, kl_weight=0.3)


def _objective_batch(seed: int):
  """Two groups of three, one per task; NaN wherever nothing is trained."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.6
  behavior_BT, reference_BT = rng.normal(-1.5, 0.7, size=(2, B, T))
  behavior_BT[~mask_BT] = np.nan
  reference_BT[~mask_BT] = np.nan
  return {
    "token_BT": rng.integers(V, size=(B, T)),
    "mask_BT": mask_BT,
    "behavior_logprob_BT": behavior_BT.astype(np.float32),
    "reference_logprob_BT": reference_BT.astype(np.float32),
    "reward_B": np.array([1, 0, 0, 1, -0.2, 1], np.float32),
    "group_B": np.array([0, 0, 0, 1, 1, 1]),
    "task_B": np.array([0, 0, 0, 1, 1, 1]),
  }


def _advantage(batch):
  """Over the whole batch, before anything is cut."""
  advantage_B = losses.group_advantage(
    batch["reward_B"],
    batch["group_B"],
    num_groups=NUM_GROUPS,
    valid_N=jnp.ones(B, bool),
  )
  return losses.task_normalise(
    jnp.broadcast_to(advantage_B[:, None], (B, T)),
    jnp.broadcast_to(batch["task_B"][:, None], (B, T)),
    batch["mask_BT"],
    num_tasks=NUM_TASKS,
  )


def _loss(logprob_BT, advantage_BT, batch, *, kl_weight) -> losses.Mean:
  mask_BT = batch["mask_BT"]
  loss_BT = losses.clipped_surrogate(
    losses.log_ratio(logprob_BT, batch["behavior_logprob_BT"], mask_BT),
    advantage_BT,
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=3.0,
  )
  divergence_BT = losses.k3(
    losses.log_ratio(logprob_BT, batch["reference_logprob_BT"], mask_BT),
    limit=10.0,
  )
  return losses.token_mean(loss_BT + kl_weight * divergence_BT, mask_BT)


def _objective(logits_BTV, batch, *, temperature, kl_weight):
  logprob_BT = losses.token_logprob(logits_BTV, batch["token_BT"], temperature)
  mean = _loss(logprob_BT, _advantage(batch), batch, kl_weight=kl_weight)
  return mean.value()


class ObjectiveTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(7)
    self.logits_BTV = rng.normal(size=(B, T, V)).astype(np.float32)

  def test_value_and_gradient_match_the_reference(self):
    batch = _objective_batch(seed=0)
    objective = functools.partial(_objective, **OBJECTIVE_SETTINGS)
    value, gradient_BTV = jax.jit(jax.value_and_grad(objective))(
      self.logits_BTV, batch
    )
    expected = functools.partial(
      reference.objective, batch=batch, **OBJECTIVE_SETTINGS
    )
    np.testing.assert_allclose(value, expected(self.logits_BTV), rtol=1e-5)
    np.testing.assert_allclose(
      gradient_BTV,
      finite_difference.gradient(expected, self.logits_BTV),
      atol=1e-5,
    )
    np.testing.assert_array_equal(gradient_BTV[~batch["mask_BT"]], 0)

  @pytest.mark.slow
  def test_a_broken_advantage_off_the_mask_does_not_spread(self):
    batch = _objective_batch(seed=1)
    advantage_BT = np.asarray(_advantage(batch))

    def loss(logits_BTV, advantage_BT):
      logprob_BT = losses.token_logprob(logits_BTV, batch["token_BT"])
      return _loss(logprob_BT, advantage_BT, batch, kl_weight=0.3).value()

    chex.assert_trees_all_equal(
      jax.value_and_grad(loss)(
        self.logits_BTV, np.where(batch["mask_BT"], advantage_BT, np.nan)
      ),
      jax.value_and_grad(loss)(self.logits_BTV, advantage_BT),
    )

  @pytest.mark.slow
  def test_micro_batches_from_hidden_states_add_up_to_the_whole(self):
    batch = _objective_batch(seed=2)
    rng = np.random.default_rng(3)
    hidden_BTD = rng.normal(size=(B, T, D)).astype(np.float32)
    output_DV = rng.normal(size=(D, V)).astype(np.float32)
    advantage_BT = _advantage(batch)

    def whole(output_DV):
      return _objective(hidden_BTD @ output_DV, batch, **OBJECTIVE_SETTINGS)

    def micro_loss(output_DV, rows):
      micro = jax.tree.map(lambda x: x[rows], batch)
      logprob_BT, _ = losses.fused_token_logprob(
        hidden_BTD[rows],
        output_DV,
        micro["token_BT"],
        temperature=OBJECTIVE_SETTINGS["temperature"],
        chunk_size=2,
      )
      return _loss(
        logprob_BT,
        advantage_BT[rows],
        micro,
        kl_weight=OBJECTIVE_SETTINGS["kl_weight"],
      )

    def of_parts(output_DV):
      parts = [
        micro_loss(output_DV, rows)
        for rows in (slice(0, 1), slice(1, 4), slice(4, B))
      ]
      return functools.reduce(losses.Mean.__add__, parts).value()

    chex.assert_trees_all_close(
      jax.value_and_grad(of_parts)(output_DV),
      jax.value_and_grad(whole)(output_DV),
      atol=1e-5,
    )
