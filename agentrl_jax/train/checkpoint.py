"""Checkpoints: the learner's state and the position of everything around it.

One Orbax step holds the state (params, optimizer, version), the controller's
position (task stream, tasks in flight, finished groups) and a checksum of every
leaf. Orbax commits a step in one rename, so a kill at any instant leaves the
step before it good. What cannot be restored is refused, by file and leaf, and
the step to fall back to is named.
"""

import dataclasses
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model.policy import Params
from agentrl_jax.train.step import TrainState

_CHECKSUMS = "checksums"
_POSITION = "position"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
  """The `checkpoint` section of the config."""

  every: int  # updates
  keep: int  # steps, the newest ones

  def __post_init__(self) -> None:
    if self.every < 1 or self.keep < 2:
      raise ConfigError(
        f"checkpoint.every={self.every} must be at least 1 and "
        f"checkpoint.keep={self.keep} at least 2: a damaged newest step needs "
        "another to fall back to"
      )


class Checkpoints:
  """The checkpoints of one stage of a run, newest last."""

  def __init__(self, directory: pathlib.Path, *, keep: int):
    self.directory = directory.resolve()
    self._manager = ocp.CheckpointManager(
      self.directory,
      options=ocp.CheckpointManagerOptions(
        max_to_keep=keep, enable_async_checkpointing=True
      ),
      item_handlers={
        "state": ocp.PyTreeCheckpointHandler(),
        "about": ocp.JsonCheckpointHandler(),
      },
    )

  def steps(self) -> list[int]:
    """Steps that were committed, oldest first."""
    return sorted(self._manager.all_steps())

  def save(self, state: TrainState, position: Mapping[str, Any]) -> None:
    """Starts writing; returns once the arrays are safe to overwrite.

    `position` is what `restore` gives back beside the state: JSON values.
    """
    about = {_CHECKSUMS: _checksums(state), _POSITION: dict(position)}
    self._manager.save(
      int(state.version),
      args=ocp.args.Composite(
        state=ocp.args.PyTreeSave(_as_tree(state)),
        about=ocp.args.JsonSave(about),
      ),
    )

  def wait(self) -> None:
    """Returns when everything saved is on disk."""
    self._manager.wait_until_finished()

  def restore(
    self, abstract: TrainState, step: int | None = None
  ) -> tuple[TrainState, dict[str, Any]]:
    """The state, in the shapes and shardings of `abstract`, and the position.

    Raises `CheckpointError` if the step is damaged or of another model.
    """
    step = self._resolve(step)
    self._refuse_other_shapes(abstract, step)
    try:
      restored = self._manager.restore(
        step,
        args=ocp.args.Composite(
          state=_restore_args(_as_tree(abstract)),
          about=ocp.args.JsonRestore(),
        ),
      )
    except (ValueError, OSError, KeyError, TypeError) as error:
      raise self._damaged(step, f"cannot be read: {error}") from error
    tree = restored["state"]
    state = jax.tree.unflatten(
      jax.tree.structure(abstract), [tree[name] for name in _as_tree(abstract)]
    )
    self._refuse_damage(state, restored["about"][_CHECKSUMS], step)
    return state, restored["about"][_POSITION]

  def restore_params(
    self, abstract: TrainState, step: int | None = None
  ) -> Params:
    """The params alone of a step, as an older version to sample from."""
    step = self._resolve(step)
    self._refuse_other_shapes(abstract, step)
    of_params = dataclasses.replace(abstract, optimizer=(), version=())
    try:
      tree = self._manager.restore(
        step,
        args=ocp.args.Composite(
          state=_restore_args(_as_tree(of_params), partial=True)
        ),
      )["state"]
    except (ValueError, OSError, KeyError, TypeError) as error:
      raise self._damaged(step, f"cannot be read: {error}") from error
    return jax.tree.unflatten(
      jax.tree.structure(abstract.params),
      [tree[name] for name in _as_tree(of_params)],
    )

  def forget_after(self, step: int) -> None:
    """Deletes later steps: a run that resumes here will write its own."""
    for later in [s for s in self.steps() if s > step]:
      self._manager.delete(later)

  def close(self) -> None:
    """Waits for what is being written and frees the files."""
    self._manager.close()

  def _resolve(self, step: int | None) -> int:
    steps = self.steps()
    if not steps:
      raise CheckpointError(f"{self.directory} holds no checkpoint")
    if step is None:
      return steps[-1]
    if step not in steps:
      raise CheckpointError(
        f"{self.directory} has no step {step}; there are {steps}"
      )
    return step

  def _refuse_other_shapes(self, abstract: TrainState, step: int) -> None:
    try:
      found = self._manager.item_metadata(step)["state"]
    except (ValueError, OSError, KeyError, TypeError) as error:
      raise self._damaged(step, f"has unreadable metadata: {error}") from error
    if found is None:
      raise self._damaged(step, "has no metadata of its state")
    expected = _shapes(_as_tree(abstract))
    actual = _shapes(getattr(found, "tree", found))
    for leaf in sorted(set(expected) | set(actual)):
      if expected.get(leaf) != actual.get(leaf):
        raise self._damaged(
          step,
          f"is of another model: leaf {leaf} is {actual.get(leaf, 'absent')} "
          f"there and {expected.get(leaf, 'absent')} here",
        )

  def _refuse_damage(
    self, state: TrainState, expected: Mapping[str, int], step: int
  ) -> None:
    found = _checksums(state)
    for leaf, written in expected.items():
      if leaf in found and found[leaf] != written:
        raise self._damaged(
          step,
          f"is damaged: leaf {leaf} has checksum {found[leaf]}, and {written} "
          "was written",
        )

  def _damaged(self, step: int, what: str) -> CheckpointError:
    earlier = [s for s in self.steps() if s < step]
    offer = (
      f"Step {earlier[-1]} before it can be restored instead: set "
      f"--config.checkpoint.resume_step={earlier[-1]}"
      if earlier
      else "There is no earlier step; start afresh in another workdir"
    )
    return CheckpointError(f"{self.directory}/{step} {what}. {offer}.")


def _restore_args(tree: Mapping[str, Any], *, partial: bool = False):
  """Every leaf straight into its own dtype and sharding."""
  return ocp.args.PyTreeRestore(
    tree,
    restore_args=ocp.checkpoint_utils.construct_restore_args(tree),
    partial_restore=partial,
  )


def _as_tree(state: TrainState) -> dict[str, Any]:
  """Leaves by a flat name: what is on disk depends on no Python class."""
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return {_name(path): leaf for path, leaf in leaves}


def _name(path: tuple[Any, ...]) -> str:
  return ".".join(
    str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k))))
    for k in path
  )


def _shapes(tree: Mapping[str, Any]) -> dict[str, str]:
  return {
    name: f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
    for name, leaf in tree.items()
  }


def _checksums(state: TrainState) -> dict[str, int]:
  """CRC-32 of each leaf's bytes, whatever its sharding.

  Leaves that are spread over several processes are left out: no process holds
  all of their bytes.
  """
  return {
    name: zlib.crc32(np.ascontiguousarray(leaf).tobytes())
    for name, leaf in _as_tree(state).items()
    if leaf.is_fully_addressable
  }
