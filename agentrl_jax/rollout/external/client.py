"""Client of engines of other projects, for training on their samples.

- `rollout.external.probe` tests an engine before its first request; a missing
  ability ends the run by name.
- Every answer is checked.
- The version of every token is known: the engine reports it per token, or the
  label of its weights was the same before the request and after the last token.
  Every publication of a run has a label of its own, so equal labels mean that
  the weights did not change in between.
- An answer under two labels is requested again. An engine with a label that
  this run did not give gets no requests.

Such an engine has policy slot 0 only. Rollout servers of this framework support
this protocol too, with all their policy slots.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import aiohttp
import numpy as np

from agentrl_jax.errors import AgentRLError, ConfigError, PromptTooLong
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.external.http import EngineHttp
from agentrl_jax.rollout.external.probe import Abilities, Needs, probe
from agentrl_jax.rollout.external.response import (
  EngineDialect,
  EngineLacks,
  EngineOutput,
  answer_of,
  served_of,
)
from agentrl_jax.rollout.external.sglang import SGLANG
from agentrl_jax.rollout.external.vllm import OPENAI
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.client import (
  CONNECT_TIMEOUT_S,
  RetryRequest,
  Unreachable,
)
from agentrl_jax.rollout.remote.pool import Server

DIALECTS: Mapping[str, EngineDialect] = {
  dialect.name: dialect for dialect in (OPENAI, SGLANG)
}


@dataclasses.dataclass(frozen=True, eq=False)
class EngineRequest:
  """A request in no dialect yet."""

  prompt: tuple[int, ...]
  sampling: SamplingParams


@dataclasses.dataclass(eq=False)
class _KnownEngine:
  """Facts known of one engine."""

  model: str
  context: int | None  # tokens of prompt and answer, if reported
  abilities: Abilities
  served: wire.ServedPolicySlot | None = None  # by the last label


class EngineClient:
  """A `ServerClient` of one dialect."""

  def __init__(
    self,
    http: aiohttp.ClientSession,
    dialect: EngineDialect,
    needs: Needs,
    *,
    model: str = "",
    probe_s: float = 600.0,
  ):
    self._http = EngineHttp(http, dialect)
    self._dialect, self._needs = dialect, needs
    self._model, self._probe_s = model, probe_s
    self._engines: dict[str, _KnownEngine] = {}

  def request(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> EngineRequest:
    """Checks a request. Raises `ConfigError` if no engine can answer it."""
    if sampling.grammar:
      raise ConfigError(
        "the answer must follow a grammar, which engines of other projects do "
        "not support: set sampling.calls=free, or use rollout servers of this "
        "framework (rollouts.protocol=agentrl)"
      )
    if sampling.is_shaped:
      raise ConfigError(
        f"frequency_penalty={sampling.frequency_penalty}, presence_penalty="
        f"{sampling.presence_penalty}, {len(sampling.logit_bias)} entries of "
        f"logit_bias and num_top={sampling.num_top} are requested, which are "
        "not sent to engines of other projects: leave them out, or use rollout "
        "servers of this framework (rollouts.protocol=agentrl)"
      )
    tokens = np.asarray(prompt)
    if tokens.ndim != 1 or not tokens.size or tokens.dtype.kind not in "iu":
      raise ConfigError(
        f"a prompt is a row of at least one token id; found {tokens.dtype}"
        f"{list(tokens.shape)}"
      )
    if tokens.min() < 0 or tokens.max() >= self._needs.vocab_size:
      raise ConfigError(
        f"prompt tokens from {tokens.min()} to {tokens.max()} were found; the "
        f"policy knows 0 to {self._needs.vocab_size - 1}"
      )
    return EngineRequest(tuple(map(int, tokens)), sampling)

  async def answer(self, server: Server, request: EngineRequest) -> Completion:
    """See `ServerClient.answer`."""
    try:
      return await self._answer(server, request)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
      if isinstance(error, AgentRLError):
        raise
      raise Unreachable(repr(error)) from error

  async def stream(
    self, server: Server, request: EngineRequest
  ) -> AsyncGenerator[Completion, None]:
    """See `ServerClient.stream`; yields one chunk.

    Versions and log-probabilities are known of complete answers only.
    """
    yield await self.answer(server, request)

  async def _answer(self, server: Server, request: EngineRequest) -> Completion:
    engine, sampling = self._engines[server.address], request.sampling
    size = len(request.prompt) + sampling.max_tokens
    if engine.context is not None and size > engine.context:
      raise PromptTooLong(
        f"{len(request.prompt)} prompt tokens and max_tokens="
        f"{sampling.max_tokens} make {size}; {server.address} takes "
        f"{engine.context}"
      )
    before = engine.served
    output = await self._http.complete(
      server.address,
      _model_name(engine, sampling.policy_slot),
      request.prompt,
      sampling,
      sends_seed=engine.abilities.takes_seeds,
    )
    version = await self._version(server.address, engine, output, before)
    try:
      return answer_of(
        output,
        request.prompt,
        sampling,
        version,
        vocab_size=self._needs.vocab_size,
        remedies=self._dialect.remedies,
      )
    except AgentRLError as error:
      raise type(error)(f"{server.address}: {error}") from error

  async def status(self, server: Server, within_s: float) -> wire.ServerStatus:
    """See `ServerClient.status`; probes a new engine first."""
    address = server.address
    own_status = await self._http.health(address, within_s)
    if own_status is not None and not own_status.answers(0):
      return own_status  # it has no weights to be probed with yet
    if not server.is_reachable or address not in self._engines:
      async with asyncio.timeout(self._probe_s):
        self._engines[address] = await self._probe(
          address, own_status is not None
        )
    if own_status is not None:
      return own_status
    served = await self._http.label(address, within_s)
    self._engines[address].served = served
    return wire.ServerStatus(
      policy_slots=(served,) + (None,) * (self._needs.num_policy_slots - 1),
      num_inside=server.num_requests,
      num_waiting=0,
      trouble="" if served else "it serves weights that this run has not named",
    )

  def abilities(self, address: str) -> Abilities:
    """Returns the abilities of a server that was probed."""
    return self._engines[address].abilities

  async def _probe(self, address: str, is_own: bool) -> _KnownEngine:
    """Tests an engine for all needs of a run. Raises `EngineLacks`."""
    if self._needs.num_policy_slots > 1 and not is_own:
      raise EngineLacks(
        f"{address} serves one version, and engine.slots has "
        f"{self._needs.num_policy_slots} policy slots: several versions "
        "need rollout servers of this framework; set --config.engine.slots and "
        "--config.cross_policy to one policy slot"
      )
    model, context = await self._http.described(address, self._model)

    async def send(
      prompt: Sequence[int], sampling: SamplingParams, sends_seed: bool
    ) -> EngineOutput:
      return await self._http.complete(
        address,
        model,
        prompt,
        sampling,
        sends_seed=sends_seed,
        gives_prompt=True,
      )

    try:
      before = await self._weights(address, is_own)
      try:
        abilities = await probe(send, self._dialect, self._needs)
      except EngineLacks:
        if await self._weights(address, is_own) == before:
          raise
        raise RetryRequest("its weights changed while it was probed") from None
      if not is_own:
        await self._http.label(address, CONNECT_TIMEOUT_S)
      elif abilities.versions == "endpoint":
        raise EngineLacks(
          "it gives no version of its tokens: start it from the same code"
        )
    except EngineLacks as lack:
      raise EngineLacks(f"{address} cannot be trained on: {lack}") from lack
    return _KnownEngine(model, context, abilities)

  async def _weights(self, address: str, is_own: bool) -> Any:
    """Identifies the present weights; None if the engine cannot."""
    if not is_own:
      # `_probe` refuses an engine without labels later.
      with contextlib.suppress(EngineLacks):
        return await self._http.label(address, CONNECT_TIMEOUT_S)
      return None
    status = await self._http.health(address, CONNECT_TIMEOUT_S)
    return status and status.policy_slots

  async def _version(
    self,
    address: str,
    engine: _KnownEngine,
    output: EngineOutput,
    before: wire.ServedPolicySlot | None,
  ) -> int | list[int]:
    """Returns the version of all tokens, or of each. Raises `RetryRequest`."""
    if output.version is not None:
      return list(output.version)
    if output.spans:
      return _of_spans(output.spans)
    after = served_of(output.label)
    if engine.abilities.versions == "endpoint":
      after = await self._http.label(address, CONNECT_TIMEOUT_S)
    if before is None or after != before:
      engine.served = after
      raise RetryRequest(
        f"{address} changed its weights from {before} to {after} meanwhile"
      )
    return before.version


def _model_name(engine: _KnownEngine, policy_slot: int) -> str:
  """Returns the model name of a policy slot; only our servers have several."""
  return (
    f"{engine.model}@policy_slot{policy_slot}" if policy_slot else engine.model
  )


def _of_spans(spans: Sequence[tuple[str, int, int]]) -> list[int]:
  version: list[int] = []
  for label, start, end in spans:
    served = served_of(label)
    if served is None or start != len(version):
      raise RetryRequest(f"its weights were labelled {spans}")
    version += [served.version] * (end - start)
  return version
