"""Programs that are compiled with the least effort, or kill the compiler."""

import dataclasses
import os
import sys
import time
import unittest
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest
from jax.sharding import NamedSharding, PartitionSpec

from agentrl_jax.model import sharding
from configs import pod
from launch.config.settings import read_settings
from launch.planning import chips, study
from launch.planning.advice import refusal
from launch.planning.compiler.compiled import Compiled, compile_program


class Listening:
  """A traced program that tells with which options it is compiled."""

  def __init__(self, traced):
    self.traced, self.options = traced, []

  def lower(self, **platforms):
    self.lowered = self.traced.lower(**platforms)
    return self

  def compile(self, compiler_options):
    self.options.append(compiler_options)
    return self.lowered.compile(compiler_options=compiler_options)


def abort(*_):
  """Stands in for the compiler, in its process."""
  sys.stderr.write("F1126 18:07:18.2 1068 ring.cc:316] Check failed: n < 1\n")
  sys.stderr.flush()
  os.abort()


def tire(deployment, *_):
  """As `abort`, if it makes the least effort."""
  if deployment.is_quick:
    abort()
  return Compiled(memory=None, wanted=7)


def hang(*_):
  """As `abort`, and does not end in time."""
  time.sleep(100)


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class DeathTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    config = pod.get_config("qwen3-1.7b")
    config.mesh.fsdp = 4
    self.settings = read_settings(config)
    self.slice = chips.parse_slice("v5p:2x2x1")
    self.planner = study.Planner(study.Deployment(learner=self.slice))

  def judge(self):
    programs = self.planner.programs(self.settings, ("learner",))
    return self.planner.judge(self.settings, programs[0])

  def test_death_of_the_compiler_is_a_sentence(self):
    with mock.patch.object(study, "compile_by_name", abort):
      judged = self.judge()
    self.assertEqual((judged.fits, judged.roofline), (False, None))
    self.assertStartsWith(
      refusal([judged], []),
      "the compiler's process died of gradient for v5p:2x2x1: it was ended by "
      "SIGABRT: Check failed: n < 1 (ring.cc:316); try another mesh",
    )

  def test_what_the_least_effort_kills_is_compiled_with_full_effort(self):
    self.planner = study.Planner(
      dataclasses.replace(self.planner.deployment, is_quick=True)
    )
    with mock.patch.object(study, "compile_by_name", tire):
      compiled = self.judge().compiled
    self.assertEqual((compiled.wanted, compiled.failure), (7, ""))

  def test_residents_in_the_reserve_are_refused_without_compiling(self):
    kept = {"params": int(0.98 * self.slice.chip.memory)}
    with (
      mock.patch.object(study, "compile_by_name", abort),
      mock.patch.object(self.planner, "residents", lambda *_: kept),
    ):
      judged = self.judge()
    self.assertEqual((judged.fits, judged.failure), (False, ""))
    self.assertEqual(judged.wanted, kept["params"])

  def test_a_compilation_ends_at_its_deadline(self):
    with (
      mock.patch.object(study, "compile_by_name", hang),
      mock.patch.object(study, "_COMPILE_S", 0.1),
    ):
      judged = self.judge()
    self.assertIn("did not end in 0.1 s, and was killed", judged.failure)


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class EffortTest(absltest.TestCase):
  def test_a_quick_program_moves_the_same_bytes(self):
    devices = chips.describe(chips.parse_slice("v6e:2x2"))
    mesh = sharding.make_mesh({"fsdp": 4}, devices)
    rows = jax.ShapeDtypeStruct(
      (512, 512),
      jnp.bfloat16,
      sharding=NamedSharding(mesh, PartitionSpec("fsdp")),
    )
    program = Listening(jax.jit(lambda x, y: x @ y).trace(rows, rows))
    found = [
      compile_program(
        program, unknown_turns=1, num_devices=4, is_quick=is_quick
      )
      for is_quick in (False, True)
    ]
    sizes = [sum(e.total_bytes for e in one.exchanges) for one in found]
    self.assertEqual(sizes, [512 * 512 * 2 * 3 / 4] * 2)
    self.assertEqual(
      program.options, [None, {"exec_time_optimization_effort": -1.0}]
    )
