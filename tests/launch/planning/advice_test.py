"""Advice where a program does not fit: a change is applied, and then fits."""

import ast
import json
import math
import os
import shlex
import unittest

import pytest
from absl.testing import absltest, parameterized

from configs import pod
from configs.base import flat_keys
from launch.config.settings import read_settings
from launch.planning import chips
from launch.planning.advice.adviser import Advice, Adviser, refusal
from launch.planning.chips import GIB, Slice, parse_slice
from launch.planning.compiled import Compiled, Memory
from launch.planning.roofline import Attempts, Flops
from launch.planning.search import gradient_bytes, state_bytes
from launch.planning.study import RESERVE, Deployment, Judgement, Planner
from tests import programs

V5P_64 = parse_slice("v5p-64")
ROLES = ("learner", "rollout")
_RESIDENTS = {}  # with the settings, whose number no others may take


class Formulas(Planner):
  """Planner whose programs take the memory of the formulas, not compiled.

  What lies on the chips, their number and the meshes are those of the plan.
  """

  compiled: list[tuple[str, str]]  # shared by the planners of a test
  takes_s = 0.0  # to compile a program
  now = 0.0  # on the clock of a test

  def residents(self, settings, role):
    """Counts them once for settings, which an adviser reads once."""
    key = (self.deployment, id(settings), role)
    if key not in _RESIDENTS:
      _RESIDENTS[key] = (settings, super().residents(settings, role))
    return _RESIDENTS[key][1]

  def judge(self, settings, program, *, deadline_s=math.inf):
    type(self).now += min(self.takes_s, deadline_s)
    role = "rollout" if program.name in ("prefill", "decode") else "learner"
    slice_ = self.deployment.slice_of(role)
    kept = self.residents(settings, role)
    beside = {n: size for n, size in kept.items() if n not in program.holds}
    held = sum(size for n, size in kept.items() if n in program.holds)
    wanted = 1.1 * held
    if program.name == "gradient":
      wanted = held + gradient_bytes(settings) - state_bytes(settings)
    self.compiled.append((program.name, slice_.name))
    failure = "it did not end" * (self.takes_s >= deadline_s)
    return _judged(
      program.name,
      wanted,
      slice_=slice_,
      beside=beside,
      memory=None if failure else int(wanted),
      failure=failure,
    )


def _judged(
  name, wanted, *, beside, slice_=V5P_64, memory=None, **others
) -> Judgement:
  found = memory and Memory(
    arguments=memory, outputs=0, aliased=0, temporaries=0, code=0
  )
  return Judgement(
    name=name,
    slice_=slice_,
    compiled=Compiled(memory=found, wanted=int(wanted), **others),
    beside=beside,
    tokens=1,
    flops=Flops(0, 0),
    roofline=None,
  )


def _config(model: str = "qwen2.5-14b", **changes):
  config = pod.get_config(model)
  config.update_from_flattened_dict(changes)
  return config


def _deployment(learner: str, rollout: str = "", **others) -> Deployment:
  return Deployment(
    learner=parse_slice(learner),
    rollout=parse_slice(rollout) if rollout else None,
    **others,
  )


