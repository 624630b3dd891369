"""Measures an update and answers on this process's devices, beside the plan.

Each function returns figures of one config; weights and rows are random.
"""

import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh

from agentrl_jax.data.batch import Batch
from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.learner import Learner
from agentrl_jax.train.token_logprobs import token_logprobs
from agentrl_jax.train.train_batch import TrainBatch
from agentrl_jax.train.weights.publish import Publisher
from configs import pod
from launch.config.settings import Settings, read_settings
from launch.planning import programs
from launch.planning.chips import GIB, parse_slice
from launch.planning.compiler.collectives import bytes_by_kind
from launch.planning.compiler.compiled import compile_program
from launch.planning.roofline import Attempts
from launch.planning.study import Deployment, Judgement, Planner
from launch.run.reinforcement import make_learner
from launch.slice_check.kernels import Figures, WrongNumbers

_UPDATES = 5
# Of the drift between the engine's log-probabilities and the learner's, in
# nats per token: bfloat16 is off by 0.01 to 0.02.
_MOST_DRIFT = 0.05
# A measured time below this share of the bound: the plan counts too much.
_LEAST_SHARE = 0.95


def small_config() -> ml_collections.ConfigDict:
  """Qwen3-0.6B with untrained weights, at a size of seconds."""
  config = pod.get_config("qwen3-0.6b")
  config.train.update(row_length=2048, micro_batch=8)
  config.episode.max_tokens = 2048
  config.cross_policy.update(policy_slots=("fresh",), weights=(1.0,))
  config.engine.update(
    slots=(32,),
    cache_tokens=(32 * 2048,),
    context=2048,
    lengths=(),
    prefill_chunks=(64,),
    num_slot_sizes=1,
  )
  return config


def fitted(config: ml_collections.ConfigDict, num_devices: int) -> Settings:
  """Reads the config for a mesh of so many devices, all of them `fsdp`."""
  config = config.copy_and_resolve_references()
  config.mesh.update(data=1, expert=1, fsdp=num_devices, tensor=1, sequence=1)
  config.train.micro_batch = num_devices * -(
    -config.train.micro_batch // num_devices
  )
  config.train.sharing = 1
  config.sampling.calls = "free"
  config.engine.old_weights = 0  # answers go on with the newest
  return read_settings(config)


def planned(settings: Settings, topology: str, role: str) -> Figures:
  """Plans the learner, or its engine, for a slice, without its chips."""
  jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
  planner = Planner(
    Deployment(
      learner=parse_slice(topology),
      attempts=Attempts(prompt=0, turns=settings.engine.context, num=1),
    )
  )
  judged = planner.study(settings, (role,))
  for each in judged:
    if not each.fits:
      raise WrongNumbers(each.failure or f"{each.name} does not fit {topology}")
  return {j.name: _of_program(j) for j in judged}


def _of_program(judged: Judgement) -> Figures:
  bound = judged.roofline
  assert bound is not None
  return {
    "bound_ms": 1e3 * bound.step_s,
    "in_turn_ms": 1e3 * bound.in_turn_s,
    "binds": bound.binds,
    "program_gib": judged.compiled.wanted / GIB,
    "with_residents_gib": judged.wanted / GIB,
    "received_gib": sum(judged.received.values()) / GIB,
  }


def updates(settings: Settings, plan: Figures) -> Figures:
  """Measures updates of one micro-batch, and compares them with the plan.

  Raises `WrongNumbers` if an update is faster than its bound, or its program
  is another than the plan's.
  """
  policy, learner = _learner(settings)
  figures = _timed_updates(settings, policy, learner)
  figures |= _compiled_here(settings, learner)
  if stats := jax.local_devices()[0].memory_stats():
    figures["peak_gib"] = stats["peak_bytes_in_use"] / GIB
  if not plan:
    return figures
  gradient = plan["gradient"]
  bound = gradient["bound_ms"] + plan["apply"]["bound_ms"]
  figures |= {"bound_ms": bound, "of_bound": bound / figures["update_ms"]}
  if figures["of_bound"] > 1 / _LEAST_SHARE:
    raise WrongNumbers(
      f"an update takes {figures['update_ms']:.4g} ms, less than the plan's "
      f"bound of {bound:.4g} ms: {figures}"
    )
  for name in ("program_gib", "received_gib"):
    here, there = figures.get(name, gradient[name]), gradient[name]
    if abs(here - there) > 0.02 * max(here, there):
      raise WrongNumbers(
        f"{name} of the gradient is {here:.4g} here and {there:.4g} in the "
        f"plan: {figures}"
      )
  return figures


