"""Advice where a program does not fit on a chip."""

import dataclasses

from absl.testing import absltest

from configs import pod
from launch.config.settings import read_settings
from launch.planning.advice import advice, refusal
from launch.planning.chips import GIB, parse_slice
from launch.planning.compiled import Compiled
from launch.planning.roofline import Flops
from launch.planning.study import Judgement
from tests.settings import compute_config

V5P_64 = parse_slice("v5p-64")


def _judged(name: str, wanted: float, **beside: float) -> Judgement:
  return Judgement(
    name=name,
    slice_=V5P_64,
    compiled=Compiled(memory=None, wanted=int(wanted * GIB)),
    beside={n.replace("_", " "): int(s * GIB) for n, s in beside.items()},
    tokens=1,
    flops=Flops(0, 0),
    roofline=None,
  )


class AdviceTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.settings = read_settings(pod.get_config("qwen2.5-14b"))

  def _knobs(self, judged: Judgement, **changes) -> list[str]:
    settings = dataclasses.replace(self.settings, **changes)
    return [knob.setting for knob in advice(settings, [judged])]

  def test_the_sentence_names_what_lies_there_and_the_first_knob(self):
    judged = _judged("gradient", 90, reference=8, optimizer=3)
    knobs = advice(self.settings, [judged])
    sentence = refusal([judged], knobs)
    self.assertIn("gradient will not fit v5p:2x4x4: gradient wants", sentence)
    self.assertIn("90.0 GiB of each chip", sentence)
    self.assertIn("(reference 8.0, optimizer 3.0)", sentence)
    self.assertIn("8.1 GiB more than there is", sentence)
    self.assertTrue(sentence.endswith(f"({knobs[0].effect})"), sentence)

  def test_of_several_the_worst_is_told(self):
    judged = [_judged("apply", 120), _judged("gradient", 99)]
    sentence = refusal(judged, [])
    self.assertIn("apply and gradient will not fit", sentence)
    self.assertIn("apply wants 120.0 GiB", sentence)

  def test_what_costs_nothing_comes_before_what_costs_chips(self):
    judged = _judged("gradient", 90, reference=8)
    knobs = self._knobs(judged, compute=compute_config(scan_layers=True))
    self.assertEqual(
      knobs[:2], ["compute.dtype=bfloat16", "compute.remat=full"]
    )
    self.assertIn("reference.place=offloaded", knobs)
    self.assertEqual(knobs[-1], "--topology")

  def test_knobs_that_are_turned_already_are_left_out(self):
    knobs = self._knobs(_judged("apply", 99))
    for turned in ("compute", "reference", "train.micro_batch", "--rollout"):
      self.assertFalse([k for k in knobs if k.startswith(turned)], turned)

  def test_rollouts_on_the_same_chips_are_sent_away(self):
    judged = _judged(
      "gradient", 60, weights_of_policy_slot_0=20, cache_of_policy_slot_0=40
    )
    effects = {k.setting: k.effect for k in advice(self.settings, [judged])}
    self.assertIn("60.0 GiB", effects["--rollout_topology"])

  def test_a_full_engine_gets_fewer_slots(self):
    rows = dataclasses.replace(
      self.settings.engine, slots=(48, 16), page_size=0, cache_tokens=()
    )
    knobs = self._knobs(_judged("decode", 99), engine=rows)
    self.assertEqual(knobs[0], "engine.slots=(24,8)")
    self.assertIn("engine.context=4096", knobs)

  def test_a_full_engine_gets_fewer_pages(self):
    pages = dataclasses.replace(
      self.settings.engine, page_size=128, cache_tokens=(384, 128)
    )
    knobs = self._knobs(_judged("decode", 99), engine=pages)
    self.assertEqual(knobs[0], "engine.cache_tokens=(128,128)")
    self.assertFalse([k for k in knobs if k.startswith("engine.context")])

  def test_of_what_fits_nothing_is_said(self):
    self.assertEqual(refusal([], []), "")
