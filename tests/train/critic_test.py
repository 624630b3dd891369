"""An informed critic: its rows, and what it learns that the policy does not."""

import dataclasses

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.data.packing import pack
from agentrl_jax.errors import ConfigError
from agentrl_jax.train.critic import carried_over, informed
from tests.data.records import make_group, make_several_lines
from tests.train import small

MODEL = dataclasses.replace(small.MODEL, value_head=True)
SECRETS = {"good": 51, "bad": 52}  # tokens that no trajectory has


def encode(text):
  return np.full(3, SECRETS[text.strip()], np.int32)


def told(groups, by):
  """The groups, whose trajectories have information: `by` of each."""
  return [
    dataclasses.replace(
      group,
      trajectories=tuple(
        dataclasses.replace(t, information=by(t)) for t in group.trajectories
      ),
    )
    for group in groups
  ]


def make_groups(**fields):
  groups = small.make_groups(**fields)
  return told(groups, lambda t: "good" if t.reward > 0.5 else "bad")


def builder_of(*, critic_input="information", encode=encode, **settings):
  builder = small.make_batch_builder(
    model=MODEL,
    loss=settings.pop("loss", None) or small.loss_config(value_coefficient=0.5),
    advantage=small.advantage_config(
      estimator=settings.pop("estimator", "gae"),
      critic_input=critic_input,
      **settings,
    ),
    row_length=64,
  )
  builder._encode = encode
  return builder


def random_params(policy, seed=0):
  params = jax.tree.map(np.asarray, policy.init(jax.random.key(seed)))
  kernel = np.random.default_rng(0).normal(size=(16, 1)).astype(np.float32)
  params["critic"]["kernel"] = kernel
  return params


class InformedTest(parameterized.TestCase):
  def test_every_line_begins_with_the_information(self):
    (group,) = make_groups(num_groups=1)
    group = make_several_lines(group)
    for before, after in zip(
      group.trajectories, informed(group.trajectories, encode), strict=True
    ):
      self.assertGreater(len(before.lines), 1)
      for line, longer in zip(before.lines, after.lines, strict=True):
        np.testing.assert_array_equal(longer.tokens[3:], line.tokens)
        np.testing.assert_array_equal(
          longer.tokens[:3], encode(before.information)
        )

  def test_refuses_a_trajectory_without_any(self):
    (group,) = small.make_groups(num_groups=1)
    with self.assertRaisesRegex(ConfigError, "no training-time information"):
      informed(group.trajectories, encode)

  @parameterized.parameters(1, 4)
  def test_numbers_are_carried_over_to_the_same_tokens(self, sharing):
    groups = [
      *make_groups(),
      *told([make_group(np.random.default_rng(9))], (lambda t: "good")),
    ]
    trajectories = [t for g in groups for t in g.trajectories]
    source = pack(
      informed(trajectories, encode), row_length=64, sharing=sharing
    )
    target = pack(trajectories, row_length=48, sharing=sharing)
    # A number for each sampled token: its own id, and where it is.
    number = source.token + 100 * source.turn + 1000 * source.trajectory
    found = carried_over(number, source, target)
    wanted = target.token + 100 * target.turn + 1000 * target.trajectory
    np.testing.assert_array_equal(found, np.where(target.mask, wanted, 0))


class UpdateTest(parameterized.TestCase):
  def test_without_information_it_is_the_critic_of_the_policys_rows(self):
    """The same numbers, in rows of their own."""
    self._compare({"estimator": "turn_gae"}, {"reduction": "sequence_mean"})

  @parameterized.parameters(
    ({"estimator": "gae"}, {}),
    ({}, {"reduction": "sequence_mean"}),
    ({"estimator": "turn_gae", "discount": 0.9}, {}),
    ({}, {"task_share": "equal"}),
  )
  @pytest.mark.slow
  def test_without_information_all_estimators_are_equal(self, advantage, loss):
    self._compare(advantage, loss)

  def _compare(self, advantage, loss):
    loss = small.loss_config(value_coefficient=0.5, **loss)
    policy, learner = small.make_learner(
      model=MODEL, loss=loss, **small.PLAIN_STEPS
    )
    params = random_params(policy)
    found = {}
    for kind in ("trajectory", "information"):
      builder = builder_of(
        critic_input=kind,
        encode=lambda text: np.empty(0, np.int32),
        loss=loss,
        **advantage,
      )
      batches, _ = builder.build(make_groups(), params)
      alone = [x for x in batches if x.advantage is None]
      self.assertEqual(bool(alone), kind == "information")
      state, report = learner.update(learner.init(params), batches)
      found[kind] = report, jax.tree.map(np.asarray, state.params)
    (report, params), (other_report, other) = found.values()
    self.assertEqual(report.keys(), other_report.keys())
    for name, value in report.items():
      self.assertAlmostEqual(value, other_report[name], places=5, msg=name)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), params, other
    )

  def test_the_policy_never_reads_the_information(self):
    policy, _ = small.make_learner(model=MODEL)
    batches, report = builder_of().build(make_groups(), random_params(policy))
    plain, plain_report = builder_of(critic_input="trajectory").build(
      make_groups(), random_params(policy)
    )
    of_policy = [x for x in batches if x.advantage is not None]
    for micro_batch, other in zip(of_policy, plain, strict=True):
      np.testing.assert_array_equal(micro_batch.batch.token, other.batch.token)
      self.assertIsNone(micro_batch.value_target)
    for micro_batch in batches[len(of_policy) :]:
      self.assertTrue(
        np.isin(list(SECRETS.values()), micro_batch.batch.token).any()
      )
    for name in ("batch/trained_tokens", "batch/trajectories"):
      self.assertEqual(report[name], plain_report[name])

  def test_its_value_of_a_turn_is_that_of_its_own_rows(self):
    policy, _ = small.make_learner(model=MODEL)
    params = random_params(policy)
    found = []
    for secret in SECRETS:
      groups = told(small.make_groups(), lambda t, s=secret: s)
      batches, _ = builder_of().build(groups, params)
      found.append(batches[0].advantage)
    mask = np.asarray(batches[0].batch.mask)
    self.assertGreater(np.abs(found[0] - found[1])[mask].min(), 0)

  def test_the_longest_line_has_the_information(self):
    groups = make_groups()
    longest, plain = (
      builder_of(critic_input=kind).longest_line(groups)
      for kind in ("information", "trajectory")
    )
    self.assertEqual(longest, plain + 3)

  @pytest.mark.slow
  def test_critic_learns_from_the_information(self):
    """Rewards that no token of the trajectory has to do with."""
    rewards = {"good": 1.0, "bad": 0.0}
    explained = {}
    for kind in ("trajectory", "information"):
      loss = small.loss_config(value_coefficient=1.0, value_clip=0.0)
      builder = builder_of(critic_input=kind, loss=loss, gae_lambda=1.0)
      policy, learner = small.make_learner(model=MODEL, loss=loss)
      state = learner.init(policy.init(jax.random.key(0)))
      for step in range(40):
        rng = np.random.default_rng(step)
        groups = [
          make_group(rng, id=name, task="a", reward=reward)
          for name, reward in rewards.items()
          for _ in range(2)
        ]
        groups = told(groups, lambda t: "good" if t.reward else "bad")
        batches, _ = builder.build(groups, state.params)
        state, report = learner.update(state, batches)
      explained[kind] = report["critic/explained_variance"]
    self.assertGreater(explained["information"], 0.8)
    self.assertLess(explained["trajectory"], 0.4)


if __name__ == "__main__":
  absltest.main()