def default_options(settings: Settings) -> Figures:
  """Measures the same update with and without options of the compiler.

  Raises `WrongNumbers` if loss or gradient differ by more than rounding.
  """
  figures = {}
  for setting in ("auto", "none"):
    changed = dataclasses.replace(
      settings,
      compute=dataclasses.replace(settings.compute, compiler_options=setting),
    )
    figures[setting] = _timed_updates(changed, *_learner(changed))
  for name in ("loss", "gradient_norm"):
    with_options, without = (figures[s][name] for s in ("auto", "none"))
    if abs(with_options - without) > 0.01 * abs(without) + 1e-4:
      raise WrongNumbers(f"{name} differs with options: {figures}")
  return figures


def _learner(settings: Settings) -> tuple[Policy, Learner]:
  mesh = sharding.make_mesh(settings.mesh)
  policy = programs.learner_policy(settings, mesh)
  return policy, make_learner(settings, policy, steps=programs.STEPS)


def _timed_updates(
  settings: Settings, policy: Policy, learner: Learner
) -> Figures:
  micro_batch = _random_rows(settings, learner.mesh)
  state = learner.init(_random_params(policy, 0))
  times = []
  first: Figures = {}
  for _ in range(1 + _UPDATES):
    start = time.perf_counter()
    state, numbers = learner.update(state, [micro_batch])
    times.append(time.perf_counter() - start)
    first = first or numbers
  return {
    "update_ms": 1e3 * statistics.median(times[1:]),
    "first_update_s": times[0],
    "loss": first["loss"],
    "gradient_norm": first["gradient_norm"],
    "version": int(state.version),
  }


def _compiled_here(settings: Settings, learner: Learner) -> Figures:
  """Returns memory and bytes of the gradient, as compiled for these chips."""
  if jax.default_backend() != "tpu":
    return {}
  mesh = learner.mesh
  gradient, _ = programs.learner_programs(settings, mesh)
  compiled = compile_program(
    gradient.trace(),
    unknown_turns=gradient.unknown_turns,
    num_devices=mesh.size,
  )
  received = sum(bytes_by_kind(compiled.exchanges).values())
  return {"program_gib": compiled.wanted / GIB, "received_gib": received / GIB}


def _random_params(policy: Policy, seed: int) -> Params:
  """Makes params on the policy's mesh, none of them whole on a device."""
  where = None
  if policy.mesh is not None:
    where = sharding.param_shardings(policy.abstract_params(), policy.mesh)
  params: Params = jax.jit(policy.init, out_shardings=where)(
    jax.random.key(seed)
  )
  return params


def _random_rows(settings: Settings, mesh: Mesh) -> TrainBatch:
  """Full rows of random tokens; all but the first count, with advantages."""
  zeros: Any = jax.tree.map(
    lambda leaf: np.zeros(leaf.shape, leaf.dtype),
    programs.abstract_batch(settings, mesh),
  )
  rng, shape = np.random.default_rng(0), zeros.batch.token.shape
  token = rng.integers(0, settings.model.vocab_size, shape, np.int32)
  batch = _rows(token, zeros.batch)
  usual = -np.log(settings.model.vocab_size)
  rows: TrainBatch = dataclasses.replace(
    zeros,
    batch=dataclasses.replace(
      batch, behavior_logprob=np.where(batch.mask, usual, 0).astype(np.float32)
    ),
    advantage=np.where(batch.mask, rng.standard_normal(shape), 0).astype(
      np.float32
    ),
  )
  return rows


def _rows(token_BT: np.ndarray, zeros: Any) -> Any:
  rows, length = token_BT.shape
  position_BT = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
  trajectory_BT = np.broadcast_to(np.arange(rows)[:, None], token_BT.shape)
  return dataclasses.replace(
    zeros,
    token=token_BT,
    position=position_BT,
    segment=np.ones_like(token_BT),
    mask=position_BT > 0,
    trajectory=trajectory_BT.astype(np.int32),
  )


