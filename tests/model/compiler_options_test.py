"""Options of the compiler: what a setting may say, and who refuses what."""

import jax
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.compiler_options import compiler_options, parse
from agentrl_jax.train.learner import check_known
from launch.config.settings import read_settings
from launch.planning import chips
from launch.planning.study import Deployment, Planner
from tests.launch import tiny
from tests.settings import compute_config

GATHER = "xla_tpu_prefer_async_allgather_to_allreduce"
OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload_all_gather"
LEAST_SUM = "xla_tpu_sparse_core_all_reduce_offload_min_size_in_bytes"


class SettingTest(parameterized.TestCase):
  @parameterized.parameters(
    ("auto", {}),
    ("none", {}),
    (
      "none, xla_a=true,xla_b=3,xla_c=0.5,xla_d=high",
      {"xla_a": True, "xla_b": 3, "xla_c": 0.5, "xla_d": "high"},
    ),
  )
  def test_options_follow_the_first_word(self, setting, options):
    self.assertEqual(parse(setting)[1], options)

  @parameterized.parameters(
    "",
    "fast",
    "xla_a=true",
    "auto,xla_a",
    "auto,xla_a=",
    "auto,a=true",
    "auto,--xla_a=true",
    "auto;xla_a=true",
  )
  def test_anything_else_is_refused(self, setting):
    with self.assertRaisesRegex(ConfigError, "compute.compiler_options="):
      compute_config(compiler_options=setting)


class CompilerTest(parameterized.TestCase):
  def test_other_chips_than_tpus_get_none(self):
    mesh = sharding.make_mesh({"fsdp": jax.device_count()})
    found = [compiler_options("auto", where) for where in (mesh, None)]
    self.assertEqual(found, [None, None])

  def test_an_option_that_the_compiler_does_not_know_is_named(self):
    mesh = sharding.make_mesh({"fsdp": jax.device_count()})
    options = compiler_options("auto,xla_of_no_kind=true", mesh)
    for where in (mesh, None):
      with self.assertRaisesRegex(ConfigError, "xla_of_no_kind.*options=none"):
        check_known(options, where)
    check_known(compiler_options("none", mesh), mesh)

  @parameterized.parameters(
    ("v5e:2x4", {GATHER}, {OFFLOAD}),
    ("v5p:2x2x2", {GATHER, OFFLOAD}, ()),
    ("v6e:2x4", {GATHER, OFFLOAD}, {LEAST_SUM}),
    ("tpu7x:2x2x1", {GATHER, OFFLOAD, LEAST_SUM}, ()),
  )
  def test_each_generation_has_options_that_its_compiler_knows(
    self, name, present, absent
  ):
    if not chips.has_compiler():
      self.skipTest("libtpu is not installed")
    devices = chips.describe(chips.parse_slice(name))
    mesh = sharding.make_mesh({"fsdp": len(devices)}, devices)
    options = compiler_options("auto", mesh)
    self.assertLessEqual(set(present), options.keys())
    self.assertNoCommonElements(absent, options)
    check_known(options, mesh)
    # Sums on the SparseCore of tpu7x end the compiler, whatever is set.
    self.assertCountEqual(
      compiler_options("none", mesh) or {}, {LEAST_SUM} & set(present)
    )
    with self.assertRaisesRegex(ConfigError, "xla_tpu_of_no_kind"):
      check_known(options | {"xla_tpu_of_no_kind": True}, mesh)

  @parameterized.parameters("auto", "none")
  @pytest.mark.slow
  def test_a_gradient_for_tpu7x_compiles(self, setting):
    """The compiler is in a child, which its defaults abort."""
    if not chips.has_compiler():
      self.skipTest("libtpu is not installed")
    config = tiny.get_config()
    config.compute.update(compiler_options=setting, scan_layers=True)
    config.model.update(width=256, mlp_width=512, head_dim=64)
    config.mesh.fsdp = 8
    config.train.update(micro_batch=8, row_length=384)
    slice_ = chips.parse_slice("tpu7x:2x2x1")
    planner = Planner(Deployment(learner=slice_, is_quick=True))
    gradient, apply = planner.study(read_settings(config), ("learner",))
    self.assertEqual((gradient.failure, apply.failure), ("", ""))
    self.assertTrue(gradient.fits)

  def test_one_chip_gets_none(self):
    if not chips.has_compiler():
      self.skipTest("libtpu is not installed")
    first = chips.describe(chips.parse_slice("v6e:2x4"))[:1]
    self.assertIsNone(compiler_options("auto", sharding.make_mesh({}, first)))
