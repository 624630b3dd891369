"""The engine as the benchmarks of rollouts use it, and its decode program."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.rollout.api import EngineConfig
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.weights.publish import Publisher
from bench import timing


def make_driver(
  policy: Policy, versions: Sequence[Params], **config
) -> LocalDriver:
  """A driver whose policy slots serve these params."""
  store = ServedWeights(len(versions))
  publisher = Publisher(policy, store)
  for policy_slot, params in enumerate(versions):
    publisher.publish(params, policy_slot, policy_slot=policy_slot)
  return LocalDriver(RolloutEngine(policy, EngineConfig(**config), store))


class RawSteps:
  """The compiled decode program in a loop, all slots busy, nothing else."""

  def __init__(
    self, policy: Policy, driver: LocalDriver, *, length: int, at: int
  ):
    """Policy slot 0's, with a cache of `length` tokens a slot; `at` are
    held.
    """
    engine = driver.engine
    slots = engine.config.slots[0]
    fields = dict(
      position=at,
      budget=10**6,
      active=1,
      temperature=np.float32(1.0).view(np.int32),
      top_p=np.float32(1.0).view(np.int32),
      **dict.fromkeys(programs.STOPS, -1),
    )
    row = np.array([fields.get(name, 0) for name in programs.STATE], np.int32)
    self.num_steps = engine.config.steps_per_sync
    self._run = functools.partial(
      programs.decode,
      policy,
      engine.versions.get(0).params,
      patch_BF=np.tile(row, (slots, 1)),
      patched_B=np.ones(slots, bool),
      slot_P=np.arange(slots),
      page_PW=np.arange(slots)[:, None],
      version=np.int32(0),
      num_steps=self.num_steps,
    )
    self._cache = policy.empty_cache(slots, length)
    self._state = programs.empty_state(slots)
    for _ in range(2):  # compiled again for arrays that a call has placed
      self._step()

  def __call__(self) -> timing.Times:
    """Times `num_steps` steps, up to their tokens on the host."""
    return timing.times_of(self._step)

  def _step(self) -> None:
    self._cache, self._state, record, _ = self._run(
      cache=self._cache, state_BF=self._state
    )
    np.asarray(jax.block_until_ready(record))
