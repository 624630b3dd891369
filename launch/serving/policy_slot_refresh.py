"""Keeps the older policy slots at the versions that their schedules name."""

from collections.abc import Callable, Sequence

from etils import epath

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model.policy import Params
from agentrl_jax.train.learner import TrainState
from agentrl_jax.train.weights.checkpoint import Checkpoints
from agentrl_jax.train.weights.policy_slot_schedule import PolicySlotSchedule
from agentrl_jax.train.weights.publish import Publisher


class PolicySlotRefresher:
  """Publishes stored versions to the policy slots from 1 on.

  Every learner process has one, and calls it at the same points.
  """

  def __init__(
    self,
    schedules: Sequence[PolicySlotSchedule],
    publisher: Publisher,
    abstract: TrainState,
    whole: Callable[[Params], Params],
    *,
    stride: int,
  ):
    """`abstract` is the state that checkpoints are restored into.

    `whole` joins trained and frozen params. `stride` is the number of updates
    between the learner's versions.
    """
    self._schedules = dict(enumerate(schedules))
    del self._schedules[0]
    self._publisher, self._abstract = publisher, abstract
    self._whole, self._stride = whole, stride
    self._served: dict[int, int] = {}  # step, by policy slot

  def follow(self, checkpoints: Checkpoints, state: TrainState) -> None:
    """Publishes the version that is due, where it is not served yet.

    Raises `ConfigError` for a version of this run whose checkpoint is gone.
    """
    version = int(state.version)
    for policy_slot, schedule in self._schedules.items():
      step = schedule.step(version, stride=self._stride)
      if self._served.get(policy_slot) == step:
        continue
      if step == version and not schedule.folder:
        params = state.params
      else:
        params = self._restored(policy_slot, schedule, checkpoints, step)
      self._publisher.publish(
        self._whole(params), step, policy_slot=policy_slot
      )
      self._served[policy_slot] = step

  def needed(self, version: int) -> list[int]:
    """Returns this run's checkpoints that are or will be served."""
    own = [n for n, s in self._schedules.items() if not s.folder]
    served = {self._served[policy_slot] for policy_slot in own}
    awaited = [
      self._schedules[policy_slot].awaited(version, stride=self._stride)
      for policy_slot in own
    ]
    return sorted(served.union(*awaited))

  def _restored(
    self,
    policy_slot: int,
    schedule: PolicySlotSchedule,
    checkpoints: Checkpoints,
    step: int,
  ) -> Params:
    where = f"cross_policy.policy_slots[{policy_slot}]={schedule.text!r}"
    if schedule.folder:
      return self._of_another_run(where, schedule.folder, step)
    if step not in checkpoints.steps():
      raise ConfigError(
        f"{where} is to serve update {step}, of which no checkpoint is left: "
        f"there are {checkpoints.steps()}. Give it steps that are there, or "
        "keep more with checkpoint.keep or checkpoint.keep_every from the "
        "run's beginning"
      )
    return checkpoints.restore_params(self._abstract, step)

  def _of_another_run(self, where: str, folder: str, step: int) -> Params:
    if not epath.Path(folder).exists():
      raise ConfigError(f"{where}: there is no folder {folder}")
    stored = Checkpoints(folder, keep=2)
    try:
      return stored.restore_params(self._abstract, step)
    except CheckpointError as error:
      raise CheckpointError(f"{where} cannot be served: {error}") from error
    finally:
      stored.close()
