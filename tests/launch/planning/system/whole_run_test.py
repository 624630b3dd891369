"""The plan of a whole run: its flags, its slices, its tables and its JSON."""

import dataclasses
import io
import json
import os
import subprocess
import unittest

import pytest
from absl.testing import absltest, parameterized
from rich.console import Console

from agentrl_jax.errors import ConfigError
from launch.config.settings import read_settings
from launch.planning import chips
from launch.planning.chips import parse_slice
from launch.planning.study import Deployment
from launch.planning.system import report, split
from launch.planning.system.prices import read_prices
from launch.planning.system.split import Split
from launch.planning.system.whole_run import (
  Request,
  plan_whole_run,
  require_slices,
)
from tests import programs
from tests.launch.planning.system import small
from tests.launch.planning.system.rates_test import JUDGED, WORKLOAD

CONFIG = "tests/launch/planning/system/small.py"
V5P = Deployment(
  learner=parse_slice("v5p-64"),
  rollout=parse_slice("v5p-8"),
  attempts=WORKLOAD.attempts,
)


def _settings():
  config = small.get_config()
  config.train.update(row_length=8192, micro_batch=32)
  config.mesh.fsdp = 32
  return read_settings(config)


def _request(**changes) -> Request:
  fields = {
    "workload": WORKLOAD,
    "utilisation": 0.5,
    "num_servers": 2,
    "num_chips": 0,
    "prices": read_prices([]),
  }
  return Request(**fields | changes)


