"""Checkpoints of the learner's state and the run's position.

- A step holds the state (params, optimizer, version), the controller's position
  (task stream, tasks in flight, finished groups) and a checksum of every leaf.
- Each process writes its own shards; a restore lays them out for its own mesh.
- Orbax commits a step in one rename, so a kill at any time leaves the step
  before it intact.
- A step that cannot be restored is refused by file and leaf, with the step to
  fall back to.
- A step says whose it is: the settings, tokenizer and model of its run. One of
  another run is refused by what differs.
"""

import contextlib
import dataclasses
import os
import reprlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath

from agentrl_jax.data.snapshot_manifest import open_folder
from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.files import writing
from agentrl_jax.keys import Section, key, seconds
from agentrl_jax.model.checksums import checksums, named_leaves
from agentrl_jax.model.policy import Params
from agentrl_jax.train.learner import TrainState

# A thread holds it while it begins a save. Orbax has one number of the latest
# save for the whole process, by which the threads of a save find each other:
# where two threads begin saves at once, the numbers mix and a save never ends.
BEGINNING_A_SAVE = threading.Lock()

_CHECKSUMS, _POSITION, _PINNED = "checksums", "position", "pinned"
_OWNER = "owner"
_MOST_NAMED = 8  # settings that a sentence names
_SHORT = reprlib.Repr()  # of values that may be long lists


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Section, section="checkpoint"):
  """The `checkpoint` section of the config."""

  every: int = key(25, "updates between checkpoints", at_least=1)
  keep: int = key(
    3,
    "number of the newest that are kept: a damaged newest one needs another "
    "to fall back to",
    at_least=2,
  )
  keep_every: int = key(0, "updates whose multiples are kept for good; 0: none")
  grace_s: float = seconds(
    30.0, "time from a signal to stop to the end of the checkpoint"
  )
  directory: str = key(
    "",
    "folder or bucket (gs://...) that every process reaches; each run has a "
    "folder of its own in it. '' is the run's own folder",
  )
  resume_step: int = key(
    -1, "update to resume from; -1 is the newest checkpoint", at_least=-1
  )
  keep_best: str = key(
    "",
    "mode of evaluations during RL, greedy or sampled, by which the best "
    "version is kept and ends the run; '': the last version does",
    one_of=("", "greedy", "sampled"),
  )


