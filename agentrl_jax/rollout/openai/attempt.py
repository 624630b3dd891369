"""What is offered to agents elsewhere: an attempt, and who answers in it.

The controller makes both; what is read of them is said here.
"""

from typing import Protocol

from agentrl_jax.data.trajectory import Task


class Attempt(Protocol):
  """What the controller wants played; `controller.recorder.Attempt` is one."""

  @property
  def task(self) -> Task: ...

  @property
  def group_id(self) -> str: ...

  @property
  def number(self) -> int: ...

  @property
  def seed(self) -> int: ...


class PolicySlotDraw(Protocol):
  """Draws policy slots; `controller.policies.CrossPolicy` is one."""

  @property
  def weights(self) -> tuple[float, ...]: ...

  @property
  def is_drawn(self) -> bool:
    """Whether any chance is involved."""
    ...

  def __call__(self, seed: int, turn: int) -> int:
    """The policy slot that answers turn `turn` of the attempt with this
    seed.
    """
    ...


class FreshPolicySlot:
  """Policy slot 0, always."""

  weights, is_drawn = (1.0,), False

  def __call__(self, seed: int, turn: int) -> int:
    """See `PolicySlotDraw`."""
    return 0
