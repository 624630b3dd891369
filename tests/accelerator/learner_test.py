"""Updates and answers on this process's devices; weights and rows are random.

On a TPU of Qwen3-0.6B, elsewhere of the smallest model.
"""

import dataclasses
import os
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.data.batch import Batch
from agentrl_jax.model import sharding
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.token_logprobs import token_logprobs
from agentrl_jax.train.weights.publish import Publisher
from configs import pod
from launch.config.settings import read_settings
from launch.planning import programs
from launch.planning.chips import GIB, parse_slice
from launch.planning.compiler.collectives import bytes_by_kind
from launch.planning.compiler.compiled import compile_program
from launch.planning.study import Deployment, Planner, without_devices
from launch.processes.child import Child
from launch.run.reinforcement import make_learner
from tests.launch import tiny

pytestmark = [pytest.mark.accelerator, pytest.mark.slow]

SLICE = os.environ.get("AGENTRL_SLICE", "")
# Of the drift between the engine's log-probabilities and the learner's, in
# nats per token: bfloat16 is off by 0.01 to 0.02.
MOST_DRIFT = 0.05


def small_settings():
  """A config for all devices, all of them `fsdp`."""
  number = jax.device_count()
  if jax.default_backend() == "tpu":
    config, length, slots = pod.get_config("qwen3-0.6b"), 2048, 32
  else:
    config, length, slots = tiny.get_config(), 256, 4
  config.cross_policy.update(policy_slots=("fresh",), weights=(1.0,))
  config.mesh.update(data=1, fsdp=number)
  config.train.update(row_length=length, micro_batch=number, sharing=1)
  config.sampling.calls = "free"
  config.episode.max_tokens = length
  config.engine.update(
    slots=(slots,),
    context=length,
    lengths=(),
    prefill_chunks=(64,),
    num_slot_sizes=1,
    cache_tokens=(),
  )
  return read_settings(config)


def make(settings):
  policy = programs.learner_policy(settings, sharding.make_mesh(settings.mesh))
  return policy, make_learner(settings, policy, steps=programs.STEPS)


def random_params(policy, seed):
  where = sharding.param_shardings(policy.abstract_params(), policy.mesh)
  return jax.jit(policy.init, out_shardings=where)(jax.random.key(seed))


def rows_of(token_BT, zeros):
  """A batch of these rows, of which all tokens but the first count."""
  position_BT = np.tile(
    np.arange(token_BT.shape[1], dtype=np.int32), (len(token_BT), 1)
  )
  row_BT = np.broadcast_to(np.arange(len(token_BT))[:, None], token_BT.shape)
  return dataclasses.replace(
    zeros,
    token=token_BT,
    position=position_BT,
    segment=np.ones_like(token_BT),
    mask=position_BT > 0,
    trajectory=row_BT.astype(np.int32),
  )


def timed_updates(settings):
  """Returns the median ms of an update, and what the first one reports."""
  policy, learner = make(settings)
  zeros = jax.tree.map(
    lambda leaf: np.zeros(leaf.shape, leaf.dtype),
    programs.abstract_batch(settings, learner.mesh),
  )
  rng, shape = np.random.default_rng(0), zeros.batch.token.shape
  batch = rows_of(
    rng.integers(0, settings.model.vocab_size, shape, np.int32), zeros.batch
  )
  usual = np.where(batch.mask, -np.log(settings.model.vocab_size), 0)
  micro_batch = dataclasses.replace(
    zeros,
    batch=dataclasses.replace(batch, behavior_logprob=usual.astype(np.float32)),
    advantage=rng.standard_normal(shape).astype(np.float32) * batch.mask,
  )
  state, times, first = learner.init(random_params(policy, 0)), [], {}
  for _ in range(6):
    started = time.perf_counter()
    state, numbers = learner.update(state, [micro_batch])
    times.append(1e3 * (time.perf_counter() - started))
    first = first or numbers
  return statistics.median(times[1:]), first


def test_options_of_the_compiler_change_no_update(record_property):
  settings, found = small_settings(), {}
  for options in ("auto", "none"):
    compute = dataclasses.replace(settings.compute, compiler_options=options)
    changed = dataclasses.replace(settings, compute=compute)
    took_ms, found[options] = timed_updates(changed)
    record_property(f"update_ms_{options}", took_ms)
  for name in ("loss", "gradient_norm"):
    np.testing.assert_allclose(
      found["auto"][name], found["none"][name], rtol=0.01, atol=1e-4
    )


