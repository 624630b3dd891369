"""Serves runs and Hugging Face folders by OpenAI's API.

  python -m launch.serve --run=runs/quickstart
  python -m launch.serve --run=runs/quickstart@newest,120,warm_start
  python -m launch.serve --model=qwen=models/Qwen3-0.6B --run=runs/quickstart

The newest checkpoint of a run is served, or those named after an `@`: numbers
of updates, `newest`, `warm_start`, `all`. Requests choose by `model`:
`quickstart` is the first of them, `quickstart@120` and `quickstart@warm_start`
name one each; `GET /v1/models` lists the names. Prints a line for each wait,
and then how to call the server. SIGTERM and Ctrl-C finish the answers in
flight, for up to `--grace_s`. See docs/serving.md.
"""

import asyncio
import contextlib
import functools
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from absl import flags

from agentrl_jax.errors import ConfigError
from agentrl_jax.garbage import spare_collections
from agentrl_jax.http_requests import HttpLimits
from agentrl_jax.model.compute import DTYPES
from agentrl_jax.rollout.api import EngineConfig, SamplingParams
from agentrl_jax.rollout.drivers.driver import Driver, EngineGenerator
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.rollout.engine.placement import (
  cache_sharding,
  decoding_policy,
  layout_of,
)
from agentrl_jax.rollout.openai.models import FixedNames
from agentrl_jax.rollout.openai.routes import OpenAIApi, OpenAIModel
from agentrl_jax.rollout.openai.schema import ServingLimits
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.joined_generator import JoinedGenerator
from agentrl_jax.rollout.server.app import RolloutApi, listening
from agentrl_jax.rollout.server.auth import read_token
from agentrl_jax.rollout.server.state import ServerState
from agentrl_jax.train.weights.publish import Publisher
from configs.base import defaults
from launch.config import command_line
from launch.processes.terminal import plain_console
from launch.serving.served_models import ServedModel, find_models
from launch.serving.service import DRIVERS, grammars_by, status_of
from launch.storage.compile_cache import enable_compile_cache

_RUN = flags.DEFINE_multi_string(
  "run", [], "[NAME=]FOLDER[@VERSIONS] of a run; may be given several times."
)
_MODEL = flags.DEFINE_multi_string(
  "model", [], "[NAME=]FOLDER of a Hugging Face model; likewise."
)
_HOST = flags.DEFINE_string(
  "host", "127.0.0.1", "0.0.0.0 lets other machines in."
)
_PORT = flags.DEFINE_integer(
  "port",
  8000,
  "Where to listen; 0: anywhere free.",
  lower_bound=0,
  upper_bound=65535,
)
_TOKEN_FILE = flags.DEFINE_string(
  "token_file", "", "Its first line is what clients give as api_key."
)
_CONTEXT = flags.DEFINE_integer(
  "context", None, "Tokens of prompt and answer together; see docs/serving.md."
)
_SLOTS = flags.DEFINE_integer(
  "slots", 8, "Answers decoded at once, of each version."
)
_DTYPE = flags.DEFINE_enum(
  "dtype", None, DTYPES, "Of weights and products; a run's own by default."
)
_TEMPLATE = flags.DEFINE_string(
  "chat_template",
  "",
  "Of every --model, as chat.template in a config: hermes, llama, plain or a "
  "file; its own by default.",
)
_DRIVER = flags.DEFINE_enum(
  "driver", "jetstream", tuple(DRIVERS), "local needs no google-jetstream."
)
_ANSWER_S = flags.DEFINE_float(
  "answer_timeout_s",
  600.0,
  "For one answer.",
  lower_bound=1e-3,
  upper_bound=1e9,
)
_GRACE_S = flags.DEFINE_float(
  "grace_s",
  30.0,
  "For what is being answered at SIGTERM.",
  lower_bound=0,
  upper_bound=1e9,
)
_COMPILE_CACHE = flags.DEFINE_string(
  "compile_cache",
  "",
  "A folder for compiled programs; by default "
  "that of the run, or of the user for models of folders.",
)

