"""Has an engine of another project load weights from a folder, under a label.

The label names a publication of this run, which `rollout.external.client`
believes. So it is given once the weights are loaded, while nothing is sampled,
and taken away before a load that might stop half-way. What is assumed of the
engines is listed in docs/engines.md.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

from agentrl_jax.errors import AgentRLError, CheckpointError
from agentrl_jax.rollout.external.http import EngineHttp
from agentrl_jax.rollout.external.response import Dialect, label_of
from agentrl_jax.rollout.remote.client import CONNECT_S, bearer
from agentrl_jax.rollout.remote.wire import ServedPolicySlot

LOADING = "loading"  # a label that names no weights


class EngineLoader:
  """One engine, on the host that has the folders."""

  def __init__(
    self, address: str, dialect: Dialect, *, token: str, load_s: float
  ):
    self._address, self._dialect = address, dialect
    self._token, self._load_s = token, load_s

  async def load(self, folder: str, served: ServedPolicySlot) -> None:
    """Waits until the engine serves a Hugging Face folder under its label.

    What is being answered is finished on the old weights first. Raises
    `CheckpointError` if it does not come to that.
    """
    async with self._asking() as engine:
      load = _load_sglang if self._dialect.name == "sglang" else _load_vllm
      await load(engine, self._address, folder, label_of(served))
      found = await engine.label(self._address, CONNECT_S)
      if found != served:
        raise CheckpointError(
          f"{self._address} was given version {served.step} under the label "
          f"{label_of(served)} and says that it serves {found}"
        )

  async def serves(self, served: ServedPolicySlot) -> bool:
    """Whether the engine still has these weights; no if it was started anew."""
    async with self._asking() as engine:
      return await engine.label(self._address, CONNECT_S) == served

  @contextlib.asynccontextmanager
  async def _asking(self) -> AsyncIterator[EngineHttp]:
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
  """SGLang finishes what it has, loads, and goes back if that fails."""
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
  """What vLLM calls its development endpoints; it stands still meanwhile."""
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