def planned(settings, slice_name):
  """Bound in ms, and bytes of the gradient, by the plan; without devices."""
  without_devices()
  planner = Planner(Deployment(learner=parse_slice(slice_name)))
  gradient, apply = planner.study(settings, ("learner",))
  bound_ms = 1e3 * (gradient.roofline.step_s + apply.roofline.step_s)
  return bound_ms, gradient.compiled.wanted, sum(gradient.received.values())


@pytest.mark.skipif(not SLICE, reason="AGENTRL_SLICE names no slice to plan")
def test_an_update_is_what_the_plan_says(record_property):
  """Its program takes and exchanges as much, and is no faster than bound."""
  settings, child = small_settings(), Child()
  bound_ms, size, received = child.call(
    planned, settings, SLICE, deadline_s=300
  )
  child.close()
  took_ms, _ = timed_updates(settings)
  record_property("update_ms", took_ms)
  record_property("of_bound", bound_ms / took_ms)
  assert bound_ms < took_ms / 0.95
  mesh = sharding.make_mesh(settings.mesh)
  gradient, _ = programs.learner_programs(settings, mesh)
  compiled = compile_program(
    gradient.trace(),
    unknown_turns=gradient.unknown_turns,
    num_devices=mesh.size,
  )
  here = compiled.wanted, sum(bytes_by_kind(compiled.exchanges).values())
  record_property("program_gib", compiled.wanted / GIB)
  np.testing.assert_allclose(here, (size, received), rtol=0.02)


class Answers:
  """Greedy answers to as many prompts as there are slots."""

  def __init__(self, settings, policy):
    versions = ServedWeights(1)
    self.driver = LocalDriver(RolloutEngine(policy, settings.engine, versions))
    self.publisher = Publisher(policy, versions)
    self.policy = policy
    self.num_tokens = 128
    shape = settings.engine.slots[0], 128
    rng = np.random.default_rng(0)
    self.prompts = rng.integers(0, settings.model.vocab_size, shape, np.int32)

  def ask(self):
    sampling = SamplingParams(temperature=0.0, max_tokens=self.num_tokens)
    with self.driver.paused():
      return [self.driver.submit(row, sampling) for row in self.prompts]

  def complete(self, asked=()):
    asked = asked or self.ask()
    self.driver.run_until_idle()
    return [each.result() for each in asked]

  def drift(self, done, params):
    """Mean distance of log-probabilities from the learner's, in nats."""
    sampled = np.stack([each.sampled for each in done])
    token_BT = np.concatenate([self.prompts, sampled], axis=1)
    zero = np.zeros_like(token_BT)
    zeros = Batch(
      zero, zero, zero, zero > 0, zero.astype(np.float32), zero, zero, zero
    )
    logprob_BT, _ = jax.jit(
      lambda params, batch: token_logprobs(
        self.policy, params, batch, temperature=1.0, chunk_size=0
      )
    )(jax.tree.map(jnp.asarray, params), rows_of(token_BT, zeros))
    ours = np.asarray(logprob_BT)[:, -self.num_tokens :]
    theirs = np.stack([each.raw_logprob for each in done])
    return float(np.mean(np.abs(ours - theirs)))


def test_answers_after_a_swap_are_by_the_new_weights(record_property):
  settings = small_settings()
  policy, _ = make(settings)
  answers = Answers(settings, policy)
  old, new = (random_params(policy, seed) for seed in (0, 1))
  answers.publisher.publish(old, 0)
  answers.complete()  # compiles
  started = time.perf_counter()
  answers.complete()
  took_ms = 1e3 * (time.perf_counter() - started)
  record_property("decode_step_ms", took_ms / answers.num_tokens)
  sampled = sum(answers.driver.engine.stats().num_sampled)
  asked = answers.ask()
  while sum(answers.driver.engine.stats().num_sampled) == sampled:
    answers.driver.step()
  answers.publisher.publish(new, 1)
  swapped = answers.complete(asked)
  assert {int(v) for each in swapped for v in each.version} == {0, 1}
  done = answers.complete()
  assert {int(v) for each in done for v in each.version} == {1}
  record_property("drift_nats", answers.drift(done, new))
  assert answers.drift(done, new) <= MOST_DRIFT < answers.drift(done, old)
