"""Tests of `train.custom`: inputs of functions, and refused ones."""

import collections
import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError, NotFinite
from agentrl_jax.model.policy import Policy
from agentrl_jax.train import advantages
from agentrl_jax.train.custom_trial import try_advantage, try_loss
from agentrl_jax.train.objective import batch_loss, policy_objective
from configs import base
from launch.config.settings import read_settings
from tests.data.records import make_several_lines
from tests.settings import COMPUTE
from tests.train import small

LAB = "tests.train.custom.my_lab"
OURS = "agentrl_jax.losses"
CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def surrogate(name, where=LAB, **settings):
  return {
    "surrogate": f"{where}:{name}",
    "surrogate_settings": settings,
    "dual_clip": 0.0,
  }


class ConfigTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("module", "my_lba.losses:f", {}, "no module 'my_lba'.*PYTHONPATH"),
    ("form", ":f", {}, "not of the form module:function"),
    ("name", f"{LAB}:as_muhc", {}, "no function 'as_muhc'; its functions are"),
    ("number", f"{LAB}:A_NUMBER", {}, "no function 'A_NUMBER'"),
    (
      "misspelt",
      f"{LAB}:as_much_as_all",
      {"widht": 1.0},
      "unexpected keyword argument 'widht'",
    ),
    ("missing", f"{LAB}:with_entropy", {}, "required argument: 'bonus'"),
    ("both", f"{LAB}:with_entropy", {"b": 1}, "required argument: 'bonus'"),
    ("arity", f"{LAB}:of_nothing", {}, "takes none of log_ratio_BT, policy_lo"),
    ("other", f"{LAB}:by_group", {"power": 1}, "takes none of log_ratio_BT"),
    ("position", f"{LAB}:by_position", {}, "log_ratio_BT"),
    ("given", f"{LAB}:as_much_as_all", {"mask_BT": 1}, "does not fit"),
    ("nan", f"{LAB}:as_much_as_all", {"width": np.nan}, "width=nan is not a f"),
    ("inf", f"{LAB}:as_much_as_all", {"width": np.inf}, "width=inf is not a f"),
    ("array", f"{LAB}:as_much_as_all", {"width": np.ones(2)}, "type ndarray"),
    (
      "scalar",
      f"{LAB}:as_much_as_all",
      {"width": np.float64(1)},
      "type float6",
    ),
    (
      "code",
      f"{LAB}:as_much_as_all",
      {"width": [print]},
      r"width\[0\]=.*is of",
    ),
    ("keys", f"{LAB}:as_much_as_all", {3: 1.0}, "the key 3: keys are strings"),
    ("no_mapping", f"{LAB}:as_much_as_all", "width=1", "must be a mapping"),
    ("idle", "reinforce", {"width": 1.0}, "means nothing for loss.surrogate"),
  )
  def test_refuses_a_surrogate(self, name, settings, message):
    with self.assertRaisesRegex(ConfigError, message):
      small.loss_config(
        surrogate=name, surrogate_settings=settings, dual_clip=0.0
      )

  @parameterized.named_parameters(
    ("reduction", {"reduction": f"{LAB}:scores"}, "takes none of x_BT"),
    ("kl", {"kl_estimator": f"{LAB}:scores"}, "takes none of log_ratio_BT"),
    (
      "kl_of_reward",
      {
        "kl_estimator": f"{OURS}:unbiased_kl",
        "kl_place": "reward",
        "kl_coefficient": 0.1,
      },
      "takes behavior_log_ratio_BT, which the reward does not have",
    ),
    (
      "share",
      {"reduction": f"{OURS}:token_mean", "task_share": "equal"},
      "weighs tokens",
    ),
    ("clip", {"clip_low": 1.0}, "clip_low=1.0 must be below 1"),
    (
      "clip_of_gspo",
      {"surrogate": "gspo", "dual_clip": 0.0, "clip_low": 1.0},
      "1 and more are for loss.surrogate=cispo and gmpo",
    ),
  )
  def test_refuses_of_the_loss(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      small.loss_config(**changes)

  @parameterized.named_parameters(
    ("estimator", {"estimator": f"{LAB}:scores2"}, "no function 'scores2'"),
    ("setting", {"estimator": f"{LAB}:by_group"}, "argument: 'power'"),
    ("kinds", {"estimator": f"{LAB}:mixed_kinds"}, "take one kind"),
    ("keep", {"keep": f"{LAB}:with_entropy"}, "takes none of reward_N"),
    (
      "threshold",
      {
        "keep": f"{LAB}:big_groups",
        "keep_settings": {"least": 0.5, "threshold": 0.5},
      },
      "threshold",
    ),
    (
      "k",
      {"estimator": f"{LAB}:by_turn", "estimator_settings": {"k": 2}},
      "argument 'k'",
    ),
    ("no_mapping", {"keep_settings": None}, "must be a mapping"),
  )
  def test_refuses_of_the_advantage(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      small.advantage_config(**changes)

  @parameterized.parameters("cispo", "gmpo")
  def test_a_lower_bound_may_be_absent_where_the_paper_has_none(self, name):
    config = small.loss_config(surrogate=name, dual_clip=0.0, clip_low=1.0)
    self.assertEqual(config.clip_low, 1.0)

  def test_a_config_file_and_a_command_line_can_name_one(self):
    config = base.get_config()
    config.loss.surrogate = f"{LAB}:with_entropy"
    config.loss.surrogate_settings = {"bonus": 0.25}
    config.loss.dual_clip = 0.0
    config.advantage.estimator = f"{LAB}:by_group"
    config.advantage.estimator_settings = {"power": 2.0}
    settings = read_settings(config)
    self.assertTrue(settings.loss.reads_entropy)
    self.assertEqual(settings.loss.surrogate_settings["bonus"], 0.25)
    self.assertFalse(settings.advantage.varies_within_trajectory)
    self.assertIsInstance(hash(settings.advantage), int)

  def test_an_import_of_something_else_that_is_missing_says_so(self):
    where = "tests.train.custom.my_broken_lab"
    with self.assertRaisesRegex(
      ConfigError,
      "'nowhere_to_be_found'; tests.train.custom.my_broken_lab needs it",
    ):
      small.loss_config(**surrogate("f", where=where))


class TrialTest(parameterized.TestCase):
  """Results of custom functions are checked before a run begins."""

  @parameterized.named_parameters(
    ("shape", "one_number", r"of shape \(\) where \(6, 8\) is expected"),
    ("tuple", "two_results", "returned tuple, no array.*loss of each token"),
    ("none", "nothing_back", "returned NoneType"),
    ("nan", "not_a_number", "a value that is NaN"),
    ("slope", "bad_slope", "a gradient that is NaN"),
    ("constant", "no_slope", "nothing would be learned"),
    ("cut", "quantile_of_the_cut", "depend on train.micro_batch: .*token_wei"),
  )
  def test_refuses_a_surrogate(self, name, message):
    config = small.loss_config(**surrogate(name))
    with self.assertRaisesRegex(ConfigError, message):
      try_loss(config)

  def test_refuses_an_objective(self):
    config = small.loss_config(**surrogate("nothing_back"))
    with self.assertRaisesRegex(ConfigError, "returned NoneType"):
      policy_objective(Policy(small.MODEL, COMPUTE), config, temperature=0.9)

  @parameterized.named_parameters(
    ("padding", {"token_weight": "weight_of_padding"}, "rows of padding"),
    ("rows", {"token_weight": "weight_of_rows"}, r"shape \(6,\)"),
    ("adds", {"reduction": "mean_of_means"}, "must add up to those of the wh"),
    ("empty", {"reduction": "divides"}, "a row without trained tokens"),
    ("number", {"reduction": "plain_mean"}, "agentrl_jax.losses.Mean of two"),
    ("text", {"reduction": "a_text"}, "returned str; .*losses.Mean of two"),
    ("by_row", {"reduction": "mean_by_row"}, r"total has the shape \(6,\)"),
    ("kl", {"kl_estimator": "one_line"}, "no function 'one_line'"),
  )
  def test_refuses_of_the_loss(self, changes, message):
    changes = {key: f"{LAB}:{name}" for key, name in changes.items()}
    with self.assertRaisesRegex(ConfigError, message):
      try_loss(small.loss_config(**changes))

  @parameterized.named_parameters(
    ("keep", {"keep": "scores"}, "numbers of type float64.*bool"),
    ("shape", {"estimator": "first_only"}, r"of shape \(1,\) where \(8,\)"),
    ("groups", {"keep": "first_only"}, r"of shape \(1,\) where \(8,\)"),
    ("critic", {"estimator": "of_values"}, "returned ArrayImpl.*target of"),
  )
  def test_refuses_of_the_advantage(self, changes, message):
    changes = {key: f"{LAB}:{name}" for key, name in changes.items()}
    config = small.advantage_config(**changes)
    with self.assertRaisesRegex(ConfigError, message):
      try_advantage(config)

  @pytest.mark.slow
  def test_takes_what_the_package_itself_has(self):
    for name, settings in (
      ("reinforce", {}),
      ("clipped_surrogate", CLIP | {"dual_clip": 3.0}),
      ("cispo", CLIP),
      ("sapo", {}),
      ("gmpo", {}),
    ):
      try_loss(small.loss_config(**surrogate(name, OURS, **settings)))


class LossTest(parameterized.TestCase):
  """A function of the package does the same named as one outside it."""

  def setUp(self):
    super().setUp()
    micro_batch, self.logprob, self.entropy, other = small.off_policy_batch()
    self.micro_batch = dataclasses.replace(micro_batch, reference_logprob=other)

  def _gradient(self, changes):
    config = small.loss_config(kl_coefficient=0.1, **changes)

    def value(logprob, entropy):
      return batch_loss(config, self.micro_batch, logprob, entropy)[0].value()

    return jax.value_and_grad(value, argnums=(0, 1))(self.logprob, self.entropy)

  @parameterized.named_parameters(
    (
      "clipped",
      surrogate("clipped_surrogate", OURS, **CLIP, dual_clip=3.0),
      {},
    ),
    (
      "cispo",
      surrogate("cispo", OURS, **CLIP),
      {"surrogate": "cispo", "dual_clip": 0.0},
    ),
    (
      "gmpo",
      surrogate("gmpo", OURS, **CLIP),
      {"surrogate": "gmpo", "dual_clip": 0.0},
    ),
    (
      "entropy",
      surrogate("with_entropy", bonus=0.3),
      {"surrogate": "reinforce", "dual_clip": 0.0, "entropy_coefficient": 0.3},
    ),
    ("k2", {"kl_estimator": f"{OURS}:k2"}, {"kl_estimator": "k2"}),
    (
      "unbiased",
      {"kl_estimator": f"{OURS}:unbiased_kl"},
      {"kl_estimator": "unbiased"},
    ),
    (
      "segments",
      {"reduction": f"{OURS}:segment_mean"},
      {"reduction": "sequence_mean"},
    ),
    (
      "length",
      {
        "reduction": f"{OURS}:fixed_length_mean",
        "reduction_settings": {"length": 9},
      },
      {"reduction": "fixed_length_mean", "reduction_settings": {"length": 9}},
    ),
  )
  @pytest.mark.slow
  def test_is_that_of_the_name(self, outside, inside):
    found, wanted = self._gradient(outside), self._gradient(inside)
    chex.assert_trees_all_close(found, wanted, rtol=1e-7, atol=1e-6)

  def test_custom_surrogate_that_returns_nan_is_named(self):
    config = small.loss_config(**surrogate("not_a_number"))
    _, metrics = jax.jit(functools.partial(batch_loss, config))(
      self.micro_batch, self.logprob, self.entropy
    )
    self.assertTrue(np.isnan(float(metrics["loss/not_a_number"].value())))


class EntropyTest(absltest.TestCase):
  @pytest.mark.slow
  def test_an_entropy_that_is_read_has_its_gradient(self):
    policy = Policy(small.MODEL, COMPUTE)
    params = policy.init(jax.random.key(0))
    (micro_batch,) = small.make_batches(24)

    def slope(changes):
      objective = policy_objective(
        policy, small.loss_config(**changes), temperature=0.9
      )
      return jax.jit(jax.grad(lambda p: objective(p, micro_batch)[0].value()))(
        params
      )

    plain = {"surrogate": "reinforce", "dual_clip": 0.0}
    found = slope(surrogate("with_entropy", bonus=0.3))
    wanted = slope(plain | {"entropy_coefficient": 0.3})
    without = slope(plain)
    chex.assert_trees_all_close(found, wanted, rtol=1e-7, atol=1e-6)
    gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), found, without)
    self.assertGreater(max(jax.tree.leaves(gaps)), 1e-3)


