r"""Loads the learner's weights into an engine of another project.

  python -m launch.sync_weights --config=configs/pod.py \
    --config.rollouts.protocol=openai --engine=127.0.0.1:8000 \
    --folder=/dev/shm/weights

Runs beside each vLLM or SGLang, on its host, with the learner's config. It
follows the run's snapshots, writes each as a Hugging Face folder below
`--folder`, has the engine load it, and labels the served weights with their
version; the learner samples from no others. It needs no accelerator: start it
with JAX_PLATFORMS=cpu. See docs/engine.md.
"""

import asyncio
import pathlib
import shutil
import time
from typing import Any

import ml_collections
from absl import flags

from agentrl_jax.data.snapshot_manifest import Snapshot
from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.engine.engine import ServedWeights
from agentrl_jax.rollout.external.client import DIALECTS
from agentrl_jax.rollout.external.weight_loader import EngineLoader
from agentrl_jax.rollout.remote.wire import ServedPolicySlot
from agentrl_jax.rollout.server.snapshots import SnapshotFollower
from launch.config import command_line
from launch.config.settings import Settings, read_settings
from launch.processes.terminal import plain_console
from launch.serving.remote import snapshots_of

CONFIG = command_line.define_config()

_ENGINE = flags.DEFINE_string("engine", None, "host:port.", required=True)
_FOLDER = flags.DEFINE_string(
  "folder", None, "Where folders are written for it.", required=True
)

CONSOLE = plain_console(soft_wrap=True)


class EngineWeights(SnapshotFollower):
  """Keeps one engine at the weights of policy slot 0 in a snapshot folder."""

  def __init__(
    self,
    snapshots: str,
    settings: Settings,
    engine: EngineLoader,
    place: pathlib.Path,
  ):
    policy = Policy(settings.model, settings.compute)
    super().__init__(snapshots, policy, ServedWeights(1))
    self._settings, self._engine = settings, engine
    self._place = place.resolve()

  def look(self) -> bool:
    """Loads new weights into the engine, or those that it lost by a restart."""
    served = self.policy_slots[0]
    try:
      if served is not None and not asyncio.run(self._engine.serves(served)):
        self.policy_slots = (None,)
    except CheckpointError as error:
      self.trouble = str(error)
      return False
    return super().look()

  def hand_over(
    self, policy_slot: int, params: Any, snapshot: Snapshot
  ) -> None:
    """Writes a folder, has the engine load it, and removes it."""
    served = ServedPolicySlot(snapshot.version, snapshot.publication)
    folder = self._place / f"step_{served.version}_{served.publication}"
    shutil.rmtree(folder, ignore_errors=True)
    pretrained = self._settings.pretrained
    write_params(
      folder,
      params,
      self._settings.model,
      context=self._settings.engine.context,
      dtype=self._settings.compute.dtype,
      beside=pathlib.Path(pretrained) if pretrained else None,
    )
    try:
      asyncio.run(self._engine.load(str(folder), served))
    finally:
      shutil.rmtree(folder)


def follow(config: ml_collections.ConfigDict, engine: str, place: str) -> None:
  """Follows the run that the config describes until the process ends.

  Raises `ConfigError` if the snapshots are of another model.
  """
  settings = read_settings(config)
  rollouts = settings.rollouts
  if rollouts.protocol not in DIALECTS:
    raise ConfigError(
      f"rollouts.protocol={rollouts.protocol!r} needs no weights from here; "
      f"it should be one of {', '.join(DIALECTS)}"
    )
  weights = EngineWeights(
    snapshots_of(config),
    settings,
    EngineLoader(
      engine,
      DIALECTS[rollouts.protocol],
      token=rollouts.read_token(),
      load_s=rollouts.sync_timeout_s,
    ),
    pathlib.Path(place),
  )
  told = ""
  while True:
    if weights.look():
      CONSOLE.print(f"{engine} serves {weights.policy_slots[0]}")
    if weights.trouble != told:
      told = weights.trouble
      CONSOLE.print(told or "the trouble is over")
    time.sleep(rollouts.poll_interval_s)


def main() -> None:
  """Follows the run as the flags say."""
  assert _ENGINE.value and _FOLDER.value, "app.run requires them"
  try:
    follow(CONFIG.value, _ENGINE.value, _FOLDER.value)
  except KeyboardInterrupt:
    CONSOLE.print("told to stop; the engine goes on with what it has")


if __name__ == "__main__":
  flags.mark_flag_as_required("config")
  command_line.run(main)
