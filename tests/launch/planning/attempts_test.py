"""Tokens and keys of packed attempts, against packed trajectories."""

import dataclasses

import numpy as np
from absl.testing import parameterized

from agentrl_jax.data.packing import pack
from agentrl_jax.errors import ConfigError
from launch.planning import roofline
from launch.planning.advice import longer_rows
from launch.planning.programs import learner_load
from launch.planning.roofline import Attempts, pack_attempts
from launch.planning.step import read_attempts
from tests.data.records import make_trajectory, make_turn
from tests.launch.planning.models import pod_settings

# Prompt, turns, attempts; tokens of a row, sharing.
CASES = (
  (20, 10, 4, 64, 4),  # one group fills a row but for 4 tokens
  (20, 10, 9, 64, 4),  # a group is cut into three
  (20, 10, 9, 64, 2),  # cut further: rows stand for at most 128 tokens
  (4, 6, 3, 64, 8),  # rows hold several groups
  (63, 1, 5, 64, 8),  # no two attempts fit
  (0, 30, 4, 64, 4),  # nothing is shared
  (20, 10, 4, 64, 1),  # nothing may be
  (20, 30, 1, 64, 4),
)


FITS = Attempts(prompt=1024, turns=896, num=8)  # 8192 tokens


def _trajectories(prompt: int, turns: int, num: int, num_groups: int):
  """Equal attempts, whose first own tokens all differ."""
  rng = np.random.default_rng(0)
  found = []
  for _ in range(num_groups):
    first = make_turn(rng, observed=prompt, sampled=turns)
    first.observation[:1] = 1000 + len(found)
    for _ in range(num):
      sampled = first.sampled.copy()
      sampled[0] = 1000 + len(found)
      turn = dataclasses.replace(first, sampled=sampled)
      trajectory = make_trajectory(rng, group=str(len(found)))
      found.append(dataclasses.replace(trajectory, turns=(turn,)))
  return found


class PackedAttemptsTest(parameterized.TestCase):
  @parameterized.parameters(*CASES)
  def test_rows_hold_about_what_those_of_an_update_hold(
    self, prompt, turns, num, row_length, sharing
  ):
    attempts = Attempts(prompt=prompt, turns=turns, num=num)
    row = pack_attempts(attempts, row_length=row_length, sharing=sharing)
    trajectories = _trajectories(prompt, turns, num, num_groups=12)
    packed = pack(trajectories, row_length=row_length, sharing=sharing)
    rows = len(packed.token)
    self.assertAlmostEqual(
      row.computed * rows / packed.num_computed, 1, delta=0.15
    )
    self.assertAlmostEqual(row.tokens * rows / packed.num_tokens, 1, delta=0.15)

  def test_a_group_that_fits_is_computed_by_the_formula(self):
    attempts = Attempts(prompt=128, turns=128, num=8)
    row = pack_attempts(attempts, row_length=1152, sharing=8)
    self.assertEqual((row.computed, row.tokens), (1152, 2048))

  @parameterized.parameters((0, 1352), (300, 300 - 150 * 300 / 8192))
  def test_keys_are_those_that_tokens_see(self, window, about):
    row = pack_attempts(FITS, row_length=8192, sharing=8)
    self.assertAlmostEqual(row.keys_needed(window) / about, 1, delta=0.1)


def _settings(**batch):
  settings = pod_settings("qwen2.5-14b")
  return dataclasses.replace(
    settings, batch=dataclasses.replace(settings.batch, **batch)
  )


