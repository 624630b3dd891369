"""Checks of a slice run here, and see what is wrong."""

import json
import os
import pathlib
import tempfile
import time
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from configs import quickstart
from launch import check_slice
from launch.planning import chips
from launch.planning.study import Deployment, Planner
from launch.processes.child import Child
from launch.slice_check import kernels, training
from launch.slice_check.kernels import WrongNumbers
from launch.slice_check.killed_run import CHANGES, killed_run
from tests import programs
from tests.launch import tiny

DEVICES = check_slice.CheckResult(
  name="devices", error="", seconds=1.0, figures={"num": 1}
)


def small_settings():
  config = tiny.get_config()
  config.cross_policy.update(policy_slots=("fresh",), weights=(1.0,))
  config.engine.update(slots=(4,), context=256)
  config.episode.max_tokens = 256
  config.train.row_length = 256
  return training.fitted(config, 1)


class SliceReportTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.report = check_slice.SliceReport(self.folder, {"topology": "v5e-8"})
    self.report.add(DEVICES)

  def outcome(self, function, *arguments, left=60.0):
    with mock.patch.object(
      check_slice, "_function_of", lambda *_: (function, arguments)
    ):
      return check_slice.outcome_of("options", self.report, self.folder, left)

  def test_a_check_that_aborts_or_hangs_is_a_line(self):
    self.report.add(self.outcome(os.abort))
    self.report.add(self.outcome(time.sleep, 60, left=0.5))
    self.report.add(self.outcome(os.getpid, left=-1.0))
    self.report.add(self.outcome(dict, {"a": 1.0}))
    whole = json.loads((self.folder / "report.json").read_text())
    self.assertFalse(whole["passed"])
    errors = [each["error"] for each in whole["checks"]]
    self.assertIn("was ended by SIGABRT", errors[1])
    self.assertIn("did not end in 0.5 s", errors[2])
    self.assertIn("no time was left", errors[3])
    self.assertEqual((errors[0], errors[4]), ("", ""))
    text = (self.folder / "report.txt").read_text()
    self.assertStartsWith(text, "3 of 5 checks failed\n")
    self.assertIn("passed options", text)

  def test_without_devices_nothing_is_begun(self):
    report = check_slice.SliceReport(self.folder, {})
    with mock.patch.object(Child, "call", side_effect=AssertionError):
      outcome = check_slice.outcome_of("kill", report, self.folder, 9.0)
    self.assertIn("there are no devices", outcome.error)


class KernelTest(parameterized.TestCase):
  @parameterized.parameters(1.1, np.nan)
  def test_other_numbers_are_an_error(self, factor):
    x = np.linspace(1, 2, 8, dtype=np.float32)
    kernels.compared({"kernel": jnp.sin, "plain": jnp.sin}, [x])
    with self.assertRaisesRegex(WrongNumbers, "kernel differs by .* plain"):
      kernels.compared(
        {"kernel": lambda x: factor * jnp.sin(x), "plain": jnp.sin}, [x]
      )

  @pytest.mark.slow
  def test_kernels_pass_and_one_with_other_segments_does_not(self):
    kernels.attention(128)
    kernels.cache_attention(256)
    kernels.expert_groups(64)
    attend = kernels.packed.splash.attend
    with (
      mock.patch.object(
        kernels.packed.splash,
        "attend",
        lambda q, k, v, end, *a, **kw: attend(
          q, k, v, jnp.full_like(end, end.shape[1]), *a, **kw
        ),
      ),
      self.assertRaisesRegex(WrongNumbers, "splash differs"),
    ):
      kernels.attention(128)
    ragged = kernels.cached.ragged.attend
    with (
      mock.patch.object(
        kernels.cached.ragged,
        "attend",
        lambda *a, window, **kw: ragged(*a, window=2 * window, **kw),
      ),
      self.assertRaisesRegex(WrongNumbers, "ragged differs"),
    ):
      kernels.cache_attention(256)


@pytest.mark.slow
class TrainingTest(absltest.TestCase):
  def test_an_update_faster_than_its_bound_is_an_error(self):
    settings = small_settings()
    figures = training.updates(settings, {})
    self.assertEqual(figures["version"], 6)
    program = {"bound_ms": 1e6, "program_gib": 1.0, "received_gib": 1.0}
    with self.assertRaisesRegex(WrongNumbers, "less than the plan's bound"):
      training.updates(settings, {"gradient": program, "apply": program})

  def test_weights_that_do_not_arrive_are_an_error(self):
    settings = small_settings()
    self.assertLess(training.swap(settings, {})["drift_nats"], 1e-4)
    publish = training.Publisher.publish
    first = []

    def publish_the_first(publisher, params, version):
      first.append(params)
      publish(publisher, first[0], version)

    with (
      mock.patch.object(training.Publisher, "publish", publish_the_first),
      self.assertRaisesRegex(WrongNumbers, "not by the new weights"),
    ):
      training.swap(settings, {})

  def test_the_default_config_can_be_read(self):
    settings = training.fitted(training.small_config(), 8)
    self.assertEqual(
      (settings.mesh["fsdp"], settings.batch.micro_batch), (8, 8)
    )

  def test_the_killed_run_can_be_traced_for_a_tpu(self):
    """Kernels for TPUs refuse rows that plain XLA takes."""
    if not chips.has_compiler():
      self.skipTest("libtpu is not installed")
    config = quickstart.get_config()
    config.update_from_flattened_dict(CHANGES)
    settings = training.fitted(config, 8)
    planner = Planner(Deployment(learner=chips.parse_slice("v5e-8")))
    for program in planner.programs(settings, ("learner", "rollout")):
      program.trace()

  @pytest.mark.timeout(900)
  def test_a_killed_run_goes_on(self):
    with tempfile.TemporaryDirectory() as folder:
      figures = killed_run(pathlib.Path(folder), 1, 800.0)
    self.assertGreaterEqual(figures["killed_after_update"], 2)

  def test_a_wrong_name_of_a_check_is_refused(self):
    done = programs.run("launch.check_slice", "--checks=speed", deadline_s=120)
    self.assertEqual(done.returncode, 2)
    self.assertIn("are some of devices, options", done.stderr)


if __name__ == "__main__":
  absltest.main()
