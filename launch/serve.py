"""Serves a run or a Hugging Face folder by OpenAI's API.

  python -m launch.serve --run=runs/quickstart
  python -m launch.serve --run=runs/quickstart@120
  python -m launch.serve --model=qwen=models/Qwen3-0.6B

The newest checkpoint of a run is served, or the one named after an `@`: a
number of updates, or `warm_start`. Prints a line for each wait, and then how to
call the server. SIGTERM and Ctrl-C finish the answers in flight, for up to
`--grace_s`. See docs/serving.md.
"""

import asyncio
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Iterator
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
from agentrl_jax.rollout.server.app import RolloutApi, listening
from agentrl_jax.rollout.server.auth import read_token
from agentrl_jax.rollout.server.state import ServerState
from agentrl_jax.train.weights.publish import Publisher
from launch.config import command_line
from launch.processes.terminal import plain_console
from launch.serving.served_model import ServedModel, find_model
from launch.serving.service import DRIVERS, grammars_by, status_of
from launch.storage.compile_cache import enable_compile_cache

_RUN = flags.DEFINE_string("run", "", "[NAME=]FOLDER[@VERSION] of a run.")
_MODEL = flags.DEFINE_string(
  "model", "", "[NAME=]FOLDER of a Hugging Face model."
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
  "slots", 8, "Answers decoded at once.", lower_bound=1
)
_DTYPE = flags.DEFINE_enum(
  "dtype", None, DTYPES, "Of weights and products; a run's own by default."
)
_TEMPLATE = flags.DEFINE_string(
  "chat_template",
  "",
  "Of --model, as chat.template in a config: hermes, llama, plain or a "
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
  "A folder for compiled programs; by default that of the run, or of the user "
  "for a model of a folder.",
)

CONSOLE = plain_console(soft_wrap=True)
_COMPILE_S = 3600.0  # for the first answer, compilation included


class ModelServer:
  """A model's engine behind a port, until a signal stops it."""

  def __init__(
    self,
    model: ServedModel,
    driver: Driver,
    *,
    answer_timeout_s: float,
    token: str | None,
  ):
    self._model, self._driver, self._token = model, driver, token
    self._generator = EngineGenerator(driver, deadline_s=answer_timeout_s)

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
      context=self._model.context,
      openai=self._openai,
      http=HttpLimits(),
      token=self._token,
      slots=lambda: tuple(self._driver.engine.stats().num_active),
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

  def _openai(self, answering: ServerState) -> OpenAIApi:
    names = dict.fromkeys(self._model.names, 0)
    model = OpenAIModel(
      FixedNames(names, lambda: self._status().policy_slots),
      ServingLimits(context=self._model.context),
      lambda: self._model.codec,
    )
    return OpenAIApi(self._generator, answering, [model])

  def _status(self) -> wire.ServerStatus:
    return status_of(self._driver)

  def _announce(self, url: str, hint: str) -> None:
    names = self._model.names
    CONSOLE.print(f"listening at {url}: {', '.join(names)}")
    head = f' -H "Authorization: Bearer $(head -n 1 {hint})"' if hint else ""
    CONSOLE.print(
      f"  curl {url}/chat/completions{head} -H 'Content-Type: application/json'"
      f' -d \'{{"model": "{names[0]}", "messages": [{{"role": "user", '
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
  """Loads a model, compiles, and returns its engine."""
  loader, compute = model.policy(), model.compute
  mesh = model.mesh()
  policy = decoding_policy(model.model, compute, list(mesh.devices.flat))
  versions = ServedWeights(1)
  publisher = Publisher(
    loader, versions, dtype=compute.dtype, to=layout_of(policy)
  )
  CONSOLE.print(f"loading {model.names[-1]} from {model.source}")
  publisher.publish(model.load(loader), model.step)
  config = EngineConfig(
    slots=(slots,),
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
      f"compiling {model.names[0]}: {slots} answers at once of up to "
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
  token = read_token(_TOKEN_FILE.value)
  _refuse_taken_port(_HOST.value, _PORT.value)
  model = find_model(
    _RUN.value,
    _MODEL.value,
    context=_CONTEXT.value,
    dtype=_DTYPE.value,
    template=_TEMPLATE.value,
  )
  if _COMPILE_CACHE.value:
    enable_compile_cache(pathlib.Path(), _COMPILE_CACHE.value)
  else:
    enable_compile_cache(*model.programs)
  with engine_of(model, slots=_SLOTS.value, driver=_DRIVER.value) as driver:
    CONSOLE.print(f"ready after {time.monotonic() - started_at:.0f} s")
    server = ModelServer(
      model, driver, answer_timeout_s=_ANSWER_S.value, token=token
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
      "want of memory, lower --slots or --context, or give --dtype=bfloat16"
    )
  except KeyboardInterrupt:
    sys.exit("told to stop before it answered")


if __name__ == "__main__":
  command_line.run(main)
