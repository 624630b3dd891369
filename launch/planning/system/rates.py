"""Rates of the two sides of a run: seconds of a step, and answers per second.

The learner's step is a sum of programs. The rollouts are a closed queueing
network with two stations (Lazowska et al. 1984, Quantitative System
Performance, ch. 5): the environments, where every episode is served at once,
and the servers, with a number of slots each.

Of one server, with E of its episodes in flight, M slots, an answer of D seconds
in its slot while nothing is prefilled, P seconds to prefill an answer's tokens,
during which no slot decodes, and Z seconds of the environment per answer:

  b = busy slots: b + b Z / (D + b P) = E, and at most M
  x = answers per second: b / (D + b P)

With b slots busy, the others' prefills stretch an answer from D to D + b P.
Both lines are Little's law, of the slots and of all episodes.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from agentrl_jax.errors import ConfigError
from launch.config.settings import Settings
from launch.planning.chips import Slice
from launch.planning.programs import packed_groups
from launch.planning.roofline import num_params
from launch.planning.study import Judgement
from launch.planning.system.workload import Workload

# Bytes per second of a host's network, one way, at its best: the data center
# network in "How to Scale Your Model" (jax-ml.github.io/scaling-book, TPUs).
HOST_NETWORK = 2.5e10


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerRate:
  """Seconds of a step of the learner that never waits for groups."""

  parts_s: Mapping[str, float]  # by name, in the order of a step
  tokens: float  # of the trajectories of a step
  # From the end of an update to servers that answer with its weights.
  lag_s: float = 0.0

  @property
  def step_s(self) -> float:
    """Seconds of a step; it may make several updates."""
    return math.fsum(self.parts_s.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutRate:
  """Servers and environments, with the symbols of the module's formulas."""

  num_servers: float
  slots: float  # M: answers at once on one server
  answer_s: float  # D
  prefill_s: float  # P
  environment_s: float  # Z
  num_answers: float  # of an episode

  def busy_slots(self, num_episodes: float) -> float:
    """Returns the busy slots of all servers, with episodes spread evenly.

    The positive root of P b^2 + (D + Z - E P) b - E D = 0, at most M.
    """
    e = num_episodes / self.num_servers
    linear = self.answer_s + self.environment_s - e * self.prefill_s
    constant = e * self.answer_s
    root = math.sqrt(linear * linear + 4 * self.prefill_s * constant)
    # Of the two forms of the root, the one that subtracts no equal numbers.
    if linear >= 0:
      busy = 2 * constant / (linear + root) if linear + root else 0.0
    else:
      busy = (root - linear) / (2 * self.prefill_s)
    return min(busy, self.slots) * self.num_servers

  def answers_per_s(self, num_episodes: float) -> float:
    """Returns answers per second of all servers together."""
    busy = self.busy_slots(num_episodes)
    return busy / self._in_slot_s(busy) if busy else 0.0

  def episodes_per_s(self, num_episodes: float) -> float:
    """Returns finished episodes per second with so many in flight."""
    return self.answers_per_s(num_episodes) / self.num_answers

  @property
  def most_answers_per_s(self) -> float:
    """Answers per second with every slot busy."""
    every = self.slots * self.num_servers
    return every / self._in_slot_s(every)

  def _in_slot_s(self, busy: float) -> float:
    return self.answer_s + busy / self.num_servers * self.prefill_s


def learner_rate(
  settings: Settings,
  workload: Workload,
  judged: Mapping[str, Judgement],
  *,
  utilisation: float,
  server: Slice,
) -> LearnerRate:
  """Returns the learner's rate by the bounds of its compiled programs.

  Every time is the bound divided by `utilisation`. Weights are written in the
  background; the next publication waits for the one before.
  """
  gradient, apply = judged["gradient"], judged["apply"]
  admission = settings.admission
  rows = packed_groups(settings, workload.attempts)
  tokens = (
    admission.groups_per_step * settings.group.size * workload.attempts.length
  )
  num_micro_batches = math.ceil(
    tokens / rows.tokens / settings.batch.micro_batch
  )
  gradient_s = num_micro_batches * bound_s(gradient)
  parts = {
    "gradients": gradient_s,
    "log-probabilities": num_passes(settings)
    * gradient_s
    * _forward_share(settings, gradient),
    "apply": admission.versions_per_step * bound_s(apply),
  }
  parts = {name: seconds / utilisation for name, seconds in parts.items()}
  write_s, read_s = (
    weight_bytes(settings) / (_hosts(each) * HOST_NETWORK * utilisation)
    for each in (gradient.slice_, server)
  )
  parts["publication"] = max(0.0, write_s - math.fsum(parts.values()))
  return LearnerRate(
    parts_s=parts,
    tokens=tokens,
    lag_s=write_s + settings.rollouts.poll_interval_s / 2 + read_s,
  )