def swap(settings: Settings, plan: Figures) -> Figures:
  """Swaps weights during answers, and measures decode steps.

  Raises `WrongNumbers` unless answers after the swap are by the new weights,
  with the log-probabilities that the learner computes.
  """
  policy, _ = _learner(settings)
  answers = _Answers(settings, policy)
  before, after = (_random_params(policy, seed) for seed in (0, 1))
  answers.publisher.publish(before, 0)
  answers.complete()  # compiles
  step_ms = 1e3 * answers.seconds() / answers.num_tokens
  asked = answers.begin()
  started = time.perf_counter()
  answers.publisher.publish(after, 1)
  swap_s = time.perf_counter() - started
  answers.driver.run_until_idle()
  versions = {int(v) for each in asked for v in each.result().version}
  if versions != {0, 1}:
    raise WrongNumbers(
      f"answers during the swap are by versions {sorted(versions)}, not 0 and 1"
    )
  done = answers.complete()
  drift = {
    name: answers.drift(done, params)
    for name, params in (("old", before), ("new", after))
  }
  if {int(v) for c in done for v in c.version} != {1} or not (
    drift["new"] <= _MOST_DRIFT < drift["old"]
  ):
    raise WrongNumbers(
      f"answers after the swap are not by the new weights: nats per token "
      f"from the learner's {drift}, at most {_MOST_DRIFT} of the new ones"
    )
  figures = {
    "decode_step_ms": step_ms,
    "swap_s": swap_s,
    "drift_nats": drift["new"],
  }
  if plan:
    steps = settings.engine.steps_per_sync
    bound = plan["decode"]["bound_ms"] / steps
    figures |= {"bound_ms": bound, "of_bound": bound / step_ms}
  return figures


class _Answers:
  """Greedy answers to as many prompts as there are slots."""

  def __init__(self, settings: Settings, policy: Policy):
    versions = ServedWeights(1)
    self.driver = LocalDriver(RolloutEngine(policy, settings.engine, versions))
    self.publisher = Publisher(policy, versions)
    self._policy = policy
    length = min(settings.engine.context, 256)
    rows, vocabulary = settings.engine.slots[0], settings.model.vocab_size
    if length % 128 or rows % (policy.mesh or sharding.make_mesh({})).size:
      raise ConfigError(
        f"engine.slots={settings.engine.slots} must be a multiple of the "
        f"devices, and engine.context={settings.engine.context} of 128"
      )
    self.num_tokens = length // 2
    rng = np.random.default_rng(0)
    self._prompts = rng.integers(
      0, vocabulary, (rows, length - self.num_tokens), np.int32
    )

  def ask(self) -> list[Any]:
    sampling = SamplingParams(temperature=0.0, max_tokens=self.num_tokens)
    with self.driver.paused():
      return [self.driver.submit(row, sampling) for row in self._prompts]

  def begin(self) -> list[Any]:
    """Asks, and returns once tokens are sampled."""
    before = self._num_sampled()
    asked = self.ask()
    while self._num_sampled() == before:
      self.driver.step()
    return asked

  def _num_sampled(self) -> int:
    return sum(self.driver.engine.stats().num_sampled)

  def complete(self) -> list[Completion]:
    asked = self.ask()
    self.driver.run_until_idle()
    return [each.result() for each in asked]

  def seconds(self) -> float:
    """Times all answers, without that of the prompts' first tokens."""
    self.driver.engine.reset()
    started = time.perf_counter()
    self.complete()
    return time.perf_counter() - started

  def drift(self, done: list[Completion], params: Params) -> float:
    """Returns the mean distance of log-probabilities from the learner's."""
    policy = self._policy
    sampled = np.stack([each.sampled for each in done])
    token_BT = np.concatenate([self._prompts, sampled], axis=1)
    zero: Any = np.zeros_like(token_BT)
    batch = _rows(
      token_BT,
      Batch(
        zero, zero, zero, zero > 0, zero.astype(np.float32), zero, zero, zero
      ),
    )
    logprob_BT, _ = jax.jit(
      lambda params, batch: token_logprobs(
        policy, params, batch, temperature=1.0, chunk_size=0
      )
    )(jax.tree.map(jnp.asarray, params), batch)
    ours = np.asarray(logprob_BT)[:, -self.num_tokens :]
    theirs = np.stack([each.raw_logprob for each in done])
    return float(np.mean(np.abs(ours - theirs)))
