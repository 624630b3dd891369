r"""Serves rollouts to a learner in another process, from its snapshots.

  python -m launch.serve_rollouts --config=configs/pod.py --port=7100 \
    --host=0.0.0.0

Takes the learner's config: the model, the engine, `workdir` and `name` must be
the same. The devices of this process hold the policy, split along the tensor
axis. Prints one line when it is ready. SIGTERM and Ctrl-C finish the answers in
flight, for up to `rollouts.grace_s`; see docs/engine.md.
"""

import asyncio
import contextlib
import pathlib
import signal
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
from absl import flags

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.pretrained import load_chat
from agentrl_jax.errors import ConfigError, DeadlineExceeded
from agentrl_jax.garbage import spare_collections
from agentrl_jax.http_requests import HttpLimits
from agentrl_jax.rollout.drivers.driver import Driver, EngineGenerator
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.rollout.engine.placement import cache_sharding, decoding_policy
from agentrl_jax.rollout.openai.models import ModelNames
from agentrl_jax.rollout.openai.routes import OpenAIApi, OpenAIModel
from agentrl_jax.rollout.openai.schema import ServingLimits
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.server.app import RolloutApi, listening
from agentrl_jax.rollout.server.snapshots import SnapshotFollower
from agentrl_jax.rollout.server.state import ServerState
from agentrl_jax.rollout.settings import RolloutsConfig
from launch.config import command_line
from launch.config.chat import codec_of
from launch.config.settings import Settings, read_settings
from launch.processes.terminal import plain_console
from launch.serving.remote import snapshots_of
from launch.serving.service import DRIVERS, grammars_by
from launch.storage.compile_cache import enable_compile_cache

CONFIG = command_line.define_config()

_PORT = flags.DEFINE_integer(
  "port",
  7100,
  "Where to listen; 0: anywhere free.",
  lower_bound=0,
  upper_bound=65535,
)
_HOST = flags.DEFINE_string(
  "host", "127.0.0.1", "0.0.0.0 lets other machines in."
)
flags.mark_flag_as_required("config")

CONSOLE = plain_console(soft_wrap=True)


class RolloutServer:
  """Follows the snapshots and serves rollouts, until a signal stops it."""

  def __init__(
    self,
    driver: Driver,
    follower: SnapshotFollower,
    config: RolloutsConfig,
    name: str,
    codec: Callable[[], ChatCodec | None],
    http: HttpLimits,
  ):
    self._driver, self._follower, self._config = driver, follower, config
    self._codec = codec
    self._names = ModelNames(name, lambda: follower.policy_slots)
    self._limits = ServingLimits(context=driver.engine.config.context)
    self._generator = EngineGenerator(
      driver, deadline_s=config.answer_timeout_s
    )
    self._stopping = asyncio.Event()
    self._api = RolloutApi(
      self._generator,
      self._status,
      context=self._limits.context,
      openai=self._openai,
      http=http,
      token=config.read_token() or None,
      slots=lambda: driver.engine.stats().num_active,
    )

  async def run(self, host: str, port: int) -> None:
    """Serves until a signal comes, then finishes the answers in flight.

    Raises `ConfigError` if the snapshots are of another model,
    `DeadlineExceeded` if none comes, and `GeneratorFault` if the engine breaks.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
      loop.add_signal_handler(number, self._stopping.set)
    spare_collections()
    async with listening(self._api, host, port) as found:
      following = asyncio.create_task(self._follow(f"{host}:{found}"))
      stopping = asyncio.create_task(self._stopping.wait())
      ends: list[asyncio.Future[Any]] = [following, stopping, self._api.broken]
      await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
      stopping.cancel()
      if self._api.broken.done():
        following.cancel()
        raise self._api.broken.result()
      if following.done():
        await following  # raises what ended it
      following.cancel()
      CONSOLE.print("told to stop: finishing what is being answered")
      await self._api.drain(self._config.grace_s)

  async def _follow(self, address: str) -> None:
    started_at = asyncio.get_running_loop().time()
    was_serving, told = False, ""
    while True:
      await asyncio.to_thread(self._follower.look)
      if self._follower.trouble != told:
        told = self._follower.trouble
        CONSOLE.print(told or "the trouble with snapshots is over")
      if not was_serving and self._follower.is_serving:
        was_serving = True
        CONSOLE.print(f"rollout server on http://{address} {self._says()}")
      if not was_serving:
        self._refuse_to_wait(asyncio.get_running_loop().time() - started_at)
      await asyncio.sleep(self._config.poll_interval_s)

  def _refuse_to_wait(self, waited_s: float) -> None:
    if waited_s > self._config.start_timeout_s:
      raise DeadlineExceeded(
        f"the rollout server waited rollouts.start_timeout_s={waited_s:.0f} s "
        f"for weights in {self._follower.folder}. {self._follower.trouble} Is "
        "the learner running, with rollouts.servers set and the same workdir "
        "and name?"
      )

  def _says(self) -> str:
    versions = [
      policy_slot.version
      for policy_slot in self._follower.policy_slots
      if policy_slot is not None
    ]
    devices = jax.local_devices()
    return (
      f"serves versions {', '.join(map(str, versions))} on {len(devices)} "
      f"{devices[0].platform} device{'s' * (len(devices) > 1)}"
    )

  def _openai(self, answering: ServerState) -> OpenAIApi:
    model = OpenAIModel(self._names, self._limits, self._codec)
    return OpenAIApi(self._generator, answering, [model])

  def _status(self) -> wire.ServerStatus:
    return wire.ServerStatus(
      policy_slots=self._follower.policy_slots,
      num_inside=sum(self._driver.num_inside),
      num_waiting=sum(self._driver.num_waiting),
      trouble=self._follower.trouble,
    )


def serve(config: ml_collections.ConfigDict, host: str, port: int) -> None:
  """Serves the run that the config describes, until a signal comes."""
  settings = read_settings(config)
  enable_compile_cache(
    pathlib.Path(config.workdir) / config.name, config.compile_cache
  )
  policy = decoding_policy(settings.model, settings.compute)
  versions = ServedWeights(settings.engine.num_policy_slots)
  follower = SnapshotFollower(
    snapshots_of(config), policy, versions, weights=settings.engine.weights
  )
  codec = codec_provider(config, settings)
  engine = RolloutEngine(
    policy,
    settings.engine,
    versions,
    cache_sharding=cache_sharding(policy.mesh),
    grammars=grammars_by(codec, policy),
  )

  async def run(driver: Driver) -> None:
    server = RolloutServer(
      driver, follower, settings.rollouts, config.name, codec, settings.http
    )
    await server.run(host, port)

  with DRIVERS[config.engine.driver](engine) as driver:
    asyncio.run(run(driver))


def codec_provider(
  config: ml_collections.ConfigDict, settings: Settings
) -> Callable[[], ChatCodec | None]:
  """Returns a function that finds the run's chat once it is written.

  It returns None until then, and for good where the two share no folder.
  """
  run = pathlib.Path(config.workdir) / config.name
  found: list[ChatCodec] = []

  def codec() -> ChatCodec | None:
    if not found:
      with contextlib.suppress(ConfigError):
        found.append(codec_of(run, settings.chat))
    if not found and config.pretrained.path:
      folder = pathlib.Path(config.pretrained.path)
      found.append(load_chat(folder, settings.chat))
    return found[0] if found else None

  return codec


def main() -> None:
  """Serves as the flags say."""
  serve(CONFIG.value, _HOST.value, _PORT.value)


if __name__ == "__main__":
  command_line.run(main)
