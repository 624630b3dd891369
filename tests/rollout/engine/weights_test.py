"""What a policy slot serves, and what may be published to it."""

import threading
import unittest

import jax
import jax.numpy as jnp

from agentrl_jax.errors import CheckpointError, ConfigError, GeneratorFault
from agentrl_jax.rollout.engine.weights import ServedWeights


def params(value=1.0, **more):
  return {"layer": {"kernel": jnp.full((2, 3), value)}} | more


class VersionStoreTest(unittest.TestCase):
  def setUp(self):
    self.store = ServedWeights(2)
    self.store.publish(0, params(), 7)

  def test_serves_what_was_published_last(self):
    first = self.store.get(0)
    self.store.publish(0, params(2.0), 8)
    second = self.store.get(0)
    self.assertEqual((first.step, second.step), (7, 8))
    self.assertEqual(float(second.params["layer"]["kernel"][0, 0]), 2.0)
    self.assertEqual(self.store.steps(), (8, None))

  def test_no_two_publications_share_an_edition(self):
    publications = {self.store.get(0).publication}
    for policy_slot, step in ((0, 7), (1, 7), (0, 7)):
      self.store.publish(policy_slot, params(), step)
      publications.add(self.store.get(policy_slot).publication)
    self.assertEqual(len(publications), 4)

  def test_a_policy_slot_that_serves_nothing_says_so(self):
    with self.assertRaisesRegex(GeneratorFault, r"publish\(1, params, step\)"):
      self.store.get(1)

  def test_other_shapes_are_refused_by_name_and_change_nothing(self):
    before = self.store.get(0)
    other = {"layer": {"kernel": jnp.zeros((2, 4))}}
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params())
    for policy_slot, wrong, said in (
      (0, other, r"layer.*kernel.*float32\[2, 4\].*\[2, 3\]"),
      (1, narrow, r"layer.*kernel.*bfloat16.*float32"),
      (0, params(extra=jnp.zeros(1)), "extra.*not part"),
      (0, {"layer": {}}, "kernel.*is missing"),
    ):
      with self.assertRaisesRegex(CheckpointError, said):
        self.store.publish(policy_slot, wrong, 8)
    self.assertIs(self.store.get(0), before)
    self.assertEqual(self.store.steps(), (7, None))

  def test_numbers_that_are_not_finite_are_refused_on_demand(self):
    for value in (float("nan"), float("inf")):
      with self.assertRaisesRegex(CheckpointError, "kernel.*not finite"):
        self.store.publish(0, params(value), 8, check_finite=True)
    self.store.publish(0, params(float("nan")), 8)

  def test_policy_slots_that_there_are_not_are_refused(self):
    for policy_slot in (-1, 2):
      with self.assertRaisesRegex(ConfigError, "policy slots are 0 to 1"):
        self.store.get(policy_slot)
      with self.assertRaisesRegex(ConfigError, "policy slots are 0 to 1"):
        self.store.publish(policy_slot, params(), 8)
    with self.assertRaises(ConfigError):
      ServedWeights(0)

  def test_step_and_params_are_read_together(self):
    stop = threading.Event()

    def publish():
      step = 0
      while not stop.is_set():
        step += 1
        self.store.publish(0, params(float(step)), step)

    self.store.publish(0, params(0.0), 0)
    thread = threading.Thread(target=publish)
    thread.start()
    try:
      for _ in range(20):
        served = self.store.get(0)
        self.assertEqual(served.params["layer"]["kernel"][0, 0], served.step)
    finally:
      stop.set()
      thread.join(60)


if __name__ == "__main__":
  unittest.main()
