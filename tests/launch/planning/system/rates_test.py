"""Rates of both sides: limits of the formulas, and sums by hand."""

import dataclasses

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from launch.planning.chips import parse_slice
from launch.planning.compiled import Compiled, Memory
from launch.planning.roofline import Attempts, Flops, Roofline, num_params
from launch.planning.study import Judgement
from launch.planning.system import rates
from launch.planning.system.rates import RolloutRate
from launch.planning.system.workload import Workload
from tests.launch.planning.models import pod_settings

WORKLOAD = Workload(
  attempts=Attempts(prompt=1024, turns=896, num=8),
  num_answers=4,
  answer_tokens=100,
  environment_s=2.0,
  spread=0.5,
  group_size=8,
)
LEARNER, SERVER = parse_slice("v5p-64"), parse_slice("v5p-8")


def _rate(**changes) -> RolloutRate:
  fields = {
    "num_servers": 1,
    "slots": 10,
    "answer_s": 3.0,
    "prefill_s": 0.2,
    "environment_s": 2.0,
    "num_answers": 4,
  }
  return RolloutRate(**fields | changes)


class RolloutRateTest(parameterized.TestCase):
  @parameterized.product(
    num_episodes=(0.5, 1, 3, 7, 12, 15, 100),
    prefill_s=(0.0, 0.01, 0.2, 5.0),
    environment_s=(0.0, 2.0, 50.0),
    answer_s=(1e-3, 3.0),
  )
  def test_littles_law(self, num_episodes, prefill_s, environment_s, answer_s):
    rate = _rate(
      answer_s=answer_s, prefill_s=prefill_s, environment_s=environment_s
    )
    busy = rate.busy_slots(num_episodes)
    self.assertGreaterEqual(busy, 0)
    self.assertLessEqual(busy, 10)
    answers_per_s = rate.answers_per_s(num_episodes)
    in_slot_s = answer_s + busy * prefill_s
    self.assertAlmostEqual(answers_per_s * in_slot_s, busy)
    outside = answers_per_s * environment_s
    if busy < 10:  # no episode waits for a slot
      self.assertAlmostEqual(busy + outside, num_episodes, places=6)
    else:
      self.assertLessEqual(busy + outside, num_episodes + 1e-6)

  def test_one_episode_takes_its_answers_and_its_environment(self):
    rate = _rate(prefill_s=0.0)
    self.assertAlmostEqual(rate.episodes_per_s(1), 1 / (4 * (3 + 2)))

  def test_a_full_server_is_as_fast_as_its_engine(self):
    rate = _rate()
    self.assertAlmostEqual(rate.most_answers_per_s, 10 / (3 + 10 * 0.2))
    self.assertAlmostEqual(rate.answers_per_s(1e6), rate.most_answers_per_s)

  def test_prefill_alone_is_a_queue_of_one(self):
    rate = _rate(answer_s=1e-9, environment_s=0.0)
    self.assertAlmostEqual(rate.answers_per_s(7), 1 / 0.2, places=6)

  @parameterized.parameters(1, 10, 1000)
  def test_twice_the_servers_do_twice_the_episodes(self, num_episodes):
    one, two = _rate(), _rate(num_servers=2)
    self.assertAlmostEqual(
      two.answers_per_s(2 * num_episodes), 2 * one.answers_per_s(num_episodes)
    )
    self.assertAlmostEqual(
      two.busy_slots(2 * num_episodes), 2 * one.busy_slots(num_episodes)
    )


def _judgement(name, seconds, *, slice_=SERVER, tokens=0, flops=(1.0, 1.0)):
  memory = Memory(arguments=0, outputs=0, aliased=0, temporaries=0, code=0)
  return Judgement(
    name=name,
    slice_=slice_,
    compiled=Compiled(memory=memory, wanted=0),
    beside={},
    tokens=tokens,
    flops=Flops(*flops),
    roofline=Roofline(
      compute_s=0.0, memory_s=seconds, links_s=0.0, waiting_s=0.0, network_s=0.0
    ),
  )


JUDGED = {
  "gradient": _judgement("gradient", 2.0, slice_=LEARNER, flops=(3.0, 4.0)),
  "apply": _judgement("apply", 0.5, slice_=LEARNER),
  "prefill": _judgement("prefill", 0.25, tokens=1000),
  "decode": _judgement("decode", 0.08),
}


def _settings(**sections):
  settings = pod_settings()
  for name, changes in sections.items():
    section = dataclasses.replace(getattr(settings, name), **changes)
    settings = dataclasses.replace(settings, **{name: section})
  return settings


def _learner(settings, utilisation=1.0):
  return rates.learner_rate(
    settings, WORKLOAD, JUDGED, utilisation=utilisation, server=SERVER
  )


def _rollouts(settings, utilisation=1.0, num_servers=3):
  return rates.rollout_rate(
    settings, WORKLOAD, JUDGED, utilisation=utilisation, num_servers=num_servers
  )


