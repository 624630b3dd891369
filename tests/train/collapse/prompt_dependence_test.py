"""Tests of `train.collapse.prompt_dependence`: every pair, scored by itself."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.data.packing import pack
from agentrl_jax.data.records import Trajectory
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.collapse import prompt_dependence
from agentrl_jax.train.collapse.prompt_dependence import (
  MutualInformationConfig,
  PromptDependence,
  comparable,
  first_answers,
)
from agentrl_jax.train.token_logprobs import token_logprobs
from agentrl_jax.train.train_batch import cut
from configs.base import defaults
from tests import many_processes
from tests.data.records import make_group
from tests.reference import prompt_dependence as reference
from tests.rollout import small as engines
from tests.rollout import small_grammars
from tests.settings import COMPUTE
from tests.train import small

ROW = 24
config_of = functools.partial(
  defaults, MutualInformationConfig, "mutual_information", num_answers=8
)


def groups_of(number=6, seed=0):
  """Groups of two tasks; the last has the first one's prompt."""
  rng = np.random.default_rng(seed)
  groups = [
    make_group(rng, id=str(n), task="ab"[n % 2], size=2) for n in range(number)
  ]
  first = groups[0].trajectories[0].turns[0].observation
  last = groups[-1]
  return [
    *groups[:-1],
    dataclasses.replace(
      last,
      trajectories=tuple(
        with_first(t, observation=first) for t in last.trajectories
      ),
    ),
  ]


def with_first(trajectory: Trajectory, **fields) -> Trajectory:
  """The trajectory with another first turn."""
  turn = dataclasses.replace(trajectory.turns[0], **fields)
  return dataclasses.replace(trajectory, turns=(turn, *trajectory.turns[1:]))


def dependence(config, *, sharing=1, policy=None, **changes):
  return PromptDependence(
    policy or Policy(small.MODEL, COMPUTE),
    config,
    batch=small.batch_config(micro_batch=3, row_length=ROW, sharing=sharing),
    temperature=0.9,
    tiles=small.loss_config().tiles,
    **changes,
  )


@functools.cache
def params():
  """A policy whose answers depend on the prompt: its weights are large."""
  made = Policy(small.MODEL, COMPUTE).init(jax.random.key(0))
  return jax.tree.map(lambda x: x * 3, made)


@functools.cache
def logprobs_of_rows():
  """The compiled `token_logprobs` of the policy."""
  policy = Policy(small.MODEL, COMPUTE)
  return jax.jit(
    functools.partial(token_logprobs, policy, temperature=0.9, chunk_size=8)
  )


def score_alone(answer, prompt):
  """log p of one answer after one prompt, in a row of its own."""
  turn = dataclasses.replace(answer.turns[0], observation=prompt)
  rows = pack([dataclasses.replace(answer, turns=(turn,))], row_length=ROW)
  (micro_batch,) = cut(rows, np.zeros(rows.mask.shape), 1)
  logprob_BT, _ = logprobs_of_rows()(params(), micro_batch.batch)
  return float(logprob_BT.sum())


def matrix_of(answers):
  """Every pair of a task by itself, and NaN for the others."""
  return np.array(
    [
      [
        score_alone(answer, other.turns[0].observation)
        if answer.task == other.task
        else np.nan
        for other in answers
      ]
      for answer in answers
    ]
  )


