"""HTTP requests to engines of other projects.

Responses are parsed and not checked. HTTP statuses become the errors of
`rollout.remote.wire`; a failed connection raises aiohttp's errors.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from agentrl_jax.errors import (
  ConfigError,
  GeneratorFault,
  PromptTooLong,
  ServerFull,
)
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.external.response import (
  EngineDialect,
  EngineLacks,
  EngineOutput,
  served_of,
)
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.client import CONNECT_TIMEOUT_S

MODELS = "/v1/models"
_REFUSED = {400, 401, 403, 404, 405, 413, 422}
_FULL = {429, 503}


class EngineHttp:
  """Sends requests of one dialect to any engine that supports it."""

  def __init__(self, http: aiohttp.ClientSession, dialect: EngineDialect):
    self._http, self._dialect = http, dialect

  async def described(
    self, address: str, wanted: str
  ) -> tuple[str, int | None]:
    """Returns the name of the wanted model, and its context if reported.

    "" selects the first model. Raises `EngineLacks` if there is none.
    """
    content = await self._get(address, MODELS, CONNECT_TIMEOUT_S)
    try:
      cards = {card["id"]: card for card in content["data"]}
    except (KeyError, TypeError) as error:
      raise EngineLacks(
        f"{address}{MODELS} lists no models: {str(content)[:200]}"
      ) from error
    model = wanted or next(iter(cards), "")
    if model not in cards:
      raise EngineLacks(
        f"{address} has no model {model!r}; it has {sorted(cards)}: set "
        "--config.rollouts.model"
      )
    return model, cards[model].get("max_model_len")

  async def complete(
    self,
    address: str,
    model: str,
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    sends_seed: bool,
    gives_prompt: bool = False,
  ) -> EngineOutput:
    """Returns the unchecked answer. Raises `EngineLacks` for another format."""
    body = self._dialect.request(
      model, prompt, sampling, sends_seed, gives_prompt
    )
    content = await self.post(address, self._dialect.path, body)
    try:
      return self._dialect.read(content)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
      raise EngineLacks(
        f"{address}{self._dialect.path} answers in another format than "
        f"rollouts.protocol={self._dialect.name!r} has: {str(content)[:200]}"
      ) from error

  async def health(
    self, address: str, within_s: float
  ) -> wire.ServerStatus | None:
    """Returns the health of a rollout server of ours; None: another engine."""
    response = await self._exchange("GET", address, wire.HEALTH, within_s)
    try:
      return wire.status_from_json(response)
    except wire.WireError:
      return None

  async def label(
    self, address: str, within_s: float
  ) -> wire.ServedPolicySlot | None:
    """Reads the label of an engine's weights. Raises `EngineLacks`."""
    for path in self._dialect.version_paths:
      try:
        content = await self._get(address, path, within_s)
      except ConfigError:
        continue  # the engine has no such path
      if isinstance(content, Mapping) and "weight_version" in content:
        return served_of(content["weight_version"])
    raise EngineLacks(
      f"it does not report the version of its weights at "
      f"{' or '.join(self._dialect.version_paths)}: "
      f"{self._dialect.remedies.version}"
    )

  async def _get(self, address: str, path: str, within_s: float) -> Any:
    return _parsed(
      address, await self._exchange("GET", address, path, within_s)
    )

  async def post(self, address: str, path: str, body: Mapping[str, Any]) -> Any:
    """Returns the parsed response, None for an empty one; without deadline."""
    content = await self._exchange("POST", address, path, None, json=body)
    return _parsed(address, content) if content else None

  async def _exchange(
    self,
    method: str,
    address: str,
    path: str,
    within_s: float | None,
    **options: Any,
  ) -> bytes:
    async with self._http.request(
      method,
      f"http://{address}{path}",
      timeout=aiohttp.ClientTimeout(
        total=within_s, sock_connect=CONNECT_TIMEOUT_S
      ),
      **options,
    ) as response:
      content = await response.read()
    if response.ok:
      return content
    message = f"{address}{path}: HTTP {response.status} {content[:1000]!r}"
    if response.status in _FULL:
      raise ServerFull(message)
    if b"context_length_exceeded" in content:  # OpenAI's error code
      raise PromptTooLong(message)
    if response.status in _REFUSED:
      raise ConfigError(message)
    raise GeneratorFault(message)


def _parsed(address: str, content: bytes) -> Any:
  try:
    return json.loads(content)
  except ValueError as error:
    raise GeneratorFault(
      f"{address} answers {content[:200]!r}, which is no JSON"
    ) from error
