"""Speaks with engines of other projects, so that a run can train on them.

An engine is believed once: `rollout.external.probe` asks it when it is first
heard, and what it lacks ends the run by name. After that every answer is
checked, and every token has a version that is known: the engine's own word for
each token, or a label of its weights that was the same before it was asked and
after its last token. Labels name a publication of this run, and no two share
one, so what stands before and after stood in between. An answer that saw two
labels is asked for once more, and one under a label that this run never gave is
never asked for.

No two versions: such an engine has policy slot 0 alone. Rollout servers of this
framework speak this protocol, too, with as many policy slots as they have.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import aiohttp
import numpy as np

from agentrl_jax.errors import (
  AgentRLError,
  ConfigError,
  PromptTooLong,
)
from agentrl_jax.rollout.api import Answer, SamplingSpec
from agentrl_jax.rollout.external import probe as engine_client_probe
from agentrl_jax.rollout.external.http import EngineHttp
from agentrl_jax.rollout.external.probe import Abilities, Needs
from agentrl_jax.rollout.external.response import (
  Dialect,
  EngineLacks,
  EngineOutput,
  answer_of,
  served_of,
)
from agentrl_jax.rollout.external.sglang import SGLANG
from agentrl_jax.rollout.external.vllm import OPENAI
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.client import (
  CONNECT_S,
  AskAgain,
  Unreachable,
)
from agentrl_jax.rollout.remote.pool import Server

DIALECTS: Mapping[str, Dialect] = {
  dialect.name: dialect for dialect in (OPENAI, SGLANG)
}


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
  """One question, in no dialect yet."""

  prompt: tuple[int, ...]
  spec: SamplingSpec


@dataclasses.dataclass(eq=False)
class _Known:
  """What was learned of one engine."""

  model: str
  context: int | None  # tokens of prompt and answer, where it tells
  abilities: Abilities
  served: wire.ServedPolicySlot | None = None  # by the label that was read last


class EngineClient:
  """A `ServerClient` of one dialect."""

  def __init__(
    self,
    http: aiohttp.ClientSession,
    dialect: Dialect,
    needs: Needs,
    *,
    model: str = "",
    probe_s: float = 600.0,
  ):
    self._engine = EngineHttp(http, dialect)
    self._dialect, self._needs = dialect, needs
    self._model, self._probe_s = model, probe_s
    self._known: dict[str, _Known] = {}

  def request(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Request:
    """Refuses what no engine understands."""
    if spec.grammar:
      raise ConfigError(
        "an answer is to follow a grammar, and engines of other projects "
        "cannot be told one: set sampling.calls=free, or let rollout servers "
        "of this framework answer (rollouts.protocol=agentrl)"
      )
    if spec.is_shaped:
      raise ConfigError(
        f"frequency_penalty={spec.frequency_penalty}, presence_penalty="
        f"{spec.presence_penalty}, {len(spec.logit_bias)} entries of logit_bias"
        f" and num_top={spec.num_top} are asked for: engines of other projects "
        "are told none of these; leave them out, or let rollout servers of "
        "this framework answer (rollouts.protocol=agentrl)"
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
    return Request(tuple(map(int, tokens)), spec)

  async def answer(self, server: Server, request: Request) -> Answer:
    """See `ServerClient.answer`."""
    try:
      return await self._answer(server, request)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
      if isinstance(error, AgentRLError):
        raise
      raise Unreachable(repr(error)) from error

  async def stream(
    self, server: Server, request: Request
  ) -> AsyncGenerator[Answer, None]:
    """See `ServerClient.stream`: in one piece.

    Versions and log-probabilities are only known of whole answers.
    """
    yield await self.answer(server, request)

  async def _answer(self, server: Server, request: Request) -> Answer:
    known, spec = self._known[server.address], request.spec
    size = len(request.prompt) + spec.max_tokens
    if known.context is not None and size > known.context:
      raise PromptTooLong(
        f"{len(request.prompt)} prompt tokens and max_tokens={spec.max_tokens}"
        f" make {size}; {server.address} takes {known.context}"
      )
    before = known.served
    said = await self._engine.said(
      server.address,
      _named(known, spec.policy_slot),
      request.prompt,
      spec,
      sends_seed=known.abilities.takes_seeds,
    )
    version = await self._version(server.address, known, said, before)
    try:
      return answer_of(
        said,
        request.prompt,
        spec,
        version,
        vocab_size=self._needs.vocab_size,
        remedies=self._dialect.remedies,
      )
    except AgentRLError as error:
      raise type(error)(f"{server.address}: {error}") from error

  async def status(self, server: Server, within_s: float) -> wire.ServerStatus:
    """See `ServerClient.status`; an engine that is new is tried first."""
    address = server.address
    ours = await self._engine.health(address, within_s)
    if ours is not None and not ours.answers(0):
      return ours  # it has no weights yet to be tried with
    if not server.is_reachable or address not in self._known:
      async with asyncio.timeout(self._probe_s):
        self._known[address] = await self._tried(address, ours is not None)
    if ours is not None:
      return ours
    served = await self._engine.label(address, within_s)
    self._known[address].served = served
    return wire.ServerStatus(
      policy_slots=(served,) + (None,) * (self._needs.num_policy_slots - 1),
      num_inside=server.num_asked,
      num_waiting=0,
      trouble="" if served else "it serves weights that this run has not named",
    )

  def abilities(self, address: str) -> Abilities:
    """What was found out of a server that has been heard."""
    return self._known[address].abilities

  async def _tried(self, address: str, is_ours: bool) -> _Known:
    """Asks an engine for all that a run needs. Raises `EngineLacks`."""
    if self._needs.num_policy_slots > 1 and not is_ours:
      raise EngineLacks(
        f"{address} serves one version, and engine.slots has "
        f"{self._needs.num_policy_slots} policy slots: several versions at "
        f"once "
        "need rollout servers of this framework; set --config.engine.slots and "
        "--config.cross_policy to one policy slot"
      )
    model, context = await self._engine.described(address, self._model)

    async def ask(
      prompt: Sequence[int], spec: SamplingSpec, sends_seed: bool
    ) -> EngineOutput:
      return await self._engine.said(
        address, model, prompt, spec, sends_seed=sends_seed, gives_prompt=True
      )

    try:
      before = await self._weights(address, is_ours)
      try:
        abilities = await engine_client_probe.probe(
          ask, self._dialect, self._needs
        )
      except EngineLacks:
        if await self._weights(address, is_ours) == before:
          raise
        raise AskAgain("its weights changed while it was tried") from None
      if not is_ours:
        await self._engine.label(address, CONNECT_S)
      elif abilities.versions == "endpoint":
        raise EngineLacks(
          "it gives no version of its tokens: start it from the same code"
        )
    except EngineLacks as lack:
      raise EngineLacks(f"{address} cannot be trained on: {lack}") from lack
    return _Known(model, context, abilities)

  async def _weights(self, address: str, is_ours: bool) -> Any:
    """What tells the weights of now from others; None where nothing does."""
    if not is_ours:
      with contextlib.suppress(EngineLacks):  # which is refused in its turn
        return await self._engine.label(address, CONNECT_S)
      return None
    status = await self._engine.health(address, CONNECT_S)
    return status and status.policy_slots

  async def _version(
    self,
    address: str,
    known: _Known,
    said: EngineOutput,
    before: wire.ServedPolicySlot | None,
  ) -> int | list[int]:
    """Of all tokens, or of each. `AskAgain` where it cannot be known."""
    if said.version is not None:
      return list(said.version)
    if said.spans:
      return _of_spans(said.spans)
    after = served_of(said.label)
    if known.abilities.versions == "endpoint":
      after = await self._engine.label(address, CONNECT_S)
    if before is None or after != before:
      known.served = after
      raise AskAgain(
        f"{address} changed its weights from {before} to {after} meanwhile"
      )
    return before.step


def _named(known: _Known, policy_slot: int) -> str:
  """The name that a policy slot goes by; a server of ours has several."""
  return (
    f"{known.model}@policy_slot{policy_slot}" if policy_slot else known.model
  )


def _of_spans(spans: Sequence[tuple[str, int, int]]) -> list[int]:
  version: list[int] = []
  for label, start, end in spans:
    served = served_of(label)
    if served is None or start != len(version):
      raise AskAgain(f"its weights were labelled {spans}")
    version += [served.step] * (end - start)
  return version