class LoadTest(parameterized.TestCase):
  def test_of_a_group_that_fills_a_row(self):
    load = learner_load(_settings(), FITS, "splash")
    self.assertEqual(
      (load.tokens, load.computed, load.of_trajectories),
      (32 * 8192, 32 * 8192, 32 * 8 * 1920),
    )
    self.assertAlmostEqual(load.shared, 1 - 8192 / (8 * 1920))

  def test_splash_visits_whole_blocks(self):
    rows = learner_load(_settings(sharing=1), FITS, "splash")
    # Of attempts of 1920 tokens, four in a row, 48 pairs of 16 x 16 blocks.
    self.assertAlmostEqual(
      rows.keys_visited * 8192 / 48 / 512**2, 1, delta=0.05
    )
    plain = learner_load(_settings(), FITS, "xla")
    self.assertEqual(plain.keys_visited, 8192)

  def test_nothing_is_shared_where_nothing_may_be(self):
    load = learner_load(_settings(sharing=1), FITS, "splash")
    self.assertEqual(load.shared, 0)
    self.assertEqual(load.computed, 32 * 4 * 1920)  # four attempts in a row

  def test_without_attempts_rows_are_full_and_share_nothing(self):
    for sharing in (1, 8):
      load = learner_load(_settings(sharing=sharing), None, "splash")
      self.assertEqual((load.shared, load.computed), (0, 32 * 8192))
      keys = load.keys_needed, load.keys_visited
      self.assertEqual(keys, (4096, (8192 + 512) / 2))

  @parameterized.parameters((1, 1.0), (2, 3 / 2), (4, 7 / 4))
  def test_the_last_shard_of_a_row_sees_most(self, sequence, wanted):
    settings = _settings(sharing=1)
    mesh = {**settings.mesh, "sequence": sequence}
    load = learner_load(
      dataclasses.replace(settings, mesh=mesh), None, "splash"
    )
    self.assertAlmostEqual(load.imbalance, wanted)

  def test_a_trajectory_token_costs_less_where_prompts_are_shared(self):
    settings = _settings()
    found = []
    for sharing in (1, 8):
      load = learner_load(_settings(sharing=sharing), FITS, "splash")
      flops = roofline.gradient(
        settings.model, settings.compute, load, kernel="splash"
      )
      found.append(flops.needed / load.of_trajectories)
    self.assertBetween(found[1] / found[0], 8192 / (8 * 1920), 0.56)


class FlagsTest(parameterized.TestCase):
  def _read(self, prompt=0, turns=None):
    return read_attempts(_settings(), prompt=prompt, turns=turns)

  def test_attempts_are_those_of_a_group(self):
    self.assertIsNone(self._read())
    self.assertEqual(
      self._read(prompt=100, turns=50),
      Attempts(prompt=100, turns=50, num=_settings().group.size),
    )

  @parameterized.parameters(
    ({"prompt": 100}, "needs --turns"),
    ({"prompt": -1, "turns": 9}, "--prompt=-1 must be 0 or more"),
    ({"turns": 0}, "--turns=0 must be 1 or more"),
    ({"prompt": 8000, "turns": 193}, "8193 tokens.*train.row_length=8192"),
  )
  def test_bad_ones_are_refused(self, flags, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      self._read(**flags)


class AdviceTest(parameterized.TestCase):
  def _knobs(self, attempts, **batch):
    found = longer_rows(_settings(**batch), attempts)
    return [one.flags.replace("--config.", "") for one in found]

  def test_a_row_for_a_whole_group(self):
    group = Attempts(prompt=2000, turns=1000, num=8)  # 10000 tokens
    self.assertEqual(self._knobs(group), ["train.row_length=10112"])
    self.assertEqual(self._knobs(group, row_length=10112), [])
    self.assertEqual(
      self._knobs(group, sharing=2), ["train.row_length=10112 train.sharing=3"]
    )

  def test_enough_sharing_for_a_whole_group(self):
    group = Attempts(prompt=4000, turns=400, num=8)  # of 35200 tokens
    self.assertEqual(self._knobs(group), [])
    self.assertEqual(self._knobs(group, sharing=2), ["train.sharing=5"])

  def test_what_it_advises_is_computed_once(self):
    group = Attempts(prompt=3000, turns=700, num=16)
    (knob,) = self._knobs(group, sharing=2)
    batch = dict(pair.split("=") for pair in knob.split())
    batch = {name.removeprefix("train."): int(n) for name, n in batch.items()}
    load = learner_load(_settings(**batch), group, "splash")
    self.assertAlmostEqual(load.shared, 1 - group.num_nodes / (16 * 3700))

  def test_none_where_it_would_not_help(self):
    self.assertEqual(self._knobs(None), [])
    self.assertEqual(self._knobs(FITS), [])
    self.assertEqual(self._knobs(FITS, sharing=1), [])
    self.assertEqual(self._knobs(Attempts(prompt=200, turns=2000, num=8)), [])
