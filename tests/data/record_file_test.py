"""Groups are read back bit for bit; damaged files are refused."""

import dataclasses
import gzip
import json
import pathlib
import re
import tempfile

import numpy as np
from absl.testing import absltest

from agentrl_jax.data.record_file import (
  learned_from_json,
  read_groups,
  write_groups,
)
from agentrl_jax.data.records import LearnedTurn, Status
from agentrl_jax.errors import CheckpointError
from tests.data.records import make_group, with_experts


class RecordFileTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "groups.jsonl.gz"
    rng = np.random.default_rng(0)
    self.groups = [
      make_group(rng, id="1", status=Status.AGENT_CONTEXT_LIMIT),
      make_group(rng, id="2", task="b", size=1, turns=0),
      with_experts(make_group(rng, id="3")),
    ]

  def test_round_trip(self):
    write_groups(self.path, self.groups)
    for found, wanted in zip(read_groups(self.path), self.groups, strict=True):
      self.assertEqual((found.id, found.task), (wanted.id, wanted.task))
      self.assertEqual(found.num_masked, wanted.num_masked)
      for a, b in zip(found.trajectories, wanted.trajectories, strict=True):
        self._assert_same_trajectory(a, b)

  def test_half_a_surrogate_pair_in_a_file(self):
    (member, *_), half = self.groups[0].trajectories, "\ud83d"
    call = {"function": {"name": half, "arguments": f'{{"a": "{half}"}}'}}
    said = {"role": "assistant", "content": half, "tool_calls": [call]}
    odd = dataclasses.replace(member, transcript=(said,))
    group = dataclasses.replace(self.groups[0], trajectories=(odd,))
    write_groups(self.path, [group])
    (found,) = read_groups(self.path)
    text = json.dumps(found.trajectories[0].transcript, ensure_ascii=False)
    self.assertEqual(text.encode().decode().count("\ufffd"), 3)

  def test_what_the_learner_computed_stays_beside_it(self):
    def learned(trajectory):
      if trajectory.attempt:
        return None
      return [
        LearnedTurn(logprob=-turn.raw_logprob, advantage=turn.behavior_logprob)
        for turn in trajectory.turns
      ]

    write_groups(self.path, self.groups[:1], learned)
    (found,) = read_groups(self.path)  # as without
    with gzip.open(self.path, "rt") as file:
      (body,) = map(json.loads, file)
    members = zip(found.trajectories, body["trajectories"], strict=True)
    for trajectory, member in members:
      turns, wanted = learned_from_json(member), learned(trajectory)
      if wanted is None:
        self.assertIsNone(turns)
        continue
      for turn, other in zip(turns, wanted, strict=True):
        np.testing.assert_array_equal(turn.logprob, other.logprob)
        np.testing.assert_array_equal(turn.advantage, other.advantage)

  def _assert_same_trajectory(self, a, b):
    for field in dataclasses.fields(a):
      if field.name != "turns":
        self.assertEqual(getattr(a, field.name), getattr(b, field.name))
    for x, y in zip(a.turns, b.turns, strict=True):
      for field in dataclasses.fields(x):
        np.testing.assert_array_equal(
          getattr(x, field.name), getattr(y, field.name)
        )
        self.assertIs(
          type(getattr(x, field.name)), type(getattr(y, field.name))
        )

  def test_replaces_in_one_step(self):
    write_groups(self.path, self.groups)
    write_groups(self.path, self.groups[:1])
    self.assertLen(list(read_groups(self.path)), 1)
    self.assertLen(list(self.path.parent.iterdir()), 1)

  def test_a_file_cut_off(self):
    write_groups(self.path, self.groups)
    whole = self.path.read_bytes()
    self.path.write_bytes(whole[: len(whole) // 2])
    with self.assertRaisesRegex(CheckpointError, "groups.jsonl.gz"):
      list(read_groups(self.path))

  def test_a_reward_that_is_not_finite(self):
    write_groups(self.path, self.groups)
    text = gzip.decompress(self.path.read_bytes()).decode()
    text = re.sub(r'"reward": [0-9.]+', '"reward": NaN', text, count=1)
    self.path.write_bytes(gzip.compress(text.encode()))
    with self.assertRaisesRegex(CheckpointError, "reward=nan"):
      list(read_groups(self.path))

  def test_another_kind_of_file(self):
    self.path.write_text("hello")
    with self.assertRaises(CheckpointError):
      list(read_groups(self.path))