CONSOLE = plain_console(soft_wrap=True)
_COMPILE_S = 3600.0  # for the first answer, compilation included


class ModelServer:
  """Engines of one or more models behind one port, until a signal stops it."""

  def __init__(
    self,
    models: Sequence[ServedModel],
    drivers: Sequence[Driver],
    *,
    answer_timeout_s: float,
    token: str | None,
  ):
    self._drivers = tuple(drivers)
    self._generator = JoinedGenerator(
      [
        EngineGenerator(driver, deadline_s=answer_timeout_s)
        for driver in drivers
      ]
    )
    self._models = [
      self._of(model, first)
      for model, first in zip(
        models, self._generator.first_policy_slots, strict=True
      )
    ]
    self._token = token
    self.names = [
      name for model in models for v in model.versions for name in v.names
    ]

  async def run(
    self, host: str, port: int, *, grace_s: float, hint: str
  ) -> None:
    """Serves until a signal comes, then finishes the answers in flight.

    Raises `ConfigError` for a port that is taken, `GeneratorFault` if an engine
    breaks, and `DeadlineExceeded` if answers take longer than `grace_s` to end.
    """
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
      loop.add_signal_handler(number, told.set)
    api = RolloutApi(
      self._generator,
      self._status,
      context=max(model.limits.context for model in self._models),
      openai=self._openai,
      http=defaults(HttpLimits, "http"),
      token=self._token,
      slots=self._active,
    )
    spare_collections()
    async with listening(api, host, port) as found:
      self._announce(f"http://{_reachable(host)}:{found}/v1", hint)
      stopping = asyncio.create_task(told.wait())
      ends: list[asyncio.Future[Any]] = [stopping, api.broken]
      await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
      stopping.cancel()
      if api.broken.done():
        raise api.broken.result()
      CONSOLE.print("told to stop: finishing what is being answered")
      await api.drain(grace_s)

  def _of(self, model: ServedModel, first: int) -> OpenAIModel:
    policy_slots = {
      name: first + number
      for number, version in enumerate(model.versions)
      for name in version.names
    }
    return OpenAIModel(
      FixedNames(policy_slots, lambda: self._status().policy_slots),
      ServingLimits(context=model.context),
      lambda: model.codec,
    )

  def _openai(self, answering: ServerState) -> OpenAIApi:
    return OpenAIApi(self._generator, answering, self._models)

  def _status(self) -> wire.ServerStatus:
    found = [status_of(driver) for driver in self._drivers]
    return wire.ServerStatus(
      policy_slots=tuple(
        policy_slot for status in found for policy_slot in status.policy_slots
      ),
      num_inside=sum(status.num_inside for status in found),
      num_waiting=sum(status.num_waiting for status in found),
    )

  def _active(self) -> tuple[int, ...]:
    return tuple(
      number
      for driver in self._drivers
      for number in driver.engine.stats().num_active
    )

  def _announce(self, url: str, hint: str) -> None:
    CONSOLE.print(f"listening at {url}: {', '.join(self.names)}")
    head = f' -H "Authorization: Bearer $(head -n 1 {hint})"' if hint else ""
    CONSOLE.print(
      f"  curl {url}/chat/completions{head} -H 'Content-Type: application/json'"
      f' -d \'{{"model": "{self.names[0]}", "messages": [{{"role": "user", '
      '"content": "Hello"}]}\''
    )


def _reachable(host: str) -> str:
  """Returns a host name by which this machine can call the server."""
  if host in ("0.0.0.0", "::", ""):
    return "127.0.0.1"
  return f"[{host}]" if ":" in host else host