class BoundsTest(parameterized.TestCase):
  def test_a_step_of_the_learner(self):
    # A group of 1024 + 8 * 896 = 8192 tokens fills a row: 256 rows, 32 at once.
    rate = _learner(_settings(loss={"kl_coefficient": 0.0}))
    self.assertEqual(rate.parts_s["gradients"], 8 * 2.0)
    self.assertEqual(rate.parts_s["log-probabilities"], 0)
    self.assertEqual(rate.parts_s["apply"], 0.5)
    self.assertEqual(rate.parts_s["publication"], 0)
    self.assertAlmostEqual(rate.step_s, 16.5)
    self.assertEqual(rate.tokens, 256 * 8 * 1920)

  def test_the_reference_is_one_more_forward_pass(self):
    rate = _learner(_settings())  # needed over executed 3 / 4, of three passes
    self.assertAlmostEqual(rate.parts_s["log-probabilities"], 16 * 0.75 / 3)
    both = _learner(_settings(loss={"proximal": "recomputed"}))
    self.assertAlmostEqual(both.parts_s["log-probabilities"], 16 * 0.75 / 3 * 2)

  def test_each_update_of_a_batch_is_applied(self):
    many = _settings(
      admission={"versions_per_step": 4}, loss={"kl_coefficient": 0.0}
    )
    self.assertAlmostEqual(_learner(many).step_s, 16 + 4 * 0.5)

  def test_half_the_utilisation_takes_twice_as_long(self):
    settings = _settings()
    self.assertAlmostEqual(
      _learner(settings, 0.5).step_s, 2 * _learner(settings).step_s
    )
    full, half = _rollouts(settings), _rollouts(settings, 0.5)
    self.assertAlmostEqual(half.answer_s, 2 * full.answer_s)
    self.assertAlmostEqual(half.prefill_s, 2 * full.prefill_s)
    self.assertEqual(half.environment_s, full.environment_s)

  def test_weights_arrive_late(self):
    settings = _settings()
    size = 2 * num_params(settings.model)  # bfloat16
    # Eight hosts write, one reads; a server looks every half second.
    expected_s = size / (8 * 2.5e10) + 0.25 + size / 2.5e10
    self.assertAlmostEqual(_learner(settings).lag_s, expected_s)

  def test_a_publication_waits_for_the_one_before(self):
    judged = {**JUDGED, "gradient": _judgement("gradient", 1e-6)}
    judged["apply"] = _judgement("apply", 0.0)
    settings = _settings(loss={"kl_coefficient": 0.0})
    rate = rates.learner_rate(
      settings, WORKLOAD, judged, utilisation=1.0, server=SERVER
    )
    write_s = 2 * num_params(settings.model) / 2.5e10  # of one host
    self.assertAlmostEqual(rate.step_s, write_s)

  def test_an_answer_of_one_policy_slot(self):
    settings = _settings(
      engine={"slots": (48,), "cache_tokens": (48 * 8192,)},
      cross_policy={"weights": (1.0,)},
    )
    rate = _rollouts(settings)
    self.assertEqual(rate.slots, 48)
    self.assertAlmostEqual(rate.answer_s, 100 * 0.08 / 4)
    # 1024 / 8 of the prompt and 896 - 400 of replies, over four answers.
    self.assertAlmostEqual(rate.prefill_s, (128 + 496) / 4 * 0.25e-3)

  def test_policy_slots_take_turns_by_their_bytes(self):
    settings = _settings(engine={"slots": (48, 16)})
    weights_s = 4 * 2 * num_params(settings.model) / 4 / 2.8e12
    cache_s = 0.08 - weights_s
    round_s = 0.08 + weights_s + cache_s / 3
    self.assertGreater(cache_s, 0)
    self.assertAlmostEqual(_rollouts(settings).answer_s, 25 * round_s)
    apart = _settings(engine={"slots": (48, 16), "slices": (2, 2)})
    self.assertAlmostEqual(_rollouts(apart).answer_s, 25 * 0.08)

  @parameterized.parameters(
    ((48, 16), (0.75, 0.25), 64),
    ((48, 16), (0.5, 0.5), 32),  # the second is full first
    ((48, 16), (1.0, 0.0), 48),
  )
  def test_slots_that_answers_can_fill(self, slots, weights, expected):
    settings = _settings(
      engine={"slots": slots}, cross_policy={"weights": weights}
    )
    self.assertEqual(rates.usable_slots(settings), expected)

  def test_without_reuse_answers_prefill_all_before_them(self):
    settings = _settings(engine={"reuse": False})
    tokens = (4 * 1024 + 3 * 896 / 2) / 4
    self.assertAlmostEqual(_rollouts(settings).prefill_s, tokens * 0.25e-3)

  def test_a_program_that_does_not_fit_has_no_rate(self):
    judged = dataclasses.replace(JUDGED["decode"], roofline=None)
    with self.assertRaisesRegex(ConfigError, "decode does not fit v5p:2x2x1"):
      rates.bound_s(judged)
