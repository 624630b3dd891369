"""The learner's values of trained tokens, against the policy alone."""

import jax
import numpy as np
from absl.testing import parameterized

from agentrl_jax.data.batch import Batch
from agentrl_jax.data.packing import pack
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.advantages import advantages, make_arrays
from agentrl_jax.train.compared import LearnedTurns
from agentrl_jax.train.token_logprobs import token_logprobs
from tests.settings import COMPUTE
from tests.train import small

POLICY = Policy(small.MODEL, COMPUTE)


@jax.jit
def _score(params, batch):
  return token_logprobs(
    POLICY, params, batch, temperature=0.9, **small.loss_config().tiles
  )[0]


def alone(params, trajectory):
  """The trajectory's log-probabilities by turn, in a row of its own."""
  rows = pack([trajectory], row_length=48)
  logprob_BT = np.asarray(_score(params, Batch(**rows.arrays())))
  return [
    logprob_BT[rows.mask & (rows.turn == u)]
    for u in range(len(trajectory.turns))
  ]


def all_of(groups):
  return [t for group in groups for t in group.trajectories]


class LearnedTurnsTest(parameterized.TestCase):
  @parameterized.parameters(1, 2)
  def test_are_those_of_the_policy_before_the_update(self, sharing):
    groups = small.make_groups()
    builder = small.make_batch_builder(micro_batch=2, sharing=sharing)
    _, learner = small.make_learner()
    params = small.params_of()
    batches, _ = builder.build(groups, params)
    learned = builder.learned_turns
    learner.update(learner.init(params), batches, on_tokens=learned.add)
    config = small.advantage_config()
    value_NU, *_ = advantages(
      make_arrays(groups, small.TASK_IDS, config), num_tasks=2, config=config
    )
    num_computed = 0
    for trajectory, value_U in zip(all_of(groups), value_NU, strict=False):
      turns = learned.of(trajectory)
      if turns is None:  # it has no signal
        self.assertFalse(np.any(value_U))
        continue
      num_computed += 1
      self.assertLen(turns, len(trajectory.turns))
      for u, (turn, wanted) in enumerate(
        zip(turns, alone(params, trajectory), strict=True)
      ):
        np.testing.assert_allclose(turn.logprob, wanted, atol=2e-6)
        np.testing.assert_array_equal(turn.advantage, value_U[u])
        self.assertLen(turn.advantage, len(trajectory.turns[u].sampled))
    self.assertGreater(num_computed, 10)

  def test_of_several_updates_are_those_that_each_started_from(self):
    groups = small.make_groups()
    builder = small.make_batch_builder(micro_batch=2)
    _, learner = small.make_learner()
    first = small.params_of()
    batches, _ = builder.build(groups, first)
    learned, state = builder.learned_turns, learner.init(first)
    state, _ = learner.update(
      state, batches[::2], None, lambda n, x: learned.add(2 * n, x)
    )
    second = jax.tree.map(np.array, state.params)
    learner.update(
      state, batches[1::2], None, lambda n, x: learned.add(2 * n + 1, x)
    )
    started_from = [0, 0]
    for trajectory in all_of(groups):
      turns = learned.of(trajectory)
      if turns is None:
        continue
      fits = [
        all(
          np.allclose(turn.logprob, wanted, atol=2e-6)
          for turn, wanted in zip(turns, alone(params, trajectory), strict=True)
        )
        for params in (first, second)
      ]
      self.assertEqual(sum(fits), 1)
      started_from[fits.index(True)] += 1
    self.assertGreater(min(started_from), 3)

  def test_trajectories_that_were_not_computed_have_no_turns(self):
    groups = small.make_groups()
    builder = small.make_batch_builder()
    builder.build(groups, None)
    (trajectory, *_) = all_of(groups)
    # Nothing was trained on, or another batch was.
    self.assertIsNone(builder.learned_turns.of(trajectory))
    self.assertIsNone(LearnedTurns().of(trajectory))
    (other, *_) = all_of(small.make_groups())
    self.assertIsNone(builder.learned_turns.of(other))
