"""An open run: its config, its folder, and the processes that train it."""

import contextlib
import dataclasses
import pathlib
import shutil
from collections.abc import Iterator

import ml_collections
from etils import epath

from agentrl_jax import logs
from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.tensor_files import model_digest
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.custom_trial import try_advantage, try_loss
from launch.config.checks import refuse_absent
from launch.config.settings import Settings, read_settings
from launch.processes.devices import connect_devices
from launch.processes.group import Processes, joined
from launch.processes.interrupts import Interrupts, listen
from launch.storage.compile_cache import compile_cache
from launch.storage.config_paths import absolute
from launch.storage.load_params import with_teacher
from launch.storage.run_directory import RUN, RunDirectory

# Stages of which nothing is worth keeping if they end in a refusal. Of later
# ones there are metrics, and what the agents' program wrote.
_PREPARING = {RUN, "tokenizer", "demonstrations"}


@dataclasses.dataclass(frozen=True)
class RunContext:
  """State that every stage of a run shares, in every learner process."""

  config: ml_collections.ConfigDict  # with absolute ones
  settings: Settings
  policy: Policy
  folder: RunDirectory
  processes: Processes
  interrupts: Interrupts

  @contextlib.contextmanager
  def timed(self, stage: str) -> Iterator[None]:
    """Times a stage that is not done yet, in process 0, and marks it done."""
    if self.processes.leads and not self.folder.is_done(stage):
      with self.folder.stage(stage):
        yield
    else:
      yield


@contextlib.contextmanager
def open_run(config: ml_collections.ConfigDict) -> Iterator[RunContext]:
  """Checks a config and opens its run, new or resumed, in this process.

  Joins the other learner processes, locks the run's folder (process 0) and
  defers SIGINT and SIGTERM, until the context is left. Raises `ConfigError`
  before anything is compiled or started, if the config cannot work. A start
  that is refused before a stage has finished leaves no folder.
  """
  root = pathlib.Path(config.workdir) / config.name
  made = [path for path in (root, *root.parents) if not path.exists()]
  config = absolute(config)
  settings = with_teacher(read_settings(config))
  logs.about_process({"agentrl.run": config.name})
  refuse_absent(settings.policy_slots)
  with joined(settings.processes) as processes, contextlib.ExitStack() as stack:
    # Process 0 chooses the folder of checkpoints for all.
    directory = config.checkpoint.directory
    folder = RunDirectory(root, directory if processes.leads else "")
    if processes.leads:
      stack.enter_context(_removed_if_refused(folder, made))
    _require_one_model(config.pretrained.path, processes)
    if directory:
      place = processes.share_json(
        str(folder.checkpoints_root), what="the folder of checkpoints"
      )
      folder.checkpoints_root = epath.Path(place)
    try_loss(settings.loss)
    try_advantage(settings.advantage)
    stack.enter_context(compile_cache(folder.root, config.compile_cache))
    mesh = sharding.make_mesh(settings.mesh, slices=settings.slices)
    policy = Policy(settings.model, settings.compute, mesh, settings.lora)
    connect_devices(mesh, processes)
    interrupts = stack.enter_context(
      listen(processes, settings.checkpoint.grace_s, folder.newest)
    )
    if processes.leads:
      stack.enter_context(folder.held())
    yield RunContext(config, settings, policy, folder, processes, interrupts)


@contextlib.contextmanager
def _removed_if_refused(
  folder: RunDirectory, made: list[pathlib.Path]
) -> Iterator[None]:
  """Removes what this start has `made` for a run that it then refuses."""
  try:
    yield
  except ConfigError:
    partial = {path.stem for path in (folder.root / "done").glob("*.partial")}
    if made and partial <= _PREPARING and not folder.is_begun():
      shutil.rmtree(folder.root)
      for path in made[1:]:
        with contextlib.suppress(OSError):  # another run has begun there
          path.rmdir()
    raise


def _require_one_model(folder: str, processes: Processes) -> None:
  """Raises `ConfigError` in a process that would read another model."""
  if not folder or processes.count == 1:
    return
  own = model_digest(folder)
  first = processes.share_json(own, what="the digest of the model")
  if own != first:
    raise ConfigError(
      f"pretrained.path={folder} holds another model on this host (digest "
      f"{own}) than on that of process 0 ({first}): copy the same to all"
    )
