"""Loads weights from a folder into an engine of another project.

A label names the publication of this run that the engine serves, and
`rollout.external.client` relies on it. It is set after the weights are loaded,
while nothing is sampled, and removed before a load that may fail half-way.
docs/engine.md lists the assumptions about the engines.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

from agentrl_jax.bearer_token import bearer
from agentrl_jax.errors import AgentRLError, CheckpointError
from agentrl_jax.rollout.external.http import EngineHttp
from agentrl_jax.rollout.external.response import EngineDialect, label_of
from agentrl_jax.rollout.remote.client import CONNECT_TIMEOUT_S
from agentrl_jax.rollout.remote.wire import ServedPolicySlot

LOADING = "loading"  # a label that names no weights


class EngineLoader:
  """Loads weights into one engine on this host, which has the folders."""

  def __init__(
    self, address: str, dialect: EngineDialect, *, token: str, load_s: float
  ):
    self._address, self._dialect = address, dialect
    self._token, self._load_s = token, load_s

  async def load(self, folder: str, served: ServedPolicySlot) -> None:
    """Waits until the engine serves a Hugging Face folder under its label.

    Running requests are finished on the old weights first. Raises
    `CheckpointError` if the load fails.
    """
    async with self._connect() as engine:
      load = _load_sglang if self._dialect.name == "sglang" else _load_vllm
      await load(engine, self._address, folder, label_of(served))
      reported = await engine.label(self._address, CONNECT_TIMEOUT_S)
      if reported != served:
        raise CheckpointError(
          f"{self._address} was given version {served.version} under the label "
          f"{label_of(served)} and reports that it serves {reported}"
        )

  async def serves(self, served: ServedPolicySlot) -> bool:
    """Returns whether the engine still has these weights after a restart."""
    async with self._connect() as engine:
      return await engine.label(self._address, CONNECT_TIMEOUT_S) == served

  @contextlib.asynccontextmanager
  async def _connect(self) -> AsyncIterator[EngineHttp]:
    try:
      async with (
        asyncio.timeout(self._load_s),
        aiohttp.ClientSession(headers=bearer(self._token)) as http,
      ):
        yield EngineHttp(http, self._dialect)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
      raise CheckpointError(
        f"{self._address} cannot be given weights: {error!r}"
      ) from error
    except AgentRLError as error:
      raise CheckpointError(
        f"{self._address} did not take the weights: {error}"
      ) from error


async def _load_sglang(
  engine: EngineHttp, address: str, folder: str, label: str
) -> None:
  """Loads after running requests; SGLang keeps the old weights on failure."""
  await engine.post(
    address,
    "/update_weights_from_disk",
    {
      "model_path": folder,
      "weight_version": label,
      "abort_all_requests": False,
      "flush_cache": True,
    },
  )


async def _load_vllm(
  engine: EngineHttp, address: str, folder: str, label: str
) -> None:
  """Loads with vLLM's development endpoints while it is paused."""
  await engine.post(address, "/pause?mode=wait", {})
  try:
    await engine.post(
      address, "/update_weight_version", {"new_version": LOADING}
    )
    await engine.post(
      address,
      "/collective_rpc",
      {"method": "reload_weights", "kwargs": {"weights_path": folder}},
    )
    await engine.post(address, "/reset_prefix_cache", {})
    await engine.post(address, "/update_weight_version", {"new_version": label})
  finally:
    await engine.post(address, "/resume", {})