def rollout_rate(
  settings: Settings,
  workload: Workload,
  judged: Mapping[str, Judgement],
  *,
  utilisation: float,
  num_servers: int,
) -> RolloutRate:
  """Returns the rate of `num_servers` servers by the bounds of their programs.

  Times of programs are the bounds divided by `utilisation`; the environment's
  are not.
  """
  prefill, decode = judged["prefill"], judged["decode"]
  per_token_s = bound_s(prefill) / prefill.tokens
  prefilled = workload.prefilled_tokens(reuse=settings.engine.reuse)
  decode_s = _round_s(settings, decode) / settings.engine.steps_per_sync
  return RolloutRate(
    num_servers=num_servers,
    slots=usable_slots(settings),
    answer_s=workload.answer_tokens * decode_s / utilisation,
    prefill_s=prefilled / workload.num_answers * per_token_s / utilisation,
    environment_s=workload.environment_s,
    num_answers=workload.num_answers,
  )


def bound_s(judged: Judgement) -> float:
  """Returns the bound of a program in seconds.

  Raises `ConfigError` if the program does not fit, and so has none.
  """
  if judged.roofline is None:
    raise ConfigError(
      f"{judged.name} does not fit {judged.slice_.name}, so that a plan of the "
      "whole run has no rate for it: plan without --system, which says what "
      "to change"
    )
  return judged.roofline.step_s


def num_passes(settings: Settings) -> int:
  """Counts forward passes over a batch besides those of its gradients.

  Of the reference, of the proximal policy, of a critic, of token weights.
  """
  loss = settings.loss
  return sum(
    (
      bool(loss.kl_coefficient),
      loss.proximal == "recomputed",
      loss.has_critic,
      bool(loss.token_weight),
    )
  )


def usable_slots(settings: Settings) -> float:
  """Returns the slots of a server that answers can fill.

  Answers are drawn to policy slots by `cross_policy.weights`. The policy slot
  with the fewest slots for its share is full first.
  """
  cross = settings.cross_policy
  if cross.draw_per == "never":
    return settings.engine.slots[0]
  return min(
    slots / weight
    for slots, weight in zip(settings.engine.slots, cross.weights, strict=True)
    if weight
  )


def weight_bytes(settings: Settings) -> float:
  """Returns the bytes of published weights."""
  size = jnp.dtype(settings.compute.dtype).itemsize
  return float(num_params(settings.model) * size)


def _forward_share(settings: Settings, gradient: Judgement) -> float:
  """Share of a gradient's time that a forward pass takes.

  A gradient needs a forward pass and two backward passes as long, or one if
  the weights are frozen under adapters; and executes more than it needs.
  """
  passes = 2 if settings.lora else 3
  return gradient.flops.needed / gradient.flops.executed / passes


def _round_s(settings: Settings, decode: Judgement) -> float:
  """Seconds of a decode call of every policy slot in turn.

  Only the fullest policy slot's program is compiled. The others read the same
  bytes of weights, and of their caches in proportion to their slots. Policy
  slots on chips of their own decode at the same time.
  """
  longest_s = bound_s(decode)
  slots = settings.engine.slots
  if settings.engine.slices or settings.cross_policy.draw_per == "never":
    return longest_s
  slice_ = decode.slice_
  per_chip = weight_bytes(settings) / slice_.num_chips
  weights_s = (
    settings.engine.steps_per_sync * per_chip / slice_.chip.memory_bandwidth
  )
  weights_s = min(weights_s, longest_s)
  return math.fsum(
    weights_s + (longest_s - weights_s) * each / slots[0] for each in slots
  )


def _hosts(slice_: Slice) -> int:
  return 1 if slice_.is_one_host else math.ceil(slice_.num_chips / 4)


def by_name(judged: Sequence[Judgement]) -> dict[str, Judgement]:
  """Returns the judgements by the names of their programs."""
  return {each.name: each for each in judged}