class Checkpoints:
  """The checkpoints of one stage of a run.

  All processes of a run make the same calls; each writes its own shards.
  """

  def __init__(
    self,
    directory: epath.PathLike,
    *,
    keep: int,
    keep_every: int = 0,
    owner: Mapping[str, Any] | None = None,
  ):
    """`owner` has facts of the run, as JSON values; None takes any run's."""
    self._owner = owner
    self.directory = open_folder(os.fspath(directory))
    self._retention = Retention(keep, keep_every)
    self._manager = ocp.CheckpointManager(
      self.directory,
      options=ocp.CheckpointManagerOptions(
        preservation_policy=self._retention,
        enable_async_checkpointing=True,
        # Other writers may run at the same time, with barriers of their own.
        multiprocessing_options=ocp.options.MultiprocessingOptions(
          barrier_sync_key_prefix=f"checkpoints_{self.directory.name}"
        ),
      ),
      item_handlers={
        "state": ocp.PyTreeCheckpointHandler(),
        "about": _AboutHandler(),
      },
    )
    for step in self.steps():
      self._retention.pinned[step] = self._pinned_by(step)

  def steps(self) -> list[int]:
    """Returns the steps that are saved or being saved, oldest first."""
    return sorted(self._manager.all_steps())

  def pin(self, steps: Sequence[int]) -> None:
    """Keeps these steps as long as the checkpoints that are saved from now on.

    Older policy slots serve them, and will serve them after a resume.
    """
    self._retention.needed = tuple(sorted(set(steps)))

  def save(self, state: TrainState, position: Mapping[str, Any]) -> None:
    """Starts writing; returns when the arrays may be overwritten.

    `position` holds JSON values that `restore` returns beside the state.
    """
    tree = named_leaves(state)
    sums = checksums(tree)
    pinned = self._retention.needed
    step = int(state.version)

    def about() -> dict[str, Any]:
      return {
        _CHECKSUMS: {name: int(number) for name, number in sums.items()},
        _PINNED: list(pinned),
        _OWNER: dict(self._owner or {}),
        _POSITION: dict(position),
      }

    self._retention.pinned[step] = pinned
    self.wait()  # as the manager would, but without the lock
    with BEGINNING_A_SAVE, writing(self.directory):
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.PyTreeSave(tree), about=_AboutSave(about)
        ),
      )

  def wait(self) -> None:
    """Waits until every saved step is on disk. Raises `NotWritten`."""
    with writing(self.directory):
      self._manager.wait_until_finished()

  def restore(
    self, abstract: TrainState, step: int | None = None
  ) -> tuple[TrainState, dict[str, Any]]:
    """Reads the state, in the shardings of `abstract`, and the position.

    Raises `CheckpointError` if the step is damaged or of another model.
    """
    step = self.chosen(step)
    about = self._about(step)
    self._refuse_foreign(about, step)
    self._refuse_other_shapes(abstract, step)
    tree = self._read(step, named_leaves(abstract))
    self._refuse_damage(tree, about[_CHECKSUMS], step)
    return _from_tree(abstract, tree), about[_POSITION]

  def restore_params(
    self, abstract: TrainState, step: int | None = None
  ) -> Params:
    """Reads the params of a step alone, as an older version to sample from."""
    step = self.chosen(step)
    about = self._about(step)
    self._refuse_foreign(about, step)
    self._refuse_other_shapes(abstract, step)
    of_params = dataclasses.replace(abstract, optimizer=(), version=())
    tree = self._read(step, named_leaves(of_params), partial=True)
    self._refuse_damage(tree, about[_CHECKSUMS], step)
    return _from_tree(of_params, tree).params

  def forget_after(self, step: int) -> None:
    """Deletes later steps: a run that resumes at `step` writes its own."""
    for later in [s for s in self.steps() if s > step]:
      self._manager.delete(later)

  def close(self) -> None:
    """Waits until every saved step is on disk, and closes Orbax's manager."""
    with writing(self.directory):
      self._manager.close()

  def chosen(self, step: int | None = None) -> int:
    """Returns the step that `restore` takes: `step`, or the newest for None.

    Waits if the step is still being written. Raises `CheckpointError` if there
    is none.
    """
    steps = self.steps()
    if not steps:
      raise CheckpointError(f"{self.directory} holds no checkpoint")
    if step is None:
      step = steps[-1]
    if step not in steps:
      raise CheckpointError(
        f"{self.directory} has no step {step}; there are {steps}"
      )
    if step == steps[-1]:
      self.wait()  # the newest may still be being written
    return step

  def _read(
    self, step: int, tree: Mapping[str, Any], *, partial: bool = False
  ) -> Mapping[str, Any]:
    """Reads every leaf directly into its dtype and sharding."""
    state = ocp.args.PyTreeRestore(
      tree,
      restore_args=ocp.checkpoint_utils.construct_restore_args(tree),
      partial_restore=partial,
    )
    with self._reading(step):
      args = ocp.args.Composite(state=state)
      return self._manager.restore(step, args=args)["state"]

  @contextlib.contextmanager
  def _reading(self, step: int) -> Iterator[None]:
    """Turns errors of Orbax into a `CheckpointError` about the step."""
    try:
      yield
    except jax.errors.JaxRuntimeError:
      raise  # an error of the devices: the files may be good
    except Exception as error:  # noqa: BLE001 - Orbax raises it bare, too
      raise self._damaged(step, f"cannot be read: {error}") from error

  def _about(self, step: int) -> Mapping[str, Any]:
    with self._reading(step):
      about = ocp.args.Composite(about=_AboutRestore())
      about = self._manager.restore(step, args=about)["about"]
    missing = {_CHECKSUMS, _POSITION} - set(about)
    if missing:
      raise self._damaged(step, f"has no {sorted(missing)}")
    return about

  def _pinned_by(self, step: int) -> tuple[int, ...]:
    """Returns the steps that an existing step pins; none if it is damaged."""
    try:
      return tuple(self._about(step).get(_PINNED, ()))
    except CheckpointError:
      return ()

  def _refuse_foreign(self, about: Mapping[str, Any], step: int) -> None:
    """Refuses a step of another run; one that names no run may be anybody's.

    A fact that one of the two lacks is of another version of this code.
    """
    theirs, ours = about.get(_OWNER) or {}, self._owner or {}
    differing = [
      f"{key} is {_SHORT.repr(theirs[key])} there and {_SHORT.repr(ours[key])} "
      "here"
      for key in sorted(theirs.keys() & ours.keys())
      if theirs[key] != ours[key]
    ]
    if differing:
      more = len(differing) - _MOST_NAMED
      raise ConfigError(
        f"{self.directory}/{step} is of another run: "
        f"{'; '.join(differing[:_MOST_NAMED])}"
        f"{f'; and {more} more' if more > 0 else ''}. Set them back to go on "
        "from it, or remove this folder from the run, which then begins afresh"
      )

  def _refuse_other_shapes(self, abstract: TrainState, step: int) -> None:
    with self._reading(step):
      metadata = self._manager.item_metadata(step)["state"]
      if metadata is None:
        raise ValueError("no metadata")
    expected = _shapes(named_leaves(abstract))
    actual = _shapes(getattr(metadata, "tree", metadata))
    differing = [
      leaf
      for leaf in sorted(set(expected) | set(actual))
      if expected.get(leaf) != actual.get(leaf)
    ]
    if differing:
      leaf = differing[0]
      raise self._damaged(
        step,
        f"is of another model or dtype: leaf {leaf} is "
        f"{actual.get(leaf, 'absent')} there and "
        f"{expected.get(leaf, 'absent')} here, and {len(differing) - 1} more "
        "leaves differ",
      )

  def _refuse_damage(
    self, tree: Mapping[str, Any], written: Mapping[str, int], step: int
  ) -> None:
    for leaf, number in checksums(dict(tree)).items():
      if int(number) != written.get(leaf):
        raise self._damaged(
          step,
          f"is damaged: leaf {leaf} has checksum {number}, and "
          f"{written.get(leaf)} was written",
        )

  def _damaged(self, step: int, problem: str) -> CheckpointError:
    earlier = [s for s in self.steps() if s < step]
    offer = (
      f"Step {earlier[-1]} before it can be restored instead: set "
      f"--config.checkpoint.resume_step={earlier[-1]}"
      if earlier
      else "There is no earlier step; start afresh in another workdir"
    )
    return CheckpointError(f"{self.directory}/{step} {problem}. {offer}.")


