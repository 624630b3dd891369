"""One machine: what is counted, what is refused, and keys that make it fit."""

import dataclasses
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from agentrl_jax.errors import ConfigError
from configs import finetune
from launch.config.settings import read_settings
from launch.planning import machine, roofline
from launch.planning.chips import GIB
from tests import programs
from tests.launch.export_test import write_model

DEADLINE_S = 200


class MachineTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.folder = pathlib.Path(root)
    write_model(cls.folder / "m")

  def _config(self):
    return finetune.get_config(str(self.folder / "m"))

  def _small(self, size: int) -> machine.MachineRates:
    return dataclasses.replace(machine.GPUS["rtx4090"], memory=size)

  def _plan(self, config, device) -> machine.MachinePlan:
    return machine.plan_machine(read_settings(config), device, None, 0.5)

  def test_state_is_counted_and_rates_follow_the_device(self):
    config = self._config()
    slow, fast = (machine.GPUS[name] for name in ("rtx4090", "h100"))
    found, faster = (self._plan(config, each) for each in (slow, fast))
    params = roofline.num_params(read_settings(config).model)
    self.assertBetween(found.parts["params"], 4 * params, 4.5 * params)
    self.assertEqual(found.parts, faster.parts)
    self.assertGreater(found.rates.gradient_s, faster.rates.gradient_s)
    self.assertLess(found.rates.sampled_per_s, faster.rates.sampled_per_s)
    self.assertEqual(machine.refusal(found, None), "")

  def test_what_does_not_fit_is_refused_with_keys_that_make_it_fit(self):
    config = self._config()
    wanted = sum(self._plan(config, machine.GPUS["h100"]).parts.values())
    small = self._small(int(0.7 * wanted))
    found = self._plan(config, small)
    self.assertLess(found.left, 0)
    advice = machine.advise(config, found, 0.5)
    self.assertIn(
      f"it fits with {advice.flags}", machine.refusal(found, advice)
    )
    config.update_from_flattened_dict(advice.keys)
    self.assertGreaterEqual(self._plan(config, small).left, 0)

  def test_what_nothing_makes_fit_is_said(self):
    small = self._small(1000)
    found = self._plan(self._config(), small)
    self.assertIsNone(machine.advise(self._config(), found, 0.5))
    self.assertIn("no setting makes it fit", machine.refusal(found, None))

  def test_a_mesh_is_for_slices(self):
    config = self._config()
    config.mesh.fsdp = 2
    config.train.micro_batch = 2
    with self.assertRaisesRegex(ConfigError, "is for several devices"):
      self._plan(config, machine.GPUS["h100"])

  def test_cpu_is_this_machine(self):
    cpu = machine.machine_of("cpu")
    self.assertIn(f"{len(os.sched_getaffinity(0))} cores", cpu.name)
    self.assertBetween(cpu.memory, GIB // 2, 1 << 50)

  def test_finetune_is_smaller_without_an_accelerator(self):
    found = {}
    for platform in ("cpu", "cuda"):
      with mock.patch.dict(os.environ, {"JAX_PLATFORMS": platform}):
        found[platform] = read_settings(self._config())
    self.assertEqual(found["cpu"].compute.dtype, "float32")
    self.assertEqual(found["cuda"].compute.dtype, "bfloat16")
    self.assertLess(
      found["cpu"].batch.row_length, found["cuda"].batch.row_length
    )

  def test_flags_that_change_nothing_are_refused(self):
    done = programs.run(
      "launch.plan",
      f"--config=configs/finetune.py:{self.folder / 'm'}",
      "--device=h100",
      "--roles=learner",
      deadline_s=DEADLINE_S,
    )
    self.assertEqual(done.returncode, 2)
    self.assertIn("--roles would change nothing: --device", done.stderr)
