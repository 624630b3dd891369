"""Refuses, before anything starts, slots that could not serve what they say."""

from collections.abc import Sequence

from etils import epath

from agentrl_jax.controller.policies import CrossPolicy
from agentrl_jax.controller.slot_weights import SlotWeightsConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.settings import EngineConfig
from agentrl_jax.train.checkpoint import CheckpointConfig
from agentrl_jax.train.slot_schedule import SlotSchedule


def check_slots(
  schedules: Sequence[SlotSchedule],
  cross_policy: CrossPolicy,
  engine: EngineConfig,
) -> None:
  """Raises `ConfigError` unless everything has as many slots."""
  slots = tuple(schedule.text for schedule in schedules)
  if len({len(slots), len(cross_policy.weights), engine.num_slots}) > 1:
    raise ConfigError(
      f"cross_policy.slots={slots}, cross_policy.weights="
      f"{cross_policy.weights} and engine.lanes={engine.lanes} must have one "
      "entry per version slot each"
    )


def check_weights(config: SlotWeightsConfig, cross_policy: CrossPolicy) -> None:
  """Raises `ConfigError` for adaptive weights that could not adapt."""
  if config.rule == "fixed":
    return
  if not cross_policy.is_drawn:
    raise ConfigError(
      "slot_weights.rule='adaptive' adapts nothing with cross_policy.draw_per="
      "'never'; draw per turn or trajectory, or set "
      "--config.slot_weights.rule=fixed"
    )
  drawable = [weight for weight in cross_policy.weights if weight > 0]
  if len(drawable) < 2 or not cross_policy.weights[0] > 0:
    raise ConfigError(
      f"cross_policy.weights={cross_policy.weights} leaves "
      "slot_weights.rule='adaptive' nothing to weigh: slot 0 and another need "
      "a weight above 0"
    )
  least = min(drawable) / sum(drawable)
  if config.floor > least:
    raise ConfigError(
      f"slot_weights.floor={config.floor} is above what a slot begins with: "
      f"cross_policy.weights={cross_policy.weights} give one a share of "
      f"{least:.3g}; lower the floor or raise that weight"
    )


def check_stored(
  schedules: Sequence[SlotSchedule],
  checkpoint: CheckpointConfig,
  *,
  num_steps: int,
  stride: int,
) -> None:
  """Raises `ConfigError` for a version that no checkpoint would be written of.

  `stride` counts the updates that the learner makes of a batch.
  """
  for slot, schedule in enumerate(schedules):
    found = f"cross_policy.slots[{slot}]={schedule.text!r}"
    if schedule.every % checkpoint.every:
      raise ConfigError(
        f"{found} needs the weights of every {schedule.every} updates, and "
        f"checkpoint.every={checkpoint.every} does not keep them: make the one "
        "a multiple of the other"
      )
    if schedule.folder:
      continue
    for step in schedule.steps:
      if step % stride or step % checkpoint.every >= stride:
        raise ConfigError(
          f"{found}: no checkpoint is written of update {step}; with "
          f"checkpoint.every={checkpoint.every} and "
          f"admission.versions_per_step={stride} name multiples of both"
        )
      if step >= num_steps:
        raise ConfigError(
          f"{found}: update {step} is not before the end, train.steps="
          f"{num_steps}; the slot would never serve it"
        )


def refuse_absent(schedules: Sequence[SlotSchedule]) -> None:
  """Raises `ConfigError` for a step that its folder does not hold."""
  for slot, schedule in enumerate(schedules):
    if not schedule.folder:
      continue
    held = stored_steps(schedule.folder)
    for step in schedule.steps:
      if step not in held:
        raise ConfigError(
          f"cross_policy.slots[{slot}]={schedule.text!r}: {schedule.folder} "
          f"holds no checkpoint of step {step}; it holds {held or 'none'}"
        )


def stored_steps(folder: str) -> list[int]:
  """Steps of a folder of checkpoints; none if there is no such folder."""
  path = epath.Path(folder)
  if not path.exists():
    return []
  return sorted(int(p.name) for p in path.iterdir() if p.name.isdecimal())
