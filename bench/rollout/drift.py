"""Differences between the sampler's log-probabilities and the learner's.

W-tiny with random params, 80 answers of 128 tokens at temperature 1 (10,240
tokens), more requests than slots, so that slots are reused and prompts come in
chunks. The learner's are those of its own pass over the packed rows.
"""

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.data.batch import Batch
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.train.token_logprobs import token_logprobs
from bench import tiny
from bench.line_peer import Pythons
from bench.rollout.served import make_driver

REQUESTS, SLOTS, PROMPT, ANSWER = 80, 16, 32, 128


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  del pairs, pythons  # no times, no peers
  policy, _ = tiny.make_learner()
  params = policy.init(jax.random.key(0))
  driver = make_driver(
    policy, [params], slots=(SLOTS,), context=PROMPT + ANSWER
  )
  rng = np.random.default_rng(0)
  shape = (REQUESTS, PROMPT)
  prompts = rng.integers(0, tiny.MODEL.vocab_size, shape).astype(np.int32)
  asked = [
    driver.submit(prompt, SamplingParams(max_tokens=ANSWER, seed=n))
    for n, prompt in enumerate(prompts)
  ]
  driver.run_until_idle()
  sampled = np.array([each.result().sampled for each in asked])
  behavior = np.array([each.result().behavior_logprob for each in asked])
  learned = np.concatenate(
    [
      _learned(policy, params, rows)
      for rows in np.split(np.concatenate([prompts, sampled], axis=1), 10)
    ]
  )
  apart = np.abs(learned - behavior)
  return {
    "work": {"model": tiny.work_of(tiny.MODEL), "tokens": sampled.size},
    "mean_of_differences": float(apart.mean()),
    "largest_difference": float(apart.max()),
    "mean_log_ratio": float((learned - behavior).mean()),
  }


def _learned(policy, params, token_BT: np.ndarray) -> np.ndarray:
  rows, length = token_BT.shape
  position_BT = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
  zeros = np.zeros(token_BT.shape, np.float32)
  batch = Batch(
    token=token_BT,
    position=position_BT,
    segment=np.ones_like(token_BT),
    mask=position_BT >= PROMPT,
    behavior_logprob=zeros,
    trajectory=np.zeros_like(token_BT),
    turn=np.zeros_like(token_BT),
    policy_slot=np.zeros_like(token_BT),
  )
  compute = jax.jit(
    lambda params, batch: token_logprobs(
      policy, params, batch, temperature=1.0, chunk_size=256
    )[0]
  )
  found = compute(params, jax.tree.map(jnp.asarray, batch))
  return np.asarray(found)[:, PROMPT:]