@contextmanager
def engine_of(
  model: ServedModel, *, slots: int, driver: str
) -> Iterator[Driver]:
  """Loads every version of a model, compiles, and returns its engine."""
  loader, compute = model.policy(), model.compute
  mesh = model.mesh()
  policy = decoding_policy(model.model, compute, list(mesh.devices.flat))
  number = len(model.versions)
  versions = ServedWeights(number)
  publisher = Publisher(
    loader, versions, dtype=compute.dtype, to=layout_of(policy)
  )
  for policy_slot, version in enumerate(model.versions):
    CONSOLE.print(f"loading {version.names[-1]} from {version.source}")
    publisher.publish(
      version.load(loader), version.step, policy_slot=policy_slot
    )
  config = defaults(
    EngineConfig,
    "engine",
    slots=(slots,) * number,
    context=model.context,
    lengths=tuple(n for n in (512, 2048, 8192) if n < model.context),
  )
  engine = RolloutEngine(
    policy,
    config,
    versions,
    cache_sharding=cache_sharding(policy.mesh),
    grammars=grammars_by(lambda: model.codec, policy),
  )
  with DRIVERS[driver](engine) as running:
    devices = (
      f"{mesh.size} {jax.default_backend()} device{'s'[: mesh.size - 1]}"
    )
    CONSOLE.print(
      f"compiling {model.name}: {slots} answers at once of up to "
      f"{model.context} tokens, {compute.dtype}, {devices}; programs of other "
      "sizes are compiled when they are first needed"
    )
    _compile(running, model.model.vocab_size)
    yield running


def _compile(driver: Driver, vocab_size: int) -> None:
  """Answers once per batch size that programs are compiled for."""
  config = driver.engine.config
  size = max(min(config.prefill_chunks[0], config.context - 2), 1)
  spec = SamplingParams(max_tokens=1, temperature=1.0)
  for number in config.slot_sizes(config.slots[0]):
    prompts = (np.arange(size) + n for n in range(number))
    asked = [driver.submit(p % vocab_size, spec) for p in prompts]
    for answer in asked:
      answer.result(_COMPILE_S)


def _refuse_taken_port(host: str, port: int) -> None:
  """Raises `ConfigError` before minutes go into loading."""
  try:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family):
      pass
  except OSError as error:
    raise ConfigError(
      f"cannot listen on {host}:{port} ({error.strerror}); choose another "
      "--port or --host"
    ) from error


def serve() -> None:
  """Serves the models that the flags name until a signal comes."""
  started_at = time.monotonic()
  if _SLOTS.value < 1:
    raise ConfigError(f"--slots={_SLOTS.value} must be at least 1")
  token = read_token(_TOKEN_FILE.value)
  _refuse_taken_port(_HOST.value, _PORT.value)
  models = find_models(
    _RUN.value,
    _MODEL.value,
    context=_CONTEXT.value,
    dtype=_DTYPE.value,
    template=_TEMPLATE.value,
  )
  if _COMPILE_CACHE.value:
    enable_compile_cache(pathlib.Path(), _COMPILE_CACHE.value)
  else:
    enable_compile_cache(*models[0].programs)
  with contextlib.ExitStack() as engines:
    make = functools.partial(
      engine_of, slots=_SLOTS.value, driver=_DRIVER.value
    )
    drivers = [engines.enter_context(make(model)) for model in models]
    CONSOLE.print(f"ready after {time.monotonic() - started_at:.0f} s")
    server = ModelServer(
      models, drivers, answer_timeout_s=_ANSWER_S.value, token=token
    )
    asyncio.run(
      server.run(
        _HOST.value, _PORT.value, grace_s=_GRACE_S.value, hint=_TOKEN_FILE.value
      )
    )


def main() -> None:
  """Serves as the flags say."""
  try:
    serve()
  except (jax.errors.JaxRuntimeError, MemoryError) as error:
    sys.exit(
      f"the devices refused: {str(error).partition(chr(10))[0]}. If it is for "
      "want of memory, lower --slots, --context or the number of versions, or "
      "give --dtype=bfloat16"
    )
  except KeyboardInterrupt:
    sys.exit("told to stop before it answered")


if __name__ == "__main__":
  command_line.run(main)
