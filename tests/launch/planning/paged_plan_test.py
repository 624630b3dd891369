"""Plans of a cache of pages: programs that leave it in place, and its room."""

import dataclasses
import unittest

import jax
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.model import sharding
from launch.planning import chips
from launch.planning.chips import parse_slice
from launch.planning.programs import answers_at_once
from launch.planning.residents import rollout_residents
from launch.planning.roofline import Attempts
from launch.planning.study import Deployment, Planner
from tests.launch.planning.models import pod_settings
from tests.settings import engine_config

PAGES = dict(slots=(128, 40), cache_tokens=(48 * 8192, 16 * 8192))
FULL = dict(slots=(48, 16), cache_tokens=())


def settings_of(name="qwen2.5-14b", layers=2, **changes):
  settings = pod_settings(name)
  return dataclasses.replace(
    settings,
    model=dataclasses.replace(settings.model, num_layers=layers),
    engine=dataclasses.replace(settings.engine, **changes),
  )


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class CompiledTest(parameterized.TestCase):
  @parameterized.parameters("v5e:2x2", "v5p:2x2x1", "v6e:2x2")
  @pytest.mark.slow
  def test_decode_leaves_the_pool_in_place(self, name):
    """Nothing copies it, and nothing but weights and pages is read."""
    settings, slice_ = settings_of(**PAGES), parse_slice(name)
    planner = Planner(Deployment(learner=slice_, rollout=slice_))
    program = planner.programs(settings, ("rollout",))[-1]
    self.assertEqual(program.name, "decode")
    judged = planner.judge(settings, program)
    kept = planner.residents(settings, "rollout")
    cache = kept["cache of policy slot 0"]
    weights = kept["weights of policy slot 0"]
    memory = judged.compiled.memory
    self.assertGreater(memory.aliased, 0.99 * cache)
    self.assertLess(memory.temporaries, 0.4 * cache)
    steps = settings.engine.steps_per_sync
    # Of the embedding, a step looks up some entries: a part of the weights.
    self.assertBetween(
      judged.compiled.moved / (steps * (weights + cache)), 0.5, 1.4
    )

  @pytest.mark.slow
  def test_prefill_leaves_the_pool_in_place(self):
    settings, slice_ = settings_of(**PAGES), parse_slice("v5p:2x2x1")
    planner = Planner(Deployment(learner=slice_, rollout=slice_))
    program = planner.programs(settings, ("rollout",))[0]
    self.assertEqual(program.name, "prefill")
    judged = planner.judge(settings, program)
    cache = planner.residents(settings, "rollout")
    memory = judged.compiled.memory
    self.assertGreater(memory.aliased, 0.99 * cache["cache of policy slot 0"])


def answers(turns, prompt=0, num=1):
  """A running attempt has half of its turns."""
  return Attempts(prompt=prompt, turns=2 * turns, num=num)


class AnswersTest(parameterized.TestCase):
  def test_there_are_pages_for_all_slots(self):
    config = engine_config(slots=(48, 16))
    self.assertEqual(answers_at_once(config, 1, answers(1)), 16)

  @parameterized.parameters((3000, 128), (8192, 48), (8128, 48), (64, 300))
  def test_pages_are_filled(self, mean, number):
    config = engine_config(**PAGES | {"slots": (300, 1)})
    self.assertEqual(answers_at_once(config, 0, answers(mean)), number)
    self.assertEqual(answers_at_once(config, 1, answers(mean)), 1)

  def test_attempts_share_the_full_pages_of_their_prompt(self):
    config = engine_config(**PAGES | {"slots": (999, 1)})
    each = 1024 / 8 + 3000 - 1024 + 64
    self.assertEqual(
      answers_at_once(config, 0, answers(1900, prompt=1100, num=8)),
      int(48 * 8192 / each),
    )


class ResidentsTest(absltest.TestCase):
  def mesh(self):
    return sharding.make_mesh({}, jax.devices()[:1])

  def test_pages_take_the_memory_of_their_tokens(self):
    settings = settings_of("qwen3-0.6b", **PAGES)
    found = rollout_residents(settings, self.mesh(), dtype="bfloat16")
    c = settings.model
    token = 2 * 2 * c.num_layers * c.num_kv_heads * c.head_dim
    for policy_slot, tokens in enumerate(PAGES["cache_tokens"]):
      self.assertEqual(
        found[f"cache of policy slot {policy_slot}"], token * tokens
      )

  def test_what_answers_do_not_fill_is_not_read(self):
    for changes, filled in (
      (PAGES, 128 * 3000 / (48 * 8192)),
      (FULL, 3000 / 8192),
    ):
      settings = settings_of("qwen3-0.6b", **changes)
      slice_ = parse_slice("v5p:2x2x1")
      if not chips.has_compiler():
        self.skipTest("libtpu is not installed")
      planner = Planner(
        Deployment(learner=slice_, rollout=slice_, attempts=answers(3000))
      )
      program = planner.programs(settings, ("rollout",))[-1]
      kept = planner.residents(settings, "rollout")
      steps = settings.engine.steps_per_sync
      self.assertAlmostEqual(
        program.unread / (steps * kept["cache of policy slot 0"]), 1 - filled
      )

  def test_shared_pages_are_read_once_by_each_core(self):
    if not chips.has_compiler():
      self.skipTest("libtpu is not installed")
    slice_ = parse_slice("v5p:2x2x1")
    attempts = answers(1900, prompt=1100, num=8)
    planner = Planner(
      Deployment(learner=slice_, rollout=slice_, attempts=attempts)
    )
    settings = settings_of("qwen3-0.6b", **PAGES)
    program = planner.programs(settings, ("rollout",))[-1]
    kept = planner.residents(settings, "rollout")
    filled = 128 * (3000 - 1024 + 1024 * 2 / 8) / (48 * 8192)
    self.assertAlmostEqual(
      program.unread / (4 * kept["cache of policy slot 0"]), 1 - filled
    )
