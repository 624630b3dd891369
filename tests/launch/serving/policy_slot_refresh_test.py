"""Older policy slots serve what their schedule says, in a run that is
stopped too.
"""

import dataclasses
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.weights.checkpoint import Checkpoints
from agentrl_jax.train.weights.policy_slot_schedule import read_schedules
from agentrl_jax.train.weights.publish import Publisher
from launch.config.checks import refuse_absent, stored_steps
from launch.serving.policy_slot_refresh import PolicySlotRefresher
from tests.settings import COMPUTE
from tests.train import small


class _PolicySlots:
  """A `WeightSink` that remembers what each policy slot serves."""

  def __init__(self):
    self.steps, self.params, self.num_published = {}, {}, 0

  def publish(self, params, version, *, policy_slot=0):
    self.steps[policy_slot], self.params[policy_slot] = version, params
    self.num_published += 1


class PolicySlotServingTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.policy, cls.learner = small.make_learner()
    cls.first = cls.learner.init(cls.policy.init(jax.random.key(0)))

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)

  def _state(self, version):
    """Each version's weights tell which it is."""
    params = self.first.params | {
      "embedding": jnp.full_like(self.first.params["embedding"], version)
    }
    return dataclasses.replace(
      self.first, params=params, version=jnp.asarray(version, jnp.int32)
    )

  def _open(self, name="rl"):
    checkpoints = Checkpoints(self.folder / name, keep=2)
    self.addCleanup(checkpoints.close)
    return checkpoints

  def _serving(self, *lines):
    policy_slots = _PolicySlots()
    serving = PolicySlotRefresher(
      read_schedules(("fresh", *lines)),
      Publisher(Policy(small.MODEL, COMPUTE), policy_slots),
      self.learner.abstract_state(),
      lambda params: params,
      stride=1,
    )
    return serving, policy_slots

  def _run(self, checkpoints, serving, versions, *, every=2):
    """Follows so many versions, as the learner does."""
    for version in versions:
      state = self._state(version)
      serving.follow(checkpoints, state)
      if version % every == 0 or version == versions[-1]:
        checkpoints.pin(serving.needed(version))
        checkpoints.save(state, {})
        checkpoints.wait()

  def _assert_serves(self, policy_slots, steps):
    self.assertEqual(policy_slots.steps, steps)
    for policy_slot, step in steps.items():
      np.testing.assert_array_equal(
        policy_slots.params[policy_slot]["embedding"], step
      )

  @pytest.mark.slow
  def test_each_policy_slot_has_a_schedule_of_its_own(self):
    checkpoints = self._open()
    serving, policy_slots = self._serving(
      "every 4", "every 2 lag 6", "steps 0,8"
    )
    for version, steps in (
      (0, {1: 0, 2: 0, 3: 0}),
      (5, {1: 4, 2: 0, 3: 0}),
      (9, {1: 8, 2: 2, 3: 8}),
      (14, {1: 12, 2: 8, 3: 8}),
    ):
      first = max(checkpoints.steps(), default=-1) + 1
      self._run(checkpoints, serving, range(first, version + 1))
      self._assert_serves(policy_slots, steps)

  @pytest.mark.slow
  def test_goes_on_after_a_stop_with_what_it_served(self):
    lines = ("every 4", "every 2 lag 6")
    for stopped in (1, 6, 11):
      with self.subTest(stopped=stopped):
        checkpoints = self._open(f"stopped_at_{stopped}")
        serving, before = self._serving(*lines)
        self._run(checkpoints, serving, range(stopped + 1))
        serving, policy_slots = self._serving(*lines)
        serving.follow(checkpoints, self._state(stopped))
        self._assert_serves(policy_slots, before.steps)
        self._run(checkpoints, serving, range(stopped, 15))
        self._assert_serves(policy_slots, {1: 12, 2: 8})

  def test_what_does_not_change_is_not_published_again(self):
    serving, policy_slots = self._serving("every 4")
    self._run(self._open(), serving, range(8))
    self.assertEqual(policy_slots.num_published, 2)

  @pytest.mark.slow
  def test_a_version_that_was_not_kept_is_refused_by_name(self):
    checkpoints = self._open()
    serving, _ = self._serving("every 4")
    self._run(checkpoints, serving, range(11))
    serving, _ = self._serving("every 4", "steps 2")
    with self.assertRaisesRegex(
      ConfigError,
      r"policy_slots\[2\]='steps 2' is to serve update 2.*\[8, 10\]",
    ):
      serving.follow(checkpoints, self._state(10))

  @pytest.mark.slow
  def test_another_runs_checkpoints(self):
    other, _ = self._serving()
    self._run(self._open("other"), other, range(5))
    folder = self.folder / "other"
    self.assertEqual(stored_steps(str(folder)), [2, 4])
    line = f"steps 2,4 of {folder}"
    refuse_absent(read_schedules(("fresh", line)))
    serving, policy_slots = self._serving(line)
    checkpoints = self._open()
    self._run(checkpoints, serving, range(4))
    self._assert_serves(policy_slots, {1: 2})
    self._run(checkpoints, serving, range(4, 6))
    self._assert_serves(policy_slots, {1: 4})
    self.assertEqual(serving.needed(5), [])

  @pytest.mark.slow
  def test_another_run_that_cannot_be_served(self):
    with self.assertRaisesRegex(
      ConfigError, "no checkpoint of step 7; .* none"
    ):
      refuse_absent(read_schedules(("fresh", f"steps 7 of {self.folder}/no")))
    self.assertFalse((self.folder / "no").exists())
    other, _ = self._serving()
    self._run(self._open("other"), other, range(3))
    metadata = next((self.folder / "other" / "2").rglob("_METADATA"))
    metadata.write_text("{}")
    serving, _ = self._serving(f"steps 2 of {self.folder / 'other'}")
    with self.assertRaisesRegex(
      CheckpointError, r"policy_slots\[1\].*cannot be serv"
    ):
      serving.follow(self._open(), self._state(0))