class AdvantageTest(parameterized.TestCase):
  def _advantages(self, **changes):
    groups = small.make_groups()
    config = small.advantage_config(
      task_center=False, task_scale=False, **changes
    )
    attempts = advantages.make_arrays(groups, small.TASK_IDS, config)
    value_NU, *_ = advantages.advantages(attempts, num_tasks=2, config=config)
    return np.asarray(value_NU), attempts

  @parameterized.named_parameters(
    (
      "rloo",
      {"estimator": f"{OURS}:leave_one_out_advantage"},
      {"estimator": "rloo"},
    ),
    (
      "gigpo",
      {
        "estimator": f"{OURS}:gigpo_advantage",
        "estimator_settings": {"discount": 0.5, "step_weight": 2.0},
      },
      {
        "estimator": "gigpo",
        "discount": 0.5,
        "estimator_settings": {"step_weight": 2.0},
      },
    ),
    (
      "top_share",
      {"keep": f"{OURS}:keep_top_groups", "keep_settings": {"share": 0.5}},
      {"keep": "top_share", "keep_settings": {"share": 0.5}},
    ),
  )
  def test_is_that_of_the_name(self, outside, inside):
    np.testing.assert_allclose(
      self._advantages(**outside)[0], self._advantages(**inside)[0], atol=1e-6
    )

  def test_an_estimator_of_turns(self):
    found, attempts = self._advantages(estimator=f"{LAB}:by_turn")
    np.testing.assert_allclose(
      found,
      np.where(attempts.exists_NU, attempts.turn_reward_NU - 0.1, 0),
      atol=1e-6,
    )

  def test_a_setting_counts(self):
    one, two = (
      self._advantages(
        estimator=f"{LAB}:by_group", estimator_settings={"power": power}
      )[0]
      for power in (1.0, 2.0)
    )
    np.testing.assert_allclose(np.abs(two), one**2, atol=1e-5)

  def test_custom_result_of_nan_is_refused_by_name(self):
    config = small.advantage_config(
      estimator=f"{LAB}:by_group", estimator_settings={"power": 0.5}
    )
    with self.assertRaisesRegex(NotFinite, "my_lab:by_group' gave 1 traj"):
      advantages.require_finite(np.array([[0.0], [np.nan]]), config)

  @pytest.mark.slow
  def test_a_critic_of_one_s_own(self):
    model = dataclasses.replace(small.MODEL, value_head=True)
    params = small.params_of(model)
    found = []
    for changes in (
      {"estimator": "gae", "gae_lambda": 0.9, "discount": 0.8},
      {
        "estimator": f"{OURS}:gae",
        "estimator_settings": {"gae_lambda": 0.9, "discount": 0.8},
      },
    ):
      builder = small.make_batch_builder(
        model=model,
        loss=small.loss_config(value_coefficient=0.5),
        advantage=small.advantage_config(**changes),
        micro_batch=24,
      )
      (micro_batch,), _ = builder.build(small.make_groups(), params)
      found.append((micro_batch.advantage, micro_batch.value_target))
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