class MeasureTest(parameterized.TestCase):
  def test_every_pair_is_scored_as_by_itself(self):
    self._compare(sharing=8, pairs=5)

  @parameterized.parameters((1, 512), (8, 512))
  @pytest.mark.slow
  def test_every_pair_is_scored_as_by_itself_in_one_batch(self, sharing, pairs):
    self._compare(sharing, pairs)

  def _compare(self, sharing, pairs):
    groups = groups_of()
    answers = first_answers(groups, config_of())
    expected_NN = matrix_of(answers)
    valid_NN = ~np.isnan(expected_NN)
    before = prompt_dependence._PAIRS
    self.addCleanup(setattr, prompt_dependence, "_PAIRS", before)
    prompt_dependence._PAIRS = pairs
    found = dependence(config_of(), sharing=sharing).measure(groups, params())
    expected = reference.mutual_information(expected_NN, valid_NN)
    self.assertGreater(abs(expected["information"]), 0.1)
    for name, key in (("", "information"), ("_bound", "bound")):
      self.assertAlmostEqual(
        found[f"policy/mutual_information{name}"], expected[key], places=4
      )
    by_token = reference.mutual_information(
      expected_NN, valid_NN, [len(a.turns[0].sampled) for a in answers]
    )
    self.assertAlmostEqual(
      found["policy/mutual_information_by_token"],
      by_token["information"],
      places=4,
    )
    for k in (1, 2, 4, 8):
      expected = reference.retrieval_accuracy(expected_NN, valid_NN, k=k)
      for name, key in (("", "accuracy"), ("_by_chance", "chance")):
        self.assertAlmostEqual(
          found[f"policy/prompt_retrieval{name}/top{k}"],
          expected[key],
          places=5,
        )
    for task in "ab":
      of_task = np.array([a.task.name == task for a in answers])
      expected = reference.mutual_information(
        expected_NN, valid_NN & of_task[:, None]
      )
      self.assertAlmostEqual(
        found[f"policy/mutual_information/{task}"],
        expected["information"],
        places=4,
      )

  def test_answers_that_ignore_the_prompt(self):
    """Of params that are 0, every token is as likely after any prompt."""
    flat = jax.tree.map(lambda x: x * 0, params())
    found = dependence(config_of()).measure(groups_of(), flat)
    self.assertAlmostEqual(found["policy/mutual_information"], 0, places=5)
    for k in (1, 2, 4, 8):
      self.assertAlmostEqual(
        found[f"policy/prompt_retrieval/top{k}"],
        found[f"policy/prompt_retrieval_by_chance/top{k}"],
        places=5,
      )

  def test_one_answer_of_a_task_is_not_measured(self):
    for number in (0, 1, 2):
      groups = groups_of(3)[:number]
      self.assertEqual(dependence(config_of()).measure(groups, params()), {})

  # Trees come in few lengths: up to `sharing` times the row's, by doubling.
  @parameterized.parameters((1, 1), (4, 3))
  @pytest.mark.slow
  def test_other_batches_have_the_same_shapes(self, sharing, num_shapes):
    measured = dependence(config_of(), sharing=sharing)
    measured.measure(groups_of(), params())
    size = prompt_dependence._measure._cache_size()
    for number in (3, 4, 5, 7):
      measured.measure(groups_of(number, seed=number), params())
    self.assertLessEqual(measured._logprobs._cache_size(), num_shapes)
    self.assertEqual(prompt_dependence._measure._cache_size(), size)

  @pytest.mark.slow
  def test_several_processes_and_a_mesh_measure_the_same(self):
    found = many_processes.run("tests.train.sharded.process_dependence")
    self.assertEqual(set(found["alone"]), set(found["together"]))
    for name, value in found["alone"].items():
      self.assertAlmostEqual(value, found["together"][name], places=4)


