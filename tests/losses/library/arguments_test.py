"""Tests of `losses.arguments`: settings that functions refuse, and dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from agentrl_jax import losses
from agentrl_jax.losses import (
  agentrl,
  arguments,
  diagnostics,
  kl,
  policy_gradient,
  ratios,
  reductions,
  value,
)
from agentrl_jax.losses.advantages import (
  group_advantages,
  group_filters,
  normalisation,
  pass_at_k,
  returns,
  step_groups,
  turns,
)
from agentrl_jax.losses.logprobs import logits

X, MASK, IDS = jnp.ones((1, 1)), jnp.ones((1, 1), bool), jnp.zeros((1, 1), int)
X_N, IDS_N, VALID_N = jnp.ones(3), jnp.zeros(3, int), jnp.ones(3, bool)
GROUPS = dict(num_groups=1, valid_N=VALID_N)
CLIP = dict(clip_low=0.2, clip_high=0.3)
HIDDEN = (jnp.ones((1, 2, 4)), jnp.ones((4, 5)), jnp.zeros((1, 2), int))
LOSS = dict(advantage_BT=X, mask_BT=MASK, reference_logprob_BT=X)
FRACTIONS = dict(discount=1.0, gae_lambda=1.0)
TASKS = (jnp.ones(2), jnp.zeros(2, int), jnp.ones(2, int), jnp.ones(2, bool))
NOBODY = normalisation.unseen_tasks(1)
SURROGATE = policy_gradient.decoupled_surrogate


def fused(**options):
  return losses.fused_token_logprob(
    *HIDDEN, jnp.ones((1, 2), bool), **dict(chunk_size=1) | options
  )


# Each function once or more: what it says, arguments and settings.
REFUSED = (
  (
    "clip=0 must be positive",
    value.clipped_value_loss,
    (X, X, X, MASK),
    dict(clip=0),
  ),
  ("limit=0 must be positive", kl.k3, (X,), dict(limit=0)),
  (
    "clip_low=2 must be",
    diagnostics.clip_fractions,
    (X, X, MASK),
    dict(clip_low=2, clip_high=1),
  ),
  (
    "length=0 must be posi",
    reductions.fixed_length_mean,
    (X, MASK),
    dict(length=0),
  ),
  (
    "length=-1.0 must be posi",
    reductions.fixed_length_mean,
    (X, MASK),
    dict(length=-1.0),
  ),
  (
    "num_segments=3 without",
    ratios.sequence_log_ratio,
    (X, MASK, None, 3),
    dict(average=True),
  ),
  ("cap=0.0 must be positive", ratios.truncated_weight, (X,), dict(cap=0.0)),
  (
    "low=-1 must be at least 0",
    ratios.masked_weight,
    (X,),
    dict(low=-1, high=2),
  ),
  (
    "high=1 must be above low=2",
    ratios.masked_weight,
    (X,),
    dict(low=2, high=1),
  ),
  (
    "divergence=0 must be positive",
    ratios.stale_failure_weight,
    (X, X),
    dict(divergence=0),
  ),
  (
    "clip_low=0.0 must be above 0 and at most 1",
    SURROGATE,
    (X, X, X),
    CLIP | dict(clip_low=0.0),
  ),
  ("clip_low=1.2", SURROGATE, (X, X, X), CLIP | dict(clip_low=1.2)),
  ("clip_low=nan", SURROGATE, (X, X, X), CLIP | dict(clip_low=float("nan"))),
  (
    "clip_high=-0.1 must be positive",
    SURROGATE,
    (X, X, X),
    CLIP | dict(clip_high=-0.1),
  ),
  (
    "dual_clip=1.0 must be above 1",
    SURROGATE,
    (X, X, X),
    CLIP | dict(dual_clip=1.0),
  ),
  (
    "weight_cap=0.0 must be positive",
    SURROGATE,
    (X, X, X),
    CLIP | dict(weight_cap=0.0),
  ),
  *(
    (f"{name}=0 must be positive", function, given, settings | {name: 0})
    for function, given, settings, names in (
      (policy_gradient.sapo, (X, X), {}, ("tau_positive", "tau_negative")),
      (policy_gradient.cispo, (X, X, X, MASK), CLIP, CLIP),
      (policy_gradient.gmpo, (X, X, MASK), {}, CLIP),
    )
    for name in names
  ),
  *(
    (message, agentrl.agentrl_loss, (X, X), LOSS | changed)
    for message, changed in (
      ("clip_low=0 must be", dict(clip_low=0)),
      ("dual_clip=0.5 must be above 1", dict(dual_clip=0.5)),
      ("kl_coefficient=-1 must be 0 or positive", dict(kl_coefficient=-1)),
      ("reduction='mean' must be 'token' or", dict(reduction="mean")),
      (
        "kl_coefficient=0.0001 must be 0 without reference_logprob_BT",
        dict(reference_logprob_BT=None),
      ),
    )
  ),
  (
    "ddof is 2.*n - 1",
    group_advantages.group_advantage,
    (X_N, IDS_N),
    GROUPS | dict(ddof=2),
  ),
  *(
    (
      "share=25 must be from 0 to 1",
      keep,
      (X_N, IDS_N),
      GROUPS | dict(share=25),
    )
    for keep in (
      group_filters.keep_top_groups,
      group_filters.keep_top_signal,
      group_filters.keep_top_softmax,
    )
  ),
  (
    "threshold=-0.1 must be 0 or",
    group_filters.keep_groups_above,
    (X_N, IDS_N),
    GROUPS | dict(threshold=-0.1),
  ),
  (
    "k=0.*at least 1",
    pass_at_k.pass_at_k_advantage,
    (VALID_N, IDS_N),
    GROUPS | dict(k=0),
  ),
  (
    "k=1.*at least 2",
    pass_at_k.max_at_k_advantage,
    (X_N, IDS_N),
    GROUPS | dict(k=1),
  ),
  (
    'over="rows" must be "tokens"',
    normalisation.task_normalise_weighted,
    TASKS,
    dict(num_tasks=1, over="rows"),
  ),
  (
    "weights are float32.*integers",
    normalisation.measure_tasks,
    (X_N, IDS_N, X_N),
    dict(num_tasks=1),
  ),
  (
    "decay=1.5 must be from 0 to 1",
    normalisation.blend_moments,
    (NOBODY, NOBODY),
    dict(decay=1.5),
  ),
  (
    "discount=2 must be from 0 to 1",
    step_groups.gigpo_advantage,
    (X, IDS, IDS[0]),
    dict(valid_NU=MASK, discount=2, num_groups=1, num_states=1),
  ),
  *(
    ("=95 must be from 0 to 1", function, given, settings | {name: 95})
    for function, given, settings in (
      (returns.gae, (X, X, MASK), FRACTIONS),
      (turns.turn_gae, (X, X, MASK, IDS), FRACTIONS),
      (
        turns.bi_level_gae,
        (X, X, MASK, IDS),
        FRACTIONS | dict(turn_discount=1.0),
      ),
    )
    for name in settings
  ),
  ("chunk_size=0 must be at least 1", fused, (), dict(chunk_size=0)),
  (
    "vocab_chunk_size=-2 must be at least 1",
    fused,
    (),
    dict(vocab_chunk_size=-2),
  ),
  ("temperature=0 must be positive", fused, (), dict(temperature=0)),
  *(
    (
      f"temperature={x} must",
      logits.token_logprob,
      (jnp.ones((1, 1, 5)), IDS, x),
      {},
    )
    for x in (0, 0.0, -1.0, float("nan"))
  ),
)


class SettingsTest(parameterized.TestCase):
  @parameterized.parameters(*REFUSED)
  def test_a_setting_out_of_range_is_named(
    self, message, function, given, settings
  ):
    with self.assertRaisesRegex(ValueError, message):
      function(*given, **settings)

  def test_a_temperature_per_token_is_refused(self):
    with self.assertRaises(AssertionError):
      fused(temperature=jnp.ones((1, 2)))


class RequireTest(parameterized.TestCase):
  @parameterized.parameters(0, 0.0, -1, float("nan"), np.float32(-2))
  def test_names_the_value_and_the_allowed_range(self, value):
    with self.assertRaisesRegex(ValueError, f"beta={value} must be positive"):
      arguments.require_positive("beta", value)

  @parameterized.parameters(1, 1e-9, float("inf"), np.float32(2), None)
  def test_accepts_positive_values(self, value):
    arguments.require_positive("beta", value)

  def test_traced_values_are_not_checked(self):
    @jax.jit
    def traced(beta):
      arguments.require_positive("beta", beta)
      return beta

    self.assertEqual(traced(jnp.float32(-1)), -1)


class WidenTest(parameterized.TestCase):
  @parameterized.parameters(
    jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32, bool
  )
  def test_becomes_float32(self, dtype):
    self.assertEqual(arguments.widen(jnp.ones(2, dtype)).dtype, jnp.float32)

  def test_float64_stays_where_it_is_enabled(self):
    x = np.array([1 / 3])
    with jax.enable_x64(True):
      np.testing.assert_array_equal(arguments.widen(x), x)
    self.assertEqual(arguments.widen(x).dtype, jnp.float32)