class _AboutHandler(ocp.JsonCheckpointHandler):
  """Writes JSON that is made in Orbax's own thread.

  Checksums are still being computed when `save` returns, and groups take time
  to convert to text.
  """

  async def _save_fn(self, x: Callable[[], Any], directory: Any) -> None:
    await super()._save_fn(x(), directory)


@ocp.args.register_with_handler(_AboutHandler, for_save=True)
@dataclasses.dataclass
class _AboutSave(ocp.args.CheckpointArgs):
  item: Callable[[], Any]


@ocp.args.register_with_handler(_AboutHandler, for_restore=True)
@dataclasses.dataclass
class _AboutRestore(ocp.args.CheckpointArgs):
  item: None = None


def _from_tree(like: TrainState, tree: Mapping[str, Any]) -> TrainState:
  return jax.tree.unflatten(
    jax.tree.structure(like), [tree[name] for name in named_leaves(like)]
  )


def _shapes(tree: Mapping[str, Any]) -> dict[str, str]:
  return {name: describe_leaf(leaf) for name, leaf in tree.items()}


class Retention:
  """An Orbax preservation policy.

  Keeps the newest `keep` steps, multiples of `keep_every` (unless that is 0),
  and the steps that any of these pins.
  """

  def __init__(self, keep: int, keep_every: int):
    self._keep, self._keep_every = keep, keep_every
    self.needed: tuple[int, ...] = ()  # pinned by steps that are saved now
    self.pinned: dict[int, tuple[int, ...]] = {}  # steps that a step pins

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: Any
  ) -> list[bool]:
    """Returns for each checkpoint, oldest first, whether it is kept."""
    del context
    steps = [info.step for info in checkpoints]
    kept = set(steps[-self._keep :])
    if self._keep_every:
      kept |= {step for step in steps if step % self._keep_every == 0}
    kept |= {pin for step in kept for pin in self.pinned.get(step, ())}
    kept |= set(self.needed)
    return [step in kept for step in steps]


def describe_leaf(leaf: Any) -> str:
  """Returns a leaf's dtype and shape, as in "float32[2, 64]"."""
  return f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}"
