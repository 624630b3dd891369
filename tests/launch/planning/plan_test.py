"""Plans of published models, compiled for slices that nobody here has."""

import dataclasses
import json
import os
import subprocess
import tempfile
import unittest

import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.model.hugging_face.presets import PRESETS
from configs import pod
from launch.config.settings import read_settings
from launch.planning import chips, formulas, roofline
from launch.planning.chips import GIB, parse_slice
from launch.planning.study import Deployment, Planner
from tests import programs
from tests.launch.planning.models import pod_settings


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class LearnerTest(parameterized.TestCase):
  # Two minutes of a processor each, whatever the model.
  @parameterized.parameters(
    ("qwen3-1.7b", "v5e:2x4", True),
    ("qwen3-8b", "v5p:4x4x4", True),
    ("qwen2.5-14b", "v6e:8x8", True),
    ("qwen3-8b", "v5e:2x4", False),
    ("qwen3-32b", "v6e:2x4", False),
  )
  @pytest.mark.full
  @pytest.mark.timeout(1800)
  def test_a_learner_fits_where_its_state_does(self, model, slice_name, fits):
    """18 bytes a parameter; rows of 8192 tokens, one for each chip."""
    slice_ = parse_slice(slice_name)
    config = pod.get_config(model)
    config.mesh.update(data=1, fsdp=slice_.num_chips, sequence=1, tensor=1)
    config.train.micro_batch = slice_.num_chips
    settings = read_settings(config)
    planner = Planner(Deployment(learner=slice_, rollout=slice_))
    gradient, apply = planner.study(settings, ("learner",))
    self.assertEqual(gradient.fits and apply.fits, fits)
    if not fits:
      return
    # The sums of gradients are added to where they are.
    share = 4 * roofline.num_params(PRESETS[model]) / slice_.num_chips
    self.assertBetween(gradient.compiled.memory.aliased / share, 1.0, 1.02)
    self.assertGreater(gradient.roofline.compute_s, 0)
    received = sum(gradient.received.values()) / formulas.exchanged(settings)
    self.assertBetween(received, 0.9, 1.1)
    memory = apply.compiled.memory
    self.assertGreater(memory.aliased, 0.99 * memory.outputs)


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class DecodeTest(absltest.TestCase):
  @pytest.mark.slow
  def test_the_cache_stays_where_and_as_it_is(self):
    """No copy of it, in another order or dtype, is among the temporaries."""
    settings = pod_settings("qwen3-1.7b")
    settings = dataclasses.replace(
      settings,
      model=dataclasses.replace(settings.model, num_layers=2),
      engine=dataclasses.replace(
        settings.engine, slots=(48, 16), cache_tokens=()
      ),
    )
    slice_ = parse_slice("v5e:2x2")
    planner = Planner(Deployment(learner=slice_, rollout=slice_))
    program = planner.programs(settings, ("rollout",))[-1]
    self.assertEqual(program.name, "decode")
    memory = planner.judge(settings, program).compiled.memory
    cache = 0.99 * memory.aliased  # and the slots' state
    self.assertGreater(cache, GIB / 10)
    self.assertLess(memory.temporaries, cache)


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class CommandTest(parameterized.TestCase):
  @pytest.mark.slow
  def test_state_that_cannot_fit_is_refused_before_compiling(self):
    cache = self.enterContext(tempfile.TemporaryDirectory())
    done = _plan(
      "--config=configs/pod.py:qwen3-32b",
      "--topology=v5e-8",
      "--rollout_topology=v5e-8",
      "--config.mesh.fsdp=8",
      "--config.train.micro_batch=8",
      "--prompt=1024",
      "--turns=896",
      "--config.group.size=4",
      "--json",
      JAX_COMPILATION_CACHE_DIR=cache,
      JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
      JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )
    self.assertEqual(os.listdir(cache), [])  # none could be read again
    self.assertEqual(done.returncode, 1)
    self.assertIn("decode will not fit v5e:2x4", done.stderr)
    self.assertIn("more than there is", done.stderr)
    self.assertIn("first try --topology=v5e:", done.stderr)
    self.assertIn("--rollout_topology=", done.stderr)
    found = json.loads(done.stdout)
    self.assertFalse(found["programs"]["gradient"]["fits"])
    self.assertEqual(found["programs"]["gradient"]["compile_s"], 0)
    self.assertLess(found["programs"]["gradient"]["left_bytes"], -40 * GIB)
    self.assertLen(found["advice"], 2)
    self.assertIsNone(found["step"])
    load = found["programs"]["gradient"]["load"]
    self.assertAlmostEqual(load["shared"], 3 * 1024 / (4 * 1920))


def _plan(*arguments: str, **env: str) -> subprocess.CompletedProcess:
  return programs.run(
    "launch.plan",
    *arguments,
    env={**os.environ, "COLUMNS": "120", **env},
    deadline_s=240,
  )
