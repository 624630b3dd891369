"""Tests of `losses.prompt_dependence`: bounds, ties, entries left out."""

import functools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import prompt_dependence as library
from tests.reference import prompt_dependence as reference

N = 6
few_examples = hypothesis.settings(
  deadline=None, database=None, max_examples=30
)
information = jax.jit(library.mutual_information)
retrieval = jax.jit(library.retrieval_accuracy, static_argnames="k")


def _matrix(seed: int, scale: float = 3.0):
  """(log-probabilities, valid, tokens): NaN off the mask, and some ties."""
  rng = np.random.default_rng(seed)
  logprob_NN = -np.round(rng.gamma(2, scale, size=(N, N)) * 4) / 4
  valid_NN = rng.random((N, N)) < 0.8
  valid_NN[rng.integers(N)] = False
  num_tokens_N = rng.integers(1, 20, size=N)
  return np.where(valid_NN, logprob_NN, np.nan), valid_NN, num_tokens_N


def _values(means):
  return {name: float(mean.value()) for name, mean in means.items()}


def _all(shape=(N, N)):
  return jnp.ones(shape, bool)


class MutualInformationTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999), scale=st.floats(0.1, 100))
  def test_never_above_the_bound(self, seed, scale):
    logprob_NN, valid_NN, num_tokens_N = _matrix(seed, scale)
    for tokens in (None, num_tokens_N):
      found = _values(information(logprob_NN, valid_NN, num_tokens_N=tokens))
      self.assertLessEqual(found["information"], found["bound"] + 1e-4)
      self.assertLessEqual(found["bound"], math.log(N) + 1e-6)

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_no_prompt_no_information(self, seed):
    logprob_N1 = np.random.default_rng(seed).normal(-40, 9, size=(N, 1))
    logprob_NN = jnp.asarray(np.broadcast_to(logprob_N1, (N, N)), jnp.float32)
    found = _values(information(logprob_NN, _all()))
    self.assertAlmostEqual(found["information"], 0, delta=1e-4)

  def test_answers_possible_under_their_own_prompt_reach_the_bound(self):
    for apart in (-np.inf, -1e4):
      logprob_NN = np.full((N, N), apart)
      np.fill_diagonal(logprob_NN, np.linspace(-90, -1, N))
      found = _values(information(logprob_NN, _all()))
      self.assertAlmostEqual(found["information"], math.log(N), delta=1e-5)
      self.assertAlmostEqual(found["bound"], math.log(N), delta=1e-6)

  def test_two_halves_that_tell_one_bit(self):
    half_NN = np.kron(np.eye(2), np.ones((3, 3)))
    found = information(np.where(half_NN, -7.0, -np.inf), _all())
    self.assertAlmostEqual(
      float(found["information"].value()), math.log(2), delta=1e-6
    )

  def test_is_a_mutual_information(self):
    """Over all answers by their probability, it is I of the two variables."""
    rng = np.random.default_rng(0)
    conditional_XZ = rng.dirichlet(np.ones(3), size=4)
    marginal_Z = conditional_XZ.mean(axis=0)
    ratio_XZ = np.log(conditional_XZ / marginal_Z)
    expected = (conditional_XZ * ratio_XZ).mean(axis=0).sum()
    total = 0.0
    for z in np.ndindex(3, 3, 3, 3):  # an answer to each prompt
      weight = conditional_XZ[np.arange(4), list(z)].prod()
      logprob_NN = np.log(conditional_XZ[:, list(z)].T)
      found = information(logprob_NN, _all((4, 4)))["information"]
      total += weight * float(found.value())
    self.assertAlmostEqual(total, expected, delta=1e-5)

  def test_masks_of_two_tasks_add_up(self):
    logprob_NN = _matrix(1)[0]
    logprob_NN = np.where(np.isnan(logprob_NN), -3.0, logprob_NN)
    task_N = np.arange(N) % 2
    same_NN = task_N[:, None] == task_N
    together = information(logprob_NN, same_NN)
    parts = [
      information(logprob_NN, same_NN & (task_N == n)[:, None]) for n in (0, 1)
    ]
    for n, part in enumerate(parts):
      alone = logprob_NN[n::2, n::2]
      expected = reference.mutual_information(alone, np.ones((3, 3), bool))
      self.assertAlmostEqual(
        _values(part)["information"], expected["information"], delta=1e-5
      )
    for name, mean in together.items():
      added = parts[0][name] + parts[1][name]
      self.assertAlmostEqual(
        float(mean.value()), float(added.value()), delta=1e-6
      )


class RetrievalAccuracyTest(parameterized.TestCase):
  @parameterized.parameters(1, 2, 4, 8)
  def test_ties_are_chance(self, k):
    found = _values(retrieval(jnp.zeros((N, N)), _all(), k=k))
    self.assertAlmostEqual(found["accuracy"], min(k / N, 1), delta=1e-6)
    self.assertAlmostEqual(found["chance"], min(k / N, 1), delta=1e-6)

  def test_the_likeliest_is_found_and_the_others_in_turn(self):
    # Answer i has i prompts above its own.
    logprob_NN = np.where(np.tri(N, k=-1), -1.0, -3.0)
    np.fill_diagonal(logprob_NN, -2.0)
    for k in range(1, N + 1):
      found = _values(retrieval(logprob_NN, _all(), k=k))
      self.assertAlmostEqual(found["accuracy"], k / N, delta=1e-6)

  def test_nan_is_no_success(self):
    logprob_NN = jnp.zeros((N, N)).at[0, 3].set(jnp.nan)
    found = _values(retrieval(logprob_NN, _all(), k=1))
    self.assertTrue(math.isnan(found["accuracy"]))

  def test_refusals(self):
    with self.assertRaisesRegex(ValueError, "k=0 must be 1 or more"):
      library.retrieval_accuracy(jnp.zeros((N, N)), _all(), k=0)
    for function in (
      library.mutual_information,
      functools.partial(library.retrieval_accuracy, k=1),
    ):
      with self.assertRaises(AssertionError):
        function(jnp.zeros((N, 2)), _all((N, 2)))
