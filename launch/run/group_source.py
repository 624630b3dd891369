"""Where the learner's groups come from, and where its account of them goes.

Process 0 plays, which is `playing`. The other learner processes are sent the
groups of every batch, so that all of them compute the same.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from agentrl_jax.data.trajectory import Group
from launch.processes.group import Processes
from launch.processes.group_transfer import decode_groups

STAGE = "rl"


class GroupSource(Protocol):
  """The learner's other side, in any process."""

  def running(
    self, version: int, position: Mapping[str, Any]
  ) -> contextlib.AbstractContextManager[None]:
    """Goes on from a position, and ends whatever happens within."""
    ...

  def take(self, version: int) -> list[Group] | None:
    """Waits for the groups of a batch; None if the run was asked to stop."""
    ...

  def position(self) -> dict[str, Any]:
    """What `running` goes on from, as JSON values."""
    ...

  def account(
    self, version: int, after: int, report: Mapping[str, float]
  ) -> None:
    """What was taken for `version` has made `after` of the policy."""
    ...

  def advance(self, version: int) -> None:
    """The policy is published: newer groups may start."""
    ...


class FollowerGroupSource:
  """The groups that process 0 plays, in any other process."""

  def __init__(self, processes: Processes) -> None:
    self._processes = processes

  @contextlib.contextmanager
  def running(
    self, version: int, position: Mapping[str, Any]
  ) -> Iterator[None]:
    """Keeps nothing."""
    del version, position
    yield

  def take(self, version: int) -> list[Group] | None:
    """Waits until process 0 has a batch or was asked to stop."""
    found = self._processes.share(what=words_for(version))
    return decode_groups(found) if found else None

  def position(self) -> dict[str, Any]:
    """Process 0 writes it."""
    return {}

  def account(
    self, version: int, after: int, report: Mapping[str, float]
  ) -> None:
    """Process 0 keeps it."""

  def advance(self, version: int) -> None:
    """Process 0 is told."""


def words_for(version: int) -> str:
  """What one process waits for another to share."""
  return f"the groups to train version {version} on"