class GrammarTest(absltest.TestCase):
  def test_masks_are_the_answers_own_after_every_prompt(self):
    grammars = small_grammars.grammars()
    rng = np.random.default_rng(0)
    groups = []
    for n in range(5):
      group = make_group(rng, id=str(n), size=1)
      (trajectory,) = group.trajectories
      text = ("yes", "no", "maybe", "12", "345")[n]
      sampled = [
        *small_grammars.tokenizer().encode(text).ids,
        small_grammars.STOP,
      ]
      size = len(sampled)
      turn = dataclasses.replace(
        trajectory.turns[0],
        sampled=np.array(sampled, np.int32),
        behavior_logprob=np.zeros(size, np.float32),
        raw_logprob=np.zeros(size, np.float32),
        version=np.zeros(size, np.int32),
        grammar=small_grammars.GRAMMARS["choice" if n < 3 else "digits"],
      )
      trajectory = dataclasses.replace(trajectory, turns=(turn,))
      groups.append(dataclasses.replace(group, trajectories=(trajectory,)))
    flat = jax.tree.map(lambda x: x * 0, engines.params(10))
    config = config_of(max_tokens=2)
    scored = []
    for sharing in (1, 8):
      measured = dependence(
        config,
        sharing=sharing,
        policy=engines.policy(),
        make_grammars=lambda: grammars,
      )
      answers = first_answers(groups, config)
      scored.append(measured._score(answers, comparable(answers, ROW), flat))
      # All allowed tokens are as likely, whatever the prompt is.
      wanted = [
        -sum(
          np.log(sum(int(word).bit_count() for word in mask))
          for mask in grammars.masks(
            answer.turns[0].grammar, answer.turns[0].sampled
          )
        )
        for answer in answers
      ]
      for column in scored[-1].T:
        np.testing.assert_allclose(column, wanted, rtol=1e-5)
    self.assertGreater(len(set(np.round(wanted, 3))), 1)


class FirstAnswersTest(absltest.TestCase):
  def test_one_of_each_group_and_no_prompt_twice(self):
    groups = groups_of()
    answers = first_answers(groups, config_of())
    self.assertEqual([a.group_id for a in answers], list("01234"))
    for answer, group in zip(answers, groups, strict=False):
      (turn,) = answer.turns
      first = group.trajectories[0].turns[0]
      np.testing.assert_array_equal(turn.sampled, first.sampled)
      np.testing.assert_array_equal(turn.observation, first.observation)

  def test_a_number_of_answers_and_of_their_tokens(self):
    answers = first_answers(groups_of(), config_of(num_answers=3, max_tokens=2))
    self.assertLen(answers, 3)
    self.assertEqual(max(len(a.turns[0].sampled) for a in answers), 2)

  def test_other_policy_slots_and_episodes_without_turns_are_left_out(self):
    first, second, third, *_ = groups_of()
    old, new = first.trajectories
    first = dataclasses.replace(
      first, trajectories=(with_first(old, policy_slot=1), new)
    )
    second = dataclasses.replace(
      second,
      trajectories=tuple(
        with_first(t, policy_slot=1) for t in second.trajectories
      ),
    )
    third = dataclasses.replace(
      third,
      trajectories=tuple(
        dataclasses.replace(t, turns=()) for t in third.trajectories
      ),
    )
    answers = first_answers([first, second, third], config_of())
    self.assertEqual([(a.group_id, a.attempt) for a in answers], [("0", 1)])

  def test_pairs_of_a_task_that_fit_in_a_row(self):
    answers = first_answers(groups_of(), config_of())
    lengths = [
      (len(a.turns[0].observation), len(a.turns[0].sampled)) for a in answers
    ]
    row = max(sum(pair) for pair in lengths) - 1
    valid_NN = comparable(answers, row)
    dropped = 0
    for i, (_, sampled) in enumerate(lengths):
      for j, (observed, _) in enumerate(lengths):
        fits = observed + sampled <= row
        self.assertEqual(valid_NN[i, j], fits and (i - j) % 2 == 0)
        dropped += not fits
    self.assertBetween(dropped, 1, len(answers))
    # A task that is alone in the batch is compared with nothing.
    self.assertFalse(comparable(answers[:3], row)[1].any())


class ConfigTest(parameterized.TestCase):
  @parameterized.parameters(
    ("every", -1), ("num_answers", 1), ("max_tokens", 0)
  )
  def test_refusals(self, name, value):
    with self.assertRaisesRegex(
      ConfigError, rf"mutual_information.{name}={value} must be .* or more"
    ):
      config_of(**{name: value})

  @parameterized.parameters((0, 1, []), (5, 1, [0, 5, 10]), (5, 2, [0, 6, 10]))
  def test_when_it_is_due(self, every, stride, versions):
    config = config_of(every=every)
    self.assertEqual(
      [v for v in range(0, 12, stride) if config.is_due(v, stride)], versions
    )
