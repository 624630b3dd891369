"""On-policy distillation: the KL to a teacher, token by token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax import losses
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.objective import policy_objective
from agentrl_jax.train.token_logprobs import token_logprobs
from configs import quickstart
from launch.config.settings import read_settings
from launch.storage.load_params import with_teacher
from tests.settings import COMPUTE
from tests.train import small

# Another width and depth than the student's, and the same vocabulary.
TEACHER = dataclasses.replace(small.MODEL, width=24, num_layers=1, mlp_width=8)
PADDED = {"vocab_size": small.MODEL.vocab_size + 40}
SETTINGS = {"chunk_size": 8, "temperature": 0.9}


def params_of(model, seed):
  return Policy(model, COMPUTE).init(jax.random.key(seed))


def logprob_of(model, params, batch):
  logprob, _ = token_logprobs(Policy(model, COMPUTE), params, batch, **SETTINGS)
  return np.asarray(logprob)


def built(params, *, weight=0.0, groups=None, **loss):
  """The one micro-batch of groups, and the report."""
  builder = small.make_batch_builder(
    loss=loss_config(**loss),
    advantage=small.advantage_config(weight=weight),
    reference=params_of(TEACHER, 1),
    teacher=TEACHER,
    micro_batch=24,
  )
  (micro_batch,), report = builder.build(groups or small.make_groups(), params)
  return micro_batch, report


def loss_config(**loss):
  return small.loss_config(
    kl_coefficient=0.5, surrogate="reinforce", dual_clip=0.0, **loss
  )


IN_ADVANTAGE = {"kl_place": "advantage", "kl_estimator": "k1"}


class DistillationTest(parameterized.TestCase):
  def test_each_token_is_charged_its_own_divergence(self):
    student = params_of(small.MODEL, 0)
    micro_batch, report = built(student, **IN_ADVANTAGE)
    batch = micro_batch.batch
    teacher = logprob_of(TEACHER, params_of(TEACHER, 1), batch)
    wanted = np.where(batch.mask, batch.behavior_logprob - teacher, 0)
    np.testing.assert_allclose(micro_batch.advantage, -0.5 * wanted, atol=1e-5)
    self.assertAlmostEqual(
      report["policy/reverse_kl"], wanted[batch.mask].mean(), places=5
    )
    self.assertIsNone(micro_batch.reference_logprob)
    # Beside the rewards' own.
    mixed, _ = built(student, weight=2.0, **IN_ADVANTAGE)
    alone, _ = built(student, weight=2.0, kl_place="loss", kl_estimator="k2")
    np.testing.assert_allclose(
      mixed.advantage, alone.advantage - 0.5 * wanted, atol=1e-5
    )

  def test_groups_of_equal_rewards_are_learned_from(self):
    groups = [
      dataclasses.replace(
        group,
        trajectories=tuple(
          dataclasses.replace(t, reward=1.0) for t in group.trajectories
        ),
      )
      for group in small.make_groups()
    ]
    micro_batch, report = built(
      params_of(small.MODEL, 0), weight=1.0, groups=groups, **IN_ADVANTAGE
    )
    self.assertEqual(report["batch/left_out_tokens"], 0)
    mask = micro_batch.batch.mask
    self.assertTrue(np.all(np.asarray(micro_batch.advantage)[mask] != 0))

  def test_on_policy_its_gradient_is_that_of_the_loss(self):
    """-r A with A = -beta x, and beta x^2 / 2, at r = 1."""
    policy, student = Policy(small.MODEL, COMPUTE), params_of(small.MODEL, 0)
    gradients = []
    for loss in (IN_ADVANTAGE, {"kl_place": "loss", "kl_estimator": "k2"}):
      # As sampled by the student itself.
      given, _ = built(student, **loss)
      own = logprob_of(small.MODEL, student, given.batch)
      batch = dataclasses.replace(given.batch, behavior_logprob=own)
      advantage = given.advantage
      if loss is IN_ADVANTAGE:
        teacher = logprob_of(TEACHER, params_of(TEACHER, 1), batch)
        advantage = np.where(batch.mask, -0.5 * (own - teacher), 0)
      given = dataclasses.replace(given, batch=batch, advantage=advantage)
      config = loss_config(**loss)
      objective = policy_objective(policy, config, temperature=0.9)

      def value(params, objective=objective, given=given):
        mean, metrics = objective(params, given)
        return mean.value(), metrics

      gradient, metrics = jax.jit(jax.grad(value, has_aux=True))(student)
      gradients.append(gradient)
    self.assertIn("policy/reverse_kl", metrics)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *gradients
    )

  @parameterized.parameters({}, {"sharing": 4}, {"model": PADDED}, {"chunk": 0})
  def test_the_divergence_over_the_whole_vocabulary(self, **changes):
    """In chunks, and where a tree or padding is between."""
    teacher = dataclasses.replace(TEACHER, **changes.pop("model", {}))
    student, of_teacher = params_of(small.MODEL, 0), params_of(teacher, 1)
    chunk = changes.pop("chunk", 8)  # 0: by the platform, as by default
    config = loss_config(
      kl_place="loss", kl_estimator="full", token_chunk=chunk
    )
    builder = small.make_batch_builder(
      loss=config,
      advantage=small.advantage_config(weight=0.0),
      reference=of_teacher,
      teacher=teacher,
      micro_batch=24,
      **changes,
    )
    (micro_batch,), _ = builder.build(small.make_groups(), student)
    batch = micro_batch.batch

    def exact(params):
      logits = [
        Policy(model, COMPUTE).logits(
          p, batch.token, batch.position, batch.segment
        )
        for model, p in ((small.MODEL, params), (teacher, of_teacher))
      ]
      size = small.MODEL.vocab_size
      divergence = losses.reverse_kl(logits[0], logits[1][..., :size], 0.9)
      shifted = jnp.pad(divergence[:, :-1], ((0, 0), (1, 0)))
      return jnp.mean(shifted, where=batch.mask)

    def trained(params):
      policy = Policy(small.MODEL, COMPUTE)
      objective = policy_objective(policy, config, temperature=0.9)
      mean, metrics = objective(params, micro_batch)
      return mean.value(), metrics["policy/reverse_kl"].value()

    (value, measured), gradient = jax.jit(
      jax.value_and_grad(trained, has_aux=True)
    )(student)
    wanted, slope = jax.jit(jax.value_and_grad(exact))(student)
    self.assertAlmostEqual(float(measured), float(wanted), places=5)
    self.assertAlmostEqual(float(value), 0.5 * float(wanted), places=5)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, 0.5 * b, atol=1e-5),
      gradient,
      slope,
    )

  @parameterized.parameters(
    (
      {"advantage.weight": 0.0},
      "advantage.weight=0 with loss.kl_coefficient=0.0 .* leaves nothing",
    ),
    (
      {"loss.kl_place": "advantage"},
      "kl_place='advantage' does nothing with loss.kl_coefficient=0",
    ),
    (
      {"loss.kl_place": "advantage", "loss.kl_coefficient": 1.0}
      | {"loss.kl_estimator": "unbiased"},
      "a KL in the advantage has none: use k1",
    ),
    (
      {"loss.kl_place": "reward", "loss.kl_coefficient": 1.0}
      | {"loss.kl_estimator": "full"},
      "a KL in the reward has none: use k1",
    ),
    (
      {"reference.path": "/nowhere", "loss.kl_coefficient": 1.0},
      "reference.path=/nowhere must be the folder of a run",
    ),
    (
      {"reference.path": "."},
      "reference.path=. means nothing with .*kl_coefficient=0",
    ),
    ({"reference.version": 3}, "reference.version=3 .*without reference.path"),
  )
  def test_refusals(self, changes, message):
    config = quickstart.get_config()
    config.update_from_flattened_dict(changes)
    with self.assertRaisesRegex(ConfigError, message):
      with_teacher(read_settings(config))


if __name__ == "__main__":
  absltest.main()
