"""Reused keys and values change no answer."""

import dataclasses

import jax
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from tests.model.policy_test import GEMMA_4, GEMMA_4_E2B
from tests.rollout import small
from tests.settings import compute_config

FEW_PAGES = dict(page_size=8, cache_tokens=(176,))


def driver_of(*, slots=2, **changes):
  return LocalDriver(small.engine_of((10,), slots=(slots,), **changes))


def ask(driver, *requests):
  futures = [driver.submit(prompt, spec) for prompt, spec in requests]
  driver.run_until_idle()
  driver.engine.check_invariants()
  return [future.result(0) for future in futures]


def ask_alone(driver, *requests):
  """Asks one after another, each in an empty cache."""
  answers = []
  for request in requests:
    driver.engine.reset()
    answers += ask(driver, request)
  return answers


def play(driver, *, seed, swap_at=(), ask=ask):
  """Plays conversations of different lengths, of which some are alike."""
  rng, answers = np.random.default_rng(seed), []
  prompts = [small.prompt_of(i % 3, 20 + 3 * (i % 3)) for i in range(7)]
  for round_ in range(12):
    if round_ in swap_at:
      driver.engine.versions.publish(small.params(round_), round_)
    chosen = rng.choice(len(prompts), rng.integers(1, 5), replace=False)
    requests = [
      (prompts[i], spec_of(round_ * 100 + int(i), int(rng.integers(1, 9))))
      for i in chosen
    ]
    answered = ask(driver, *requests)
    for i, answer in zip(chosen, answered, strict=True):
      observed = small.prompt_of(round_, int(rng.integers(1, 7)))
      longer = small.conversation(prompts[i], answer, observed)
      prompts[i] = longer if len(longer) < 80 else prompts[i][:20]
    answers += answered
  return answers


def spec_of(seed, max_tokens):
  temperature = (0.0, 1.0)[seed % 2]
  return SamplingParams(
    seed=seed, max_tokens=max_tokens, temperature=temperature
  )


class ReuseTest(parameterized.TestCase):
  @parameterized.product(kind=[*small.KINDS], pages=({}, FEW_PAGES))
  def test_random_conversations_are_answered_as_without_reuse(
    self, kind, pages
  ):
    self.enterContext(small.kind_of(kind))
    plain, driver = driver_of(), driver_of(**pages)
    answers = play(driver, seed=1, swap_at=(5, 8))
    alone = play(plain, seed=1, swap_at=(5, 8), ask=ask_alone)
    for answer, other in zip(answers, alone, strict=True):
      small.assert_same(answer, other)
    fed = driver.engine.stats().num_prefilled[0]
    self.assertLess(fed, 0.8 * plain.engine.stats().num_prefilled[0])
    self.assertEqual(plain.engine.stats().num_reused, (0,))


class StatesTest(parameterized.TestCase):
  """A model whose layers keep states: a prefix is shared where one was kept."""

  def setUp(self):
    super().setUp()
    self.enterContext(small.kind_of("states"))

  def test_attempts_and_turns_begin_from_what_was_kept(self):
    driver, prompt = driver_of(), small.prompt_of(0, 40).tolist()
    answers = ask(driver, *[(prompt, spec_of(seed, 8)) for seed in range(4)])
    self.assertEqual([x.num_reused for x in answers], [0, 39, 39, 39])
    prompt += answers[2].sampled.tolist()
    row = np.array([*prompt, 5, 6, 7])
    (answer,) = ask(driver, (row, spec_of(1, 8)))
    self.assertEqual(answer.num_reused, len(prompt) - 1)
    logits = small.teacher_logits(10, np.concatenate([row, answer.sampled]))
    logits = logits[len(row) - 1 : -1]
    errors = small.logprob_errors(answer, spec_of(1, 8), logits)
    self.assertLess(errors.max(), 1e-4)

  def test_drafts_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "engine.draft_tokens=2"):
      driver_of(draft_tokens=2)


class WindowsTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("plain", {}),
    ("kernel", {"context": 128, "page_size": 128}),
    ("few_pages", FEW_PAGES),
    ("drafts", {"draft_tokens": 3, "draft_cost": 0.01}),
    ("two_kinds", {"page_size": 4}, GEMMA_4),
    ("shared", {"page_size": 4}, GEMMA_4_E2B),
  )
  @pytest.mark.slow
  def test_layers_see_a_window_and_sinks(self, changes, kinds=None):
    """Conversations grow past the window, and their prompts are reused."""
    compute = compute_config(
      cache_attention="ragged" if "context" in changes else "auto"
    )
    model = dataclasses.replace(
      small.policy().config,
      **{
        "num_layers": 3,
        "window": 7,
        "window_period": 2,
        "local_rope_theta": 50.0,
        "sinks": True,
        **(kinds or {}),
      },
    )
    policy, store = Policy(model, compute), ServedWeights(1)
    params = small.attentive(policy.init(jax.random.key(0)))
    for stack in model.stacks:
      params[stack]["attention"]["sinks"] += 1.0
    store.publish(params, 0)
    config = small.engine_of((10,), slots=(2,), **changes).config
    driver = LocalDriver(RolloutEngine(policy, config, store))
    prompt: list[int] = []
    for turn in range(4):
      prompt += small.prompt_of(turn, 9).tolist()
      (answer, other) = ask(
        driver, (prompt, spec_of(turn, 8)), (prompt[:-2], spec_of(turn, 5))
      )
      for said, asked in ((answer, prompt), (other, prompt[:-2])):
        row = np.concatenate([asked, said.sampled])[None]
        position = np.arange(row.shape[1])[None]
        logits = policy.logits(params, row, position, position * 0 + 1)
        logits = np.asarray(logits[0, len(asked) - 1 : -1], np.float64)
        errors = small.logprob_errors(said, spec_of(turn, 8), logits)
        self.assertLess(errors.max(), 1e-4)
      prompt += answer.sampled.tolist()
