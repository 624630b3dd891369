"""Time of a whole step by arithmetic: training, generation, and who waits.

A step is what the learner makes of one batch. Each side's seconds are those of
its programs; they overlap unless both share the chips, or answers must be of
the newest weights. Environments, and batches that wait for their last groups,
make a real step longer.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from agentrl_jax.errors import ConfigError
from launch.config.settings import Settings
from launch.planning import roofline
from launch.planning.roofline import Attempts
from launch.planning.study import Judgement


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTime:
  """Seconds of one step on each side."""

  training: Mapping[str, float]  # by part
  generation: Mapping[str, float]
  tokens: int  # of the step's trajectories
  overlaps: bool

  @property
  def training_s(self) -> float:
    """Seconds of the learner that never waits."""
    return math.fsum(self.training.values())

  @property
  def generation_s(self) -> float:
    """Seconds of servers whose slots are always busy."""
    return math.fsum(self.generation.values())

  @property
  def step_s(self) -> float:
    """Seconds of a step: the longer of the two, or both in turn."""
    both = self.training_s, self.generation_s
    return max(both) if self.overlaps else math.fsum(both)

  @property
  def verdict(self) -> str:
    """Says which side waits, and what would help."""
    if not self.overlaps:
      share = self.generation_s / self.step_s
      return (
        f"The sides take turns, and generation takes {share:.0%} of a step: "
        "servers of their own (--rollout_topology) and admission.max_staleness "
        "of 1 or more let them overlap."
      )
    idle = 1 - min(self.training_s, self.generation_s) / self.step_s
    if self.generation_s > self.training_s:
      return (
        f"The learner waits for rollouts, {idle:.0%} of the time: more "
        "--rollout_slices would help, or a smaller learner does."
      )
    return (
      f"The rollouts wait for the learner, {idle:.0%} of the time: a larger "
      "learner would help, or fewer --rollout_slices do."
    )


def read_attempts(
  settings: Settings, *, prompt: int, turns: int | None
) -> Attempts | None:
  """Returns what the flags say; None if they do not say how long attempts are.

  Raises `ConfigError` for attempts that the config has no room for.
  """
  if turns is None:
    if prompt:
      raise ConfigError("--prompt needs --turns, the mean tokens after it")
    return None
  found = Attempts(prompt=prompt, turns=turns, num=settings.group.size)
  for name, most in (
    ("train.row_length", settings.batch.row_length),
    ("episode.max_tokens", settings.episode.max_tokens),
  ):
    if found.length > most:
      raise ConfigError(
        f"--prompt={prompt} and --turns={turns} are attempts of {found.length} "
        f"tokens, and {name}={most} allows no more than that: lower them, or "
        f"set --config.{name}"
      )
  return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
  """Speed of both sides, each on its own."""

  gradient_s: float  # of a micro-batch
  gradient_tokens: float  # of trajectories, in it
  forward_share: float  # of `gradient_s`, of a forward pass
  apply_s: float
  sampled_per_s: float  # tokens, with every slot busy
  prefilled_per_s: float  # tokens


def rates_of_programs(
  settings: Settings,
  judged: Sequence[Judgement],
  *,
  num_servers: int,
  share: float,
) -> Rates:
  """Returns the rates of compiled programs at a share of their bounds.

  All programs have to fit.
  """
  programs = {each.name: each for each in judged}
  gradient, apply = programs["gradient"], programs["apply"]
  assert gradient.load is not None
  assert gradient.roofline is not None
  assert apply.roofline is not None
  per_s = num_servers * share
  return Rates(
    gradient_s=gradient.roofline.step_s / share,
    gradient_tokens=gradient.load.of_trajectories,
    forward_share=gradient.flops.forward_share(frozen=bool(settings.lora)),
    apply_s=apply.roofline.step_s / share,
    sampled_per_s=per_s * _sampled_per_s(settings, programs["decode"]),
    prefilled_per_s=per_s * programs["prefill"].tokens_per_s,
  )


def _sampled_per_s(settings: Settings, decode: Judgement) -> float:
  """Tokens per second of all policy slots, which decode in turn.

  Only the fullest policy slot's program is compiled. The others read the same
  bytes of weights, and of their caches in proportion to their slots.
  """
  assert decode.roofline is not None
  bound_s, slots = decode.roofline.step_s, settings.engine.slots
  size = jnp.dtype(settings.compute.dtype).itemsize
  weights = roofline.num_params(settings.model) * size / decode.slice_.num_chips
  weights_s = settings.engine.steps_per_sync * weights
  weights_s = min(weights_s / decode.slice_.chip.memory_bandwidth, bound_s)
  in_turn_s = math.fsum(
    weights_s + (bound_s - weights_s) * each / slots[0] for each in slots
  )
  return decode.tokens * sum(slots) / slots[0] / in_turn_s


def step_time(
  settings: Settings,
  attempts: Attempts | None,
  rates: Rates,
  *,
  sampled: int | None,
  is_shared: bool,
) -> StepTime:
  """Returns the time of a step; both sides have the same chips if `is_shared`.

  Of each attempt `sampled` tokens are the policy's, by default all that follow
  the prompt. A shared prompt is prefilled once for its group, a reply once.
  Without `attempts` each has `episode.max_tokens`.
  """
  if attempts is None:
    longest, num = settings.episode.max_tokens, settings.group.size
    attempts = Attempts(prompt=0, turns=longest, num=num)
  sampled = attempts.turns if sampled is None else sampled
  if not 1 <= sampled <= attempts.turns:
    raise ConfigError(
      f"--sampled={sampled} must be 1 to {attempts.turns}: the tokens of an "
      "attempt after its prompt that the policy samples"
    )
  admission = settings.admission
  number = admission.groups_per_step * settings.group.size
  tokens = number * attempts.length
  gradients_s = rates.gradient_s * math.ceil(tokens / rates.gradient_tokens)
  others = attempts.prompt / attempts.num + attempts.turns - sampled
  return StepTime(
    training={
      "gradients": gradients_s,
      "log-probabilities": (
        _num_passes(settings) * rates.forward_share * gradients_s
      ),
      "apply": admission.versions_per_step * rates.apply_s,
    },
    generation={
      "prefill": number * others / rates.prefilled_per_s,
      "decode": number * sampled / rates.sampled_per_s,
    },
    tokens=tokens,
    overlaps=admission.max_staleness > 0 and not is_shared,
  )


def _num_passes(settings: Settings) -> int:
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
