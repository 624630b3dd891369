"""On-policy distillation: the KL to a teacher, token by token."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

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

STUDENT = dataclasses.replace(small.MODEL, num_layers=1)
# Another width than the student's, and the same vocabulary.
TEACHER = dataclasses.replace(STUDENT, width=24, mlp_width=8)
PADDING = 40  # of the teacher's vocabulary
OF_TEACHER = small.params_of(TEACHER, 1)
SETTINGS = {"chunk_size": 8, "temperature": 0.9}


@functools.partial(jax.jit, static_argnums=0)
def logprob_of(model, params, batch):
  return token_logprobs(Policy(model, COMPUTE), params, batch, **SETTINGS)[0]


@jax.jit
@jax.value_and_grad
def exact_divergence(student, token, position, segment, mask):
  """From all logits of student and teacher, mean over the tokens of a mask."""
  logits = (
    Policy(model, COMPUTE).logits(params, token, position, segment)
    for model, params in ((STUDENT, student), (TEACHER, OF_TEACHER))
  )
  divergence = losses.reverse_kl(*logits, 0.9)
  shifted = jnp.pad(divergence[:, :-1], ((0, 0), (1, 0)))
  return jnp.mean(shifted, where=mask)


def built(params, *, weight=0.0, groups=None, **loss):
  """The one micro-batch of groups, and the report."""
  builder = small.make_batch_builder(
    model=STUDENT,
    loss=loss_config(**loss),
    advantage=small.advantage_config(weight=weight),
    reference=OF_TEACHER,
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
    student = small.params_of(STUDENT)
    micro_batch, report = built(student, **IN_ADVANTAGE)
    batch = micro_batch.batch
    teacher = logprob_of(TEACHER, OF_TEACHER, batch)
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
      small.params_of(STUDENT), weight=1.0, groups=groups, **IN_ADVANTAGE
    )
    self.assertEqual(report["batch/left_out_tokens"], 0)
    mask = micro_batch.batch.mask
    self.assertTrue(np.all(np.asarray(micro_batch.advantage)[mask] != 0))

  def test_on_policy_its_gradient_is_that_of_the_loss(self):
    """-r A with A = -beta x, and beta x^2 / 2, at r = 1."""
    policy, student = Policy(STUDENT, COMPUTE), small.params_of(STUDENT)
    in_loss = {"kl_place": "loss", "kl_estimator": "k2"}
    given, _ = built(student, **in_loss)
    # As sampled by the student itself.
    own = logprob_of(STUDENT, student, given.batch)
    batch = dataclasses.replace(given.batch, behavior_logprob=own)
    given = dataclasses.replace(given, batch=batch)
    advantage = np.where(batch.mask, -0.5 * (own - given.reference_logprob), 0)
    charged = dataclasses.replace(
      given, advantage=advantage, reference_logprob=None
    )
    gradients = []
    for x, loss in ((charged, IN_ADVANTAGE), (given, in_loss)):
      config = loss_config(**loss)
      objective = policy_objective(policy, config, temperature=0.9)

      def value(params, objective=objective, x=x):
        mean, metrics = objective(params, x)
        return mean.value(), metrics

      gradient, metrics = jax.jit(jax.grad(value, has_aux=True))(student)
      gradients.append(gradient)
    self.assertIn("policy/reverse_kl", metrics)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *gradients
    )

  @parameterized.parameters(
    # 0: by the platform, as by default.
    {"chunk": 0, "padding": 0},
    {"chunk": 8, "padding": PADDING, "sharing": 4},
  )
  def test_the_divergence_over_the_whole_vocabulary(
    self, *, chunk, padding, **batch
  ):
    """In chunks, and where a tree or padding is between."""
    student, policy = small.params_of(STUDENT), Policy(STUDENT, COMPUTE)
    more = ((0, padding), (0, 0))
    config = loss_config(
      kl_place="loss", kl_estimator="full", token_chunk=chunk
    )
    builder = small.make_batch_builder(
      model=STUDENT,
      loss=config,
      advantage=small.advantage_config(weight=0.0),
      reference=OF_TEACHER
      | {"embedding": np.pad(OF_TEACHER["embedding"], more, mode="edge")},
      teacher=dataclasses.replace(
        TEACHER, vocab_size=TEACHER.vocab_size + padding
      ),
      micro_batch=24,
      **batch,
    )
    (micro_batch,), _ = builder.build(small.make_groups(), student)
    objective = policy_objective(policy, config, temperature=0.9)

    def trained(params):
      mean, metrics = objective(params, micro_batch)
      return mean.value(), metrics["policy/reverse_kl"].value()

    (value, measured), gradient = jax.jit(
      jax.value_and_grad(trained, has_aux=True)
    )(student)
    batch = micro_batch.batch
    wanted, slope = exact_divergence(
      student, batch.token, batch.position, batch.segment, batch.mask
    )
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