class BatchTest(parameterized.TestCase):
  """Custom functions in `BatchBuilder` and `Learner`."""

  def _updated(self, micro_batch, **changes):
    loss = small.loss_config(**changes)
    builder = small.make_batch_builder(loss=loss, micro_batch=micro_batch)
    _, learner = small.make_learner(loss=loss, **small.PLAIN_STEPS)
    params = small.params_of()
    batches, report = builder.build(small.make_groups(), params)
    state, metrics = learner.update(learner.init(params), batches)
    return batches, report, state.params, metrics

  @pytest.mark.slow
  def test_a_quantile_over_tokens_does_not_depend_on_the_cut(self):
    changes = {
      "token_weight": f"{LAB}:forking_tokens",
      "token_weight_settings": {"share": 0.2},
    }
    (whole,), _, wanted, of_whole = self._updated(24, **changes)
    mask = whole.batch.mask
    share = whole.token_weight[mask].mean()
    self.assertAlmostEqual(share, 0.2, delta=0.02)
    batches, _, found, of_parts = self._updated(1, **changes)
    self.assertGreater(len(batches), 5)
    # Some micro-batches have many of the batch's chosen tokens, others few.
    shares = [x.token_weight[x.batch.mask].mean() for x in batches[:6]]
    self.assertGreater(np.ptp(shares), 0.05)
    chex.assert_trees_all_close(found, wanted, rtol=1e-7, atol=1e-6)
    for name in ("loss", "gradient_norm", "policy/token_weight"):
      self.assertAlmostEqual(of_parts[name], of_whole[name], places=5)
    self.assertAlmostEqual(of_whole["policy/token_weight"], share, places=5)

  @parameterized.parameters(1, 24)
  def test_token_weight_reads_trajectory_numbers(self, micro_batch):
    """Over all lines of an episode, which are in several rows."""
    members = [make_several_lines(g, num_lines=3) for g in small.make_groups()]
    builder = small.make_batch_builder(
      loss=small.loss_config(token_weight=f"{LAB}:one_for_each_trajectory"),
      micro_batch=micro_batch,
    )
    batches, _ = builder.build(members, params=None)
    total_N = collections.defaultdict(float)
    rows_N = collections.defaultdict(set)
    for n, x in enumerate(batches):
      for r, t in np.argwhere(x.batch.mask):
        number = int(x.batch.trajectory[r, t])
        total_N[number] += float(x.token_weight[r, t])
        rows_N[number].add((n, r))
    self.assertLen(total_N, sum(len(g.trajectories) for g in members))
    np.testing.assert_allclose([*total_N.values()], 1, rtol=1e-5)
    self.assertGreater(max(map(len, rows_N.values())), 1)

  @pytest.mark.slow
  def test_unit_of_a_reduction_does_not_matter(self):
    """In thousands of tokens: the weight of a batch may be below 1."""
    of_tokens, of_thousands = (
      self._updated(24, reduction=f"{LAB}:token_mean_in", reduction_settings=x)
      for x in ({"unit": 1.0}, {"unit": 1000.0})
    )
    chex.assert_trees_all_close(
      of_tokens[2], of_thousands[2], rtol=1e-7, atol=1e-6
    )