def _apply(config, deployment: Deployment, text: str):
  """Applies printed flags, as somebody would who copies them."""
  config = config.copy_and_resolve_references()
  slices: dict[str, Slice] = {}
  for word in shlex.split(text):
    name, _, value = word.removeprefix("--").partition("=")
    if name.startswith("config."):
      key = name.removeprefix("config.")
      is_text = isinstance(dict(flat_keys(config))[key], str)
      config.update_from_flattened_dict(
        {key: value if is_text else ast.literal_eval(value)}
      )
    else:
      role = {"topology": "learner", "rollout_topology": "rollout"}[name]
      slices[role] = parse_slice(value)
  learner = slices.get("learner", deployment.learner)
  rollout = slices.get("rollout", deployment.rollout)
  return config, Deployment(
    learner=learner, rollout=rollout, attempts=deployment.attempts
  )


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class AdviserTest(parameterized.TestCase):
  def advise(self, config, deployment, roles=ROLES, seconds=600, takes_s=60):
    Counted = _formulas()
    judged = Counted(deployment).study(read_settings(config), roles)
    Counted.compiled.clear()
    Counted.takes_s = takes_s
    adviser = Adviser(
      config,
      deployment,
      roles,
      seconds=seconds,
      make_planner=Counted,
      clock=lambda: Counted.now,
    )
    return adviser, judged, adviser.advise(judged), Counted

  @parameterized.named_parameters(
    ("state_too_large", "qwen2.5-32b", "v5e:4x8", "v6e:2x4", {}),
    ("state_too_large_here", "qwen3-8b", "v5e:2x4", "", {"mesh.fsdp": 8}),
    ("everything_in_one_process", "qwen2.5-32b", "v5e:4x8", "", {}),
    ("rows", "qwen2.5-14b", "v5e:4x8", "v6e:2x4", {"train.micro_batch": 512}),
    (
      "long_rows",
      "qwen3-8b",
      "v5e:4x8",
      "v5e:2x4",
      {"train.row_length": 65536},
    ),
    ("slots", "qwen3-8b", "v5p-64", "v5e:2x4", {"engine.slots": (96, 32)}),
    ("both", "qwen2.5-32b", "v5e:4x8", "v5e:2x4", {}),
    (
      "reference",
      "qwen2.5-32b",
      "v5e:8x8",
      "v6e:2x4",
      {"mesh.fsdp": 8, "mesh.tensor": 8, "train.micro_batch": 8},
    ),
    (
      "adapters",
      "qwen2.5-32b",
      "v5e:2x4",
      "v6e:2x4",
      {"lora.rank": 8, "mesh.fsdp": 8, "train.micro_batch": 8},
    ),
  )
  @pytest.mark.slow
  def test_config_with_the_advice_fits(self, model, learner, rollout, changes):
    config, deployment = (
      _config(model, **changes),
      _deployment(learner, rollout),
    )
    adviser, judged, advice, counted = self.advise(config, deployment)
    self.assertFalse(all(j.fits for j in judged))
    self.assertNotEmpty(advice)
    self.assertEqual(adviser.left_out, [])
    for one in advice:
      changed, there = _apply(config, deployment, one.flags)
      again = counted(there).study(read_settings(changed), one.roles)
      self.assertTrue(all(j.fits for j in again), one)
      self.assertEqual(min(j.left for j in again), one.left)
    # Every role that does not fit is advised about.
    tight = {
      "learner" if j.name in ("gradient", "apply") else "rollout"
      for j in judged
      if not j.fits
    }
    self.assertEqual(tight - {role for a in advice for role in a.roles}, set())

  def test_if_the_state_is_too_large_the_smallest_slice_comes_first(self):
    config = _config("qwen2.5-32b")
    deployment = _deployment("v5e:4x8", "v6e:2x4")
    _, judged, advice, counted = self.advise(config, deployment, ("learner",))
    self.assertStartsWith(advice[0].flags, "--topology=v5e:")
    (larger,) = {slice_ for _, slice_ in counted.compiled[-2:]}
    self.assertIn(f"--topology={larger}", advice[0].flags)
    self.assertIn(f"first try {advice[0].flags}", refusal(judged, advice))
    # No mesh of a smaller slice would have fitted.
    taken = parse_slice(larger)
    for slice_ in chips.slices_of(taken.chip):
      if 32 < slice_.num_chips < taken.num_chips:
        self.assertIn(slice_.name, [name for _, name in counted.compiled])
    # Neither of these helps, and nothing says that they do.
    text = " ".join(one.flags + one.effect for one in advice)
    self.assertNotIn("token_chunk", text)

  def test_settings_that_cost_nothing_come_before_chips(self):
    config = _config(
      "qwen2.5-14b", **{"train.micro_batch": 512, "compute.scan_layers": True}
    )
    deployment = _deployment("v5e:4x8", "v6e:2x4")
    _, _, advice, _ = self.advise(config, deployment, ("learner",))
    self.assertStartsWith(advice[0].flags, "--config.")
    self.assertNotIn("--topology", " ".join(a.flags for a in advice))

  @pytest.mark.slow
  def test_every_advice_is_checked(self):
    config = _config("qwen2.5-72b")  # no slice of one host serves it
    deployment = _deployment("v5e:4x8", "v5e:2x4")
    for seconds in (0, 61):
      with self.subTest(seconds=seconds):
        adviser, judged, advice, counted = self.advise(
          config, deployment, seconds=seconds
        )
        self.assertFalse([a for a in advice if a.roles == ("rollout",)])
        self.assertLessEqual(adviser.num_compiled, bool(seconds))
        if not seconds:
          self.assertEqual((advice, counted.compiled), ([], []))
          self.assertNotIn("first try", refusal(judged, advice))

  def test_config_that_fits_gets_no_advice(self):
    config, deployment = _config("qwen3-1.7b"), _deployment("v5p-64", "v5p-8")
    adviser, _, advice, counted = self.advise(config, deployment)
    self.assertEqual((advice, counted.compiled), ([], []))
    self.assertEqual(adviser.num_excluded, 0)

  @pytest.mark.slow
  def test_a_context_below_an_episode_is_not_advised(self):
    config = _config("qwen3-8b", **{"engine.slots": (96, 32)})
    deployment = _deployment("v5p-64", "v5e:2x4")
    _, _, advice, _ = self.advise(config, deployment, ("rollout",))
    self.assertNotIn("engine.context", " ".join(a.flags for a in advice))

  def test_rows_for_a_group_are_advised_only_if_they_fit(self):
    group = Attempts(prompt=2000, turns=1000, num=8)  # 10000 tokens
    config = _config("qwen2.5-14b")
    for learner, fits in (("v5p:2x4x4", True), ("v5e:4x8", False)):
      deployment = _deployment(learner, "v5p-8", attempts=group)
      adviser = Adviser(
        config, deployment, ROLES[:1], seconds=600, make_planner=_formulas()
      )
      advice = adviser.share_prompts([])
      self.assertEqual(
        [one.flags for one in advice],
        ["--config.train.row_length=10112"] * fits,
      )
      tight = _judged("apply", 99 * GIB, beside={})
      self.assertEqual(adviser.share_prompts([tight]), [])

  def test_residents_are_counted_with_the_room_that_is_kept_back(self):
    """A change whose residents fill the chip to the last byte is refused."""
    # The largest slice of its chip: no other is looked at.
    config = _config("qwen2.5-14b")
    deployment = _deployment("v5e:16x16", "v5p-8")
    room = deployment.learner.chip.memory * (1 - RESERVE)
    kept = {}

    class Full(_formulas()):
      def residents(self, settings, role):
        return kept if role == "learner" else super().residents(settings, role)

    adviser = Adviser(
      config, deployment, ("learner",), seconds=600, make_planner=Full
    )
    tight = _judged("apply", 99 * GIB, beside={})
    kept["params"] = int(room) + 1
    self.assertEqual(adviser.advise([tight]), [])
    self.assertEqual(adviser.num_compiled, 0)

  @parameterized.parameters(
    # Two meshes of 64 chips do not fit, then one of 128 does.
    (99, 0, "gradient did not compile in 99 s", 5),
    (250, 2, "50 s were left, and compiling gradient and apply takes about", 3),
    (350, 3, "apply did not compile in 50 s", 3),
    (450, 3, "", 0),
  )
  def test_no_compilation_goes_beyond_the_budget(
    self, seconds, num, reason, num_after
  ):
    config = _config("qwen2.5-32b", **{"loss.token_chunk": 2048})
    deployment = _deployment("v5e:4x8", "v6e:2x4")
    adviser, _, advice, counted = self.advise(
      config, deployment, ("learner",), seconds, takes_s=100
    )
    self.assertEqual(adviser.num_compiled, num)
    self.assertLessEqual(counted.now, seconds)
    self.assertLen(advice, not reason)
    self.assertLen(adviser.left_out, bool(reason))
    for left_out in adviser.left_out:
      self.assertStartsWith(left_out.flags, "--topology=v5e:8x")
      self.assertStartsWith(left_out.reason, reason)
      self.assertEqual(left_out.num_after, num_after)

  def test_what_the_plan_took_is_what_advice_will_take(self):
    config = _config("qwen2.5-32b")
    deployment = _deployment("v5e:4x8", "v6e:2x4")
    Counted = _formulas()
    adviser = Adviser(
      config, deployment, ROLES, seconds=300, make_planner=Counted
    )
    slow = _judged("gradient", 99 * GIB, beside={}, seconds=301)
    self.assertEqual(adviser.advise([slow]), [])
    self.assertEqual(Counted.compiled, [])
    (left_out,) = adviser.left_out
    self.assertIn("takes about 301 s", left_out.reason)

  def test_no_time_for_a_server_ends_the_search_for_one(self):
    adviser, _, advice, counted = self.advise(
      _config("qwen3-8b", **{"mesh.fsdp": 8, "train.micro_batch": 8}),
      _deployment("v5e:2x4"),
      ("rollout",),
      seconds=50,
    )
    self.assertEqual((advice, len(counted.compiled)), ([], 1))
    (left_out,) = adviser.left_out
    self.assertStartsWith(left_out.flags, "--rollout_topology=")
    self.assertGreater(left_out.num_after, 0)

  @parameterized.parameters(
    (
      "v6e:2x4",
      # 16 bytes a weight and 2 of the reference, of 32.8 G weights.
      r"learner: the state alone takes 17\.2 GiB of each chip of v5e:4x8 "
      r"\(params 3\.8, .*\), and a chip has 15\.3",
      r"the smallest that holds it is --topology=v5e:8x8 ",
      r"rollout: the state alone takes 38\.9 GiB of each chip of v6e:2x4 \(",
      r"the smallest that holds it is --rollout_topology=tpu7x:2x2x1$",
    ),
    (
      "",
      "learner and rollouts: the state alone takes .* of v5e:4x8",
      "is --topology=v5e:8x8 --rollout_topology=tpu7x:2x2x1 --config.mesh",
    ),
  )
  def test_a_state_that_is_too_large_is_said_first(self, rollout, *sentences):
    Counted = _formulas()
    adviser = Adviser(
      _config("qwen2.5-32b"),
      _deployment("v5e:4x8", rollout),
      ROLES,
      seconds=0,
      make_planner=Counted,
    )
    said = list(adviser.excluded())
    self.assertLen(said, len(sentences))
    for sentence, expected in zip(said, sentences, strict=True):
      self.assertRegex(sentence, expected)
    self.assertEqual(Counted.compiled, [])

  def test_another_mesh_of_these_chips_comes_before_more_chips(self):
    config = _config("qwen3-8b", **{"mesh.data": 8, "mesh.fsdp": 4})
    deployment = _deployment("v5e:4x8", "v5e:2x4")
    adviser, _, advice, _ = self.advise(config, deployment, ("learner",))
    self.assertStartsWith(advice[0].flags, "--config.mesh.data=1")
    (_, smallest) = adviser.excluded()
    self.assertIn("holds it is --config.mesh.data=1", smallest)