class RequestTest(parameterized.TestCase):
  @parameterized.parameters(
    ({"utilisation": 0}, "--utilisation=0 must be above 0"),
    ({"utilisation": 1.5}, "--utilisation=1.5 must be"),
    ({"utilisation": float("nan")}, "--utilisation=nan must be"),
    ({"num_servers": 0}, "--rollout_slices=0 must be 1 or more"),
  )
  def test_impossible_flags_are_sentences(self, changes, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      _request(**changes)

  def test_both_sides_need_chips_of_their_own(self):
    together = dataclasses.replace(V5P, rollout=None)
    with self.assertRaisesRegex(ConfigError, "needs --rollout_topology"):
      require_slices(together, _request())

  @parameterized.parameters(7, 1, -8)
  def test_too_few_chips_are_refused(self, num_chips):
    with self.assertRaisesRegex(ConfigError, "one v5p:2x2x1 take 8"):
      require_slices(V5P, _request(num_chips=num_chips))

  def test_enough_chips_are_not(self):
    require_slices(V5P, _request(num_chips=8))
    require_slices(V5P, _request(num_chips=0))


class PlanTest(parameterized.TestCase):
  def test_the_bound_stands_beside_the_utilisation(self):
    found = plan_whole_run(_settings(), V5P, list(JUDGED.values()), _request())
    bound, half = found.systems.values()
    self.assertEqual(list(found.systems), ["at the bound", "at 50% of it"])
    self.assertAlmostEqual(half.learner_s, 2 * bound.learner_s)
    self.assertGreater(half.step_s, bound.step_s)
    self.assertEqual(bound.dollars_per_hour, (32 + 2 * 4) * 4.2)
    self.assertIn("v5p:2x4x4 and 2 x v5p:2x2x1", found.slices)

  def test_a_utilisation_of_1_is_the_bound(self):
    found = plan_whole_run(
      _settings(), V5P, list(JUDGED.values()), _request(utilisation=1.0)
    )
    self.assertEqual(list(found.systems), ["at the bound"])

  def test_tables_and_json_have_the_same(self):
    found = plan_whole_run(_settings(), V5P, list(JUDGED.values()), _request())
    console = Console(width=110, record=True, file=io.StringIO())
    report.show(console, found.systems, slices=found.slices, notes=found.notes)
    text = console.export_text()
    values = json.loads(json.dumps(report.as_json(found.systems)))
    for system in values["systems"].values():
      self.assertIn(f"{system['steps_per_hour']:,.1f}", text)
      self.assertIn(f"{100 * system['learner_waits']:.1f}", text)
      self.assertIn(system["limit"], text)
    for part in ("gradients", "log-probabilities", "apply", "publication"):
      self.assertIn(f"s of the learner: {part}", text)


class SplitTest(parameterized.TestCase):
  def test_slices_leave_room_for_a_server(self):
    found = list(split._learners(_settings(), V5P, 40))
    self.assertEqual(
      [slice_.name for slice_, _ in found],
      ["v5p:2x2x1", "v5p:2x2x2", "v5p:2x2x4", "v5p:2x4x4"],
    )
    for slice_, settings in found:
      size = 1
      for shares in settings.mesh.values():
        size *= shares
      self.assertEqual(size, slice_.num_chips)

  def test_the_configs_own_slice_keeps_its_mesh(self):
    settings = _settings()
    found = dict(
      (slice_.name, changed)
      for slice_, changed in split._learners(settings, V5P, 40)
    )
    self.assertIs(found["v5p:2x4x4"], settings)

  def test_a_slice_that_takes_all_chips_is_none(self):
    found = list(split._learners(_settings(), V5P, 35))
    self.assertNotIn("v5p:2x4x4", [slice_.name for slice_, _ in found])

  def test_what_does_not_fit_is_shown_as_such(self):
    one = Split(
      learner=V5P.learner,
      server=V5P.rollout,
      num_servers=2,
      mesh="fsdp=32",
      system=None,
    )
    self.assertEqual(one.num_chips, 40)
    console = Console(width=110, record=True, file=io.StringIO())
    report.show_split(console, [one], 40)
    self.assertIn("does not fit", console.export_text())


class CommandTest(absltest.TestCase):
  @unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
  @pytest.mark.slow
  @pytest.mark.timeout(900)
  def test_programs_are_compiled_predicted_and_split(self):
    done = _plan(
      "--topology=v5e:2x2",
      "--rollout_topology=v5e:2x2",
      "--rollout_slices=2",
      "--prompt=128",
      "--turns=200",
      "--num_answers=4",
      "--answer_tokens=30",
      "--environment_s=0.1",
      "--chips=12",
      "--price=v5e=2",
      "--nolargest",
      "--json",
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    values = json.loads(done.stdout)
    programs_ = values["programs"]
    bound = values["systems"]["at the bound"]
    # 128 attempts of 328 tokens: no two fit a row of 512, of which 8 are one
    # micro-batch.
    gradient_s = programs_["gradient"]["roofline_s"]["step_s"]
    self.assertAlmostEqual(
      bound["learner_parts_s"]["gradients"], 128 / 8 * gradient_s
    )
    self.assertEqual(bound["dollars_per_hour"], 12 * 2.0)
    # Latency alone takes four replies of 0.1 s.
    self.assertGreater(bound["rollouts_s"], 0.4 / 2)
    splits = {one["learner"]: one for one in values["splits"]}
    self.assertEqual(set(splits), {"v5e:1x1", "v5e:2x2", "v5e:2x4"})
    self.assertEqual(splits["v5e:2x2"]["servers"], 2)
    self.assertEqual(splits["v5e:2x4"]["servers"], 1)
    half = values["systems"]["at 50% of it"]
    self.assertEqual(splits["v5e:2x2"]["system"], half)
    self.assertIn("Splits of 12 chips", done.stderr)

  @pytest.mark.slow
  def test_missing_flags_are_named_before_anything_is_compiled(self):
    done = _plan("--topology=v5e:2x2", "--rollout_topology=v5e:2x2")
    self.assertEqual(done.returncode, 2)
    self.assertIn(
      "--system needs --turns, --num_answers, --answer_tokens", done.stderr
    )
    self.assertNotIn("compiling", done.stderr)

  @pytest.mark.slow
  def test_one_role_has_no_whole_run(self):
    done = _plan("--topology=v5e:2x2", "--turns=9", "--roles=learner")
    self.assertEqual(done.returncode, 2)
    self.assertIn("leaves out rollout: leave --roles away", done.stderr)

  @pytest.mark.slow
  def test_flags_that_would_change_nothing_are_refused(self):
    done = _plan("--topology=v5e:2x2", "--chips=8", "--nosystem")
    self.assertEqual(done.returncode, 2)
    self.assertRegex(
      done.stderr, "--chips would change nothing: .* add --system"
    )
    done = _plan("--measured=runs/none", "--price=v5e=1", "--turns=9")
    self.assertEqual(done.returncode, 2)
    self.assertIn("--turns, --price would change nothing", done.stderr)

  @pytest.mark.slow
  def test_a_run_stands_in_for_slices_and_not_beside_them(self):
    for given in ((), ("--topology=v5e:2x2", "--measured=runs/none")):
      done = _plan(*given)
      self.assertEqual(done.returncode, 2)
      self.assertIn(
        "or --measured, the folder of a run; and no two of", done.stderr
      )


def _plan(*arguments: str) -> subprocess.CompletedProcess:
  return programs.run(
    "launch.plan",
    f"--config={CONFIG}",
    "--system",
    *arguments,
    env={**os.environ, "COLUMNS": "120"},
    deadline_s=800,
  )
