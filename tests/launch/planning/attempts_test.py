"""Tokens and keys of packed attempts, against packed trajectories."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from agentrl_jax.data.packing import pack
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention import blockwise, reference, splash
from agentrl_jax.model.attention.packed import first_visible
from launch.planning import roofline
from launch.planning.advice.changes import longer_rows
from launch.planning.chips import parse_slice
from launch.planning.programs import learner_load
from launch.planning.roofline import (
  Attempts,
  pack_groups,
  pairs_by_shard,
  pairs_visited,
)
from launch.planning.study import Deployment, read_attempts
from tests.data.records import make_trajectory, make_turn
from tests.launch.planning.models import pod_settings
from tests.model.attention.trees import random_ends
from tests.settings import compute_config

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


def _ends(rows) -> list[tuple[int, ...]]:
  """The ends of subtrees, or of segments, of each row."""
  if rows.tree is not None:
    return sorted(map(tuple, rows.tree.end.tolist()))
  found = []
  for segment_T in rows.segment:
    last = np.searchsorted(segment_T[segment_T > 0], segment_T, side="right")
    found.append(tuple(np.where(segment_T > 0, last, 0).tolist()))
  return sorted(found)


def _visible(end_T: np.ndarray) -> np.ndarray:
  """Returns the mask of tokens that see each other, bool [T, S]."""
  t = np.arange(len(end_T))
  end_T = np.maximum(end_T, t + 1)
  return (t <= t[:, None]) & (t[:, None] < end_T)


class PackedAttemptsTest(parameterized.TestCase):
  def _packed(self, prompt, turns, num, row_length, sharing, num_groups=6):
    rows = pack_groups(
      Attempts(prompt=prompt, turns=turns, num=num),
      row_length=row_length,
      sharing=sharing,
      num_groups=num_groups,
    )
    trajectories = _trajectories(prompt, turns, num, num_groups)
    return rows, pack(trajectories, row_length=row_length, sharing=sharing)

  @parameterized.parameters(*CASES)
  def test_rows_are_those_of_an_update(self, *case):
    rows, packed = self._packed(*case)
    self.assertEqual(rows.num_all, len(packed.token))
    self.assertAlmostEqual(rows.computed * rows.num_all, packed.num_computed)
    self.assertAlmostEqual(rows.tokens * rows.num_all, packed.num_tokens)
    ends = [
      tuple(rows.ends(row).tolist())
      for row, count in rows.num_rows.items()
      for _ in range(count)
    ]
    self.assertEqual(sorted(ends), _ends(packed))

  @parameterized.parameters(*CASES)
  def test_keys_are_those_that_tokens_see(self, *case):
    rows, packed = self._packed(*case)
    # By formula a token sees half of a sequence; with itself, half a token
    # more.
    seen = sum(
      _visible(np.array(end))[np.array(end) > 0].sum() for end in _ends(packed)
    )
    self.assertAlmostEqual(
      rows.keys_needed() + 0.5, seen / packed.num_computed, places=9
    )

  @parameterized.product(case=CASES[:4], window=(1, 3, 10))
  def test_windows_are_those_of_updates(self, case, window):
    rows, packed = self._packed(*case)
    tree = packed.tree
    first_BT = first_visible(jnp.asarray(tree.position), window)
    wanted = dict(zip(map(tuple, tree.end), np.asarray(first_BT), strict=True))
    for row in rows.num_rows:
      end_T, begin_T = rows.ends(row), rows._begins(row, window)
      is_token_T = end_T > 0
      np.testing.assert_array_equal(
        begin_T[is_token_T], wanted[tuple(end_T)][is_token_T]
      )
      # As kernels do: some of these have no visible pair after all.
      seen_T = np.maximum(end_T, np.arange(1, len(end_T) + 1))
      visited = reference.visible_blocks(
        jnp.asarray(seen_T)[None],
        len(end_T),
        0,
        jnp.asarray(begin_T)[None],
        queries=4,
        keys=8,
      )
      self.assertEqual(
        pairs_visited(end_T, 4, 8, begin_T), 32 * np.count_nonzero(visited)
      )
    seen = (np.minimum(tree.position + 1, window) * (tree.end > 0)).sum()
    # A token and itself are half a pair.
    self.assertAlmostEqual(
      rows.keys_needed(window), seen / packed.num_computed, delta=0.5
    )

  def test_a_group_that_fits_is_computed_by_the_formula(self):
    rows = pack_groups(
      Attempts(prompt=128, turns=128, num=8),
      row_length=1152,
      sharing=8,
      num_groups=4,
    )
    self.assertEqual((rows.computed, rows.tokens), (1152, 2048))

  def test_more_groups_than_are_packed_change_nothing(self):
    settings = {"row_length": 8192, "sharing": 8}
    attempts = Attempts(prompt=1000, turns=1000, num=7)
    many = pack_groups(attempts, num_groups=10**9, **settings)
    few = pack_groups(attempts, num_groups=64, **settings)
    self.assertEqual(many.computed, few.computed)


class PairsVisitedTest(parameterized.TestCase):
  @parameterized.product(
    blocks=((1, 1), (4, 4), (4, 16), (16, 4), (96, 96), (7, 7)), padding=(0, 40)
  )
  def test_they_have_a_visible_pair(self, blocks, padding):
    end_T = random_ends(np.random.default_rng(1), 96, padding=padding)
    visible_TS = _visible(end_T)
    queries, keys = blocks
    wanted = sum(
      visible_TS[t : t + queries, s : s + keys].any()
      for t in range(0, 96, queries)
      for s in range(0, 96, keys)
    )
    self.assertEqual(pairs_visited(end_T, *blocks), wanted * queries * keys)

  def test_shards_of_the_queries_visit_parts_of_them(self):
    end_T = random_ends(np.random.default_rng(4), 96, padding=10)
    parts = pairs_by_shard(end_T, 8, 16, 4)
    for shard, found in enumerate(parts):
      visible_TS = _visible(end_T)[24 * shard :][:24]
      wanted = sum(
        visible_TS[t : t + 8, s : s + 16].any()
        for t in range(0, 24, 8)
        for s in range(0, 96, 16)
      )
      self.assertEqual(found, wanted * 8 * 16)
    self.assertEqual(parts.sum(), pairs_visited(end_T, 8, 16))

  def test_attention_by_blocks_computes_as_many(self):
    block = 16
    end_T = random_ends(np.random.default_rng(2), 256, padding=20)
    seen_T = np.maximum(end_T, np.arange(1, 257))  # as `packed.attend` does
    visible = blockwise._Range(jnp.asarray(seen_T)[None], None, jnp.int32(0))
    pairs = blockwise._visible_pairs(visible, 256, block)
    self.assertEqual(
      pairs_visited(end_T, block, block), int(pairs.number) * block**2
    )

  def test_splash_computes_as_many(self):
    end_T = random_ends(np.random.default_rng(3), 768, padding=200)
    blocks = roofline.blocks_of(
      compute_config(attention_block=128), 768, "splash"
    )
    seen_T = np.maximum(end_T, np.arange(1, 769))  # as `packed.attend` does
    visible_1NM = reference.visible_blocks(
      jnp.asarray(seen_T)[None], 768, 0, queries=blocks[0], keys=blocks[1]
    )
    info = splash._mask_info(visible_1NM[0], axis=1)
    computed = np.count_nonzero(info.block_mask)
    self.assertEqual(blocks, (128, 128))
    self.assertEqual(pairs_visited(end_T, *blocks), computed * 128**2)
    self.assertLess(computed, 21)  # of those under the diagonal

  def test_blocks_are_those_of_the_kernel(self):
    for length, shards, blocks in (
      (1152, 1, (384, 384)),
      (1024, 4, (256, 512)),
    ):
      kernels = splash._kernels(has_begin=False)
      sizes = splash._block_sizes(kernels, 0, length // shards, length)
      self.assertEqual((sizes.block_q, sizes.block_kv), blocks)
      self.assertEqual(
        roofline.blocks_of(compute_config(), length, "splash", shards), blocks
      )
    for kernel in ("xla", "cudnn"):
      self.assertIsNone(roofline.blocks_of(compute_config(), 1152, kernel))


def _settings(**batch):
  settings = pod_settings("qwen2.5-14b")
  return dataclasses.replace(
    settings, batch=dataclasses.replace(settings.batch, **batch)
  )


FITS = Attempts(prompt=1024, turns=896, num=8)  # 8192 tokens


class LoadTest(parameterized.TestCase):
  def test_of_a_group_that_fills_a_row(self):
    load = learner_load(_settings(), FITS, "splash")
    self.assertEqual(load.tokens, 32 * 8192)
    self.assertEqual(load.computed, load.tokens)
    self.assertEqual(load.of_trajectories, 32 * 8 * 1920)
    self.assertAlmostEqual(load.shared, 1 - 8192 / (8 * 1920))

  def test_splash_visits_less_of_attempts_than_of_the_triangle(self):
    tree = learner_load(_settings(), FITS, "splash")
    rows = learner_load(_settings(sharing=1), FITS, "splash")
    # Of attempts of 1920 tokens, four in a row, 48 pairs of 16 x 16 blocks.
    self.assertEqual(rows.keys_visited, 48 * 512**2 / 8192)
    self.assertLess(tree.keys_visited, 0.6 * (8192 + 512) / 2)
    self.assertGreater(tree.keys_visited, tree.keys_needed)
    plain = learner_load(_settings(), FITS, "xla")
    self.assertEqual(plain.keys_visited, 8192)

  def test_nothing_is_shared_where_nothing_may_be(self):
    load = learner_load(_settings(sharing=1), FITS, "splash")
    self.assertEqual(load.shared, 0)
    self.assertEqual(load.computed, 32 * 4 * 1920)  # four attempts in a row

  def test_without_attempts_rows_are_full_and_share_nothing(self):
    for sharing in (1, 8):
      load = learner_load(_settings(sharing=sharing), None, "splash")
      self.assertEqual(load.shared, 0)
      self.assertEqual(load.computed, 32 * 8192)
      self.assertEqual(load.keys_needed, 4096)
      self.assertEqual(load.keys_visited, (8192 + 512) / 2)

  @parameterized.parameters((1, 1.0), (2, 100 / 68), (4, 58 / 34))
  def test_the_last_shard_of_a_row_sees_most(self, sequence, wanted):
    # Of 16 blocks of queries, the n-th visits n blocks of keys.
    settings = _settings(sharing=1)
    settings = dataclasses.replace(
      settings, mesh={**settings.mesh, "sequence": sequence}
    )
    load = learner_load(settings, None, "splash")
    self.assertAlmostEqual(load.imbalance, wanted)
    self.assertEqual(learner_load(settings, None, "cudnn").imbalance, 1.0)

  def test_branches_see_less_than_the_last_shard_of_one_attempt(self):
    settings = _settings()
    settings = dataclasses.replace(
      settings, mesh={**settings.mesh, "sequence": 4}
    )
    tree = learner_load(settings, FITS, "splash")
    self.assertBetween(tree.imbalance, 1.01, 1.5)

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
  def _read(self, settings=None, prompt=None, turns=None, attempts=None):
    return read_attempts(
      settings or _settings(), prompt=prompt, turns=turns, attempts=attempts
    )

  def test_nothing_given_is_not_known(self):
    self.assertIsNone(self._read())

  def test_attempts_are_those_of_a_group(self):
    self.assertEqual(
      self._read(prompt=100, turns=50),
      Attempts(prompt=100, turns=50, num=_settings().group.size),
    )
    self.assertEqual(self._read(prompt=0, turns=5, attempts=3).num, 3)
    self.assertEqual(self._read(turns=5).prompt, 0)
    self.assertEqual(self._read(prompt=8000, turns=192).length, 8192)

  @parameterized.parameters(
    ({"prompt": 100}, "add --turns"),
    ({"attempts": 4}, "add --turns"),
    ({"prompt": 0}, "add --turns"),
    ({"turns": 9, "attempts": 4}, "--attempts=4 counts only with"),
    ({"prompt": -1, "turns": 9}, "--prompt=-1 must be 0 or more"),
    ({"prompt": 1, "turns": -9}, "--turns=-9 must be 1 or more"),
    ({"turns": 0}, "--turns=0 must be 1 or more"),
    ({"prompt": 1, "turns": 9, "attempts": 0}, "--attempts=0 must be 1"),
    ({"prompt": 8000, "turns": 193}, "8193 tokens.*train.row_length=8192"),
  )
  def test_bad_ones_are_refused(self, flags, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      self._read(**flags)

  def test_attempts_are_no_longer_than_an_episode(self):
    with self.assertRaisesRegex(ConfigError, "episode.max_tokens=8192 allows"):
      self._read(_settings(row_length=16384), prompt=8000, turns=193)


class AdviceTest(parameterized.TestCase):
  def _knobs(self, attempts, **batch):
    deployment = Deployment(learner=parse_slice("v5p-64"), attempts=attempts)
    change = longer_rows(_settings(**batch), deployment)
    return [] if change is None else [change.flags.replace("--config.", "")]

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