def _formulas():
  return type("Counted", (Formulas,), {"compiled": []})


class RefusalTest(absltest.TestCase):
  def test_the_sentence_names_what_lies_there_and_the_first_change(self):
    beside = {"reference": 8 * GIB, "optimizer": 3 * GIB}
    judged = _judged("gradient", 90 * GIB, beside=beside)
    advice = Advice(
      flags="--config.a=1", effect="less", left=2 * GIB, roles=("learner",)
    )
    sentence = refusal([judged], [advice])
    self.assertIn("gradient will not fit v5p:2x4x4: gradient wants", sentence)
    self.assertIn("90.0 GiB of each chip", sentence)
    self.assertIn("(reference 8.0, optimizer 3.0)", sentence)
    self.assertIn("8.1 GiB more than there is", sentence)
    self.assertTrue(
      sentence.endswith(
        "first try --config.a=1 (less; checked: 2.0 GiB of a chip left)"
      ),
      sentence,
    )

  def test_refusal_names_the_program_that_lacks_most(self):
    judged = [
      _judged("apply", 120 * GIB, beside={}),
      _judged("gradient", 99 * GIB, beside={}),
    ]
    sentence = refusal(judged, [])
    self.assertIn("apply and gradient will not fit", sentence)
    self.assertIn("apply wants 120.0 GiB", sentence)
    self.assertNotIn("first try", sentence)

  def test_refusal_is_empty_where_all_fits(self):
    self.assertEqual(refusal([], []), "")


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class CompiledTest(absltest.TestCase):
  """As above, with the compiler, by the command itself."""

  def plan(self, *arguments: str) -> tuple[int, dict, str]:
    done = programs.run(
      "launch.plan",
      "--nolargest",
      "--json",
      *arguments,
      env={**os.environ, "COLUMNS": "120"},
      deadline_s=3000,
    )
    return done.returncode, json.loads(done.stdout), done.stderr

  @pytest.mark.full
  @pytest.mark.timeout(3600)
  def test_slots_that_are_too_many(self):
    self.check_applied(
      "--config=configs/pod.py:qwen3-0.6b",
      "--topology=v5e:2x2",
      "--rollout_topology=v5e:2x2",
      "--roles=rollout",
      "--config.mesh.fsdp=4",
      "--config.train.micro_batch=4",
      "--config.engine.slots=(160,16)",
    )

  @pytest.mark.full
  @pytest.mark.timeout(3600)
  def test_a_state_that_is_too_large(self):
    self.check_applied(
      "--config=configs/pod.py:qwen2.5-32b",
      "--topology=v5e:4x8",
      "--rollout_topology=v6e:2x4",
      "--roles=learner",
    )

  def check_applied(self, *arguments: str) -> None:
    status, found, told = self.plan(*arguments)
    self.assertEqual(status, 1, told)
    self.assertNotEmpty(found["advice"], told)
    first = found["advice"][0]
    self.assertIn(f"first try {first['flags']} (", told)
    status, again, told = self.plan(*arguments, *shlex.split(first["flags"]))
    self.assertEqual(status, 0, told)
    left = min(p["left_bytes"] for p in again["programs"].values())
    self.assertEqual(left, first["left_bytes"])
