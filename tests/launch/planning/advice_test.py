"""Advice where a program does not fit: applied, it fits by the formulas."""

import dataclasses
import unittest

from absl.testing import absltest, parameterized

from configs import pod
from launch.config.settings import read_settings
from launch.planning import chips
from launch.planning.advice import Advice, advise, needed, refusal, set_keys
from launch.planning.chips import GIB, parse_slice
from launch.planning.compiler.compiled import Compiled, Memory
from launch.planning.formulas import gradient_bytes
from launch.planning.roofline import Flops
from launch.planning.study import PROGRAMS, Deployment, Judgement, Planner

V5P_64 = parse_slice("v5p-64")


def _judged(name, wanted, *, beside=None, slice_=V5P_64, is_compiled=True):
  memory = Memory(
    arguments=int(wanted), outputs=0, aliased=0, temporaries=0, code=0
  )
  return Judgement(
    name=name,
    slice_=slice_,
    compiled=Compiled(
      memory=memory if is_compiled else None, wanted=int(wanted)
    ),
    beside=beside or {},
    tokens=1,
    flops=Flops(0, 0),
    roofline=None,
  )


def _config(model, **changes):
  config = pod.get_config(model)
  config.update_from_flattened_dict(changes)
  return config


class KeysTest(absltest.TestCase):
  def test_keys_are_set_in_turn_until_it_fits(self):
    advice = set_keys(
      _config("qwen3-0.6b", **{"train.micro_batch": 64}),
      [
        ("train.row_length", 4096),  # shorter than an episode: refused
        ("loss.token_chunk", 64),
        ("train.micro_batch", 64),
        ("train.steps", 7),  # frees nothing
        ("train.micro_batch", 32),
        ("loss.token_chunk", 1),
      ],
      lambda s: 40 - s.batch.micro_batch - bool(s.loss.token_chunk != 64),
    )
    self.assertEqual(
      advice.keys, {"loss.token_chunk": 64, "train.micro_batch": 32}
    )

  def test_flags_can_be_copied_into_a_shell(self):
    advice = Advice(
      slices={"topology": "v5e:8x8"}, keys={"engine.slots": (8, 4)}, effect=""
    )
    self.assertEqual(
      advice.flags, "--topology=v5e:8x8 '--config.engine.slots=(8,4)'"
    )


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class AdviseTest(parameterized.TestCase):
  """Nothing is compiled: programs take what the test says."""

  def _advise(self, config, learner, rollout, programs, is_compiled):
    deployment = Deployment(
      learner=parse_slice(learner),
      rollout=parse_slice(rollout) if rollout else None,
    )
    planner = Planner(deployment)
    settings, judged = read_settings(config), []
    for role, names in PROGRAMS.items():
      for name in set(names) & set(programs):
        slice_ = deployment.slice_of(role)
        wanted = needed(planner, settings, role)
        if is_compiled:
          wanted = slice_.room + programs[name]
        judged.append(
          _judged(name, wanted, slice_=slice_, is_compiled=is_compiled)
        )
    return planner, advise(config, planner, judged)

  def test_fewer_rows_free_what_a_compiled_gradient_lacks(self):
    config = _config("qwen2.5-14b", **{"train.micro_batch": 64})
    _, (advice,) = self._advise(
      config, "v5p-64", "v5p-8", {"gradient": 2 * GIB}, is_compiled=True
    )
    self.assertEqual(advice.keys, {"train.micro_batch": 32})
    before = gradient_bytes(read_settings(config))
    config.train.micro_batch = 32
    freed = before - gradient_bytes(read_settings(config))
    self.assertGreater(freed, 2 * GIB)

  def test_a_smaller_cache_frees_what_a_decode_program_lacks(self):
    config = _config("qwen3-8b")
    _, (advice,) = self._advise(
      config, "v5p-64", "v5p-8", {"decode": GIB}, is_compiled=True
    )
    self.assertEqual(set(advice.keys), {"engine.cache_tokens"})

  def test_each_role_is_advised_about_chips_that_hold_its_state(self):
    config = _config("qwen2.5-32b")
    programs = {"gradient": 0, "decode": 0}
    planner, advice = self._advise(
      config, "v5e:4x8", "v5e:2x4", programs, is_compiled=False
    )
    self.assertEqual(
      [set(one.slices) for one in advice], [{"topology"}, {"rollout_topology"}]
    )
    config.update_from_flattened_dict(advice[0].keys)
    slice_ = parse_slice(advice[0].slices["topology"])
    self.assertLess(gradient_bytes(read_settings(config)), slice_.room)
    server = parse_slice(advice[1].slices["rollout_topology"])
    moved = Planner(dataclasses.replace(planner.deployment, rollout=server))
    kept = needed(moved, read_settings(config), "rollout")
    self.assertLess(kept, server.room)

  def test_another_mesh_of_these_chips_comes_before_more_chips(self):
    config = _config("qwen3-8b", **{"mesh.data": 8, "mesh.fsdp": 4})
    _, (advice,) = self._advise(
      config, "v5e:4x8", "v5e:2x4", {"gradient": 0}, is_compiled=False
    )
    self.assertEmpty(advice.slices)
    self.assertIn("mesh.fsdp", advice.keys)

  def test_answers_leave_the_learners_chips_where_both_do_not_fit(self):
    config = _config("qwen3-8b", **{"mesh.fsdp": 8})
    _, (advice,) = self._advise(
      config, "v5e:2x4", "", {"gradient": 0}, is_compiled=False
    )
    self.assertIn("rollout_topology", advice.slices)


class RefusalTest(absltest.TestCase):
  def test_the_sentence_names_what_lies_there_and_the_first_change(self):
    beside = {"reference": 8 * GIB, "optimizer": 3 * GIB}
    judged = [
      _judged("apply", 80 * GIB, beside=beside, is_compiled=False),
      _judged("gradient", 90 * GIB, beside=beside),
    ]
    advice = Advice(keys={"a": 1}, effect="less")
    self.assertEqual(
      refusal(judged, [advice]),
      "apply and gradient will not fit v5p:2x4x4: gradient wants 90.0 GiB of "
      "each chip beside what lies there (reference 8.0, optimizer 3.0), 8.1 "
      "GiB more than there is; first try --config.a=1 (less)",
    )

  def test_refusal_is_empty_where_all_fits(self):
    self.assertEqual(refusal([_judged("apply", GIB)], []), "")
