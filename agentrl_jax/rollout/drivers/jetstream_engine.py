"""`RolloutEngine` as JetStream knows an engine.

A prefix is a `Request`, the decode state is kept inside the engine, and params
are a `ServedWeights`: JetStream reads params once, when a thread starts, so a
store is what lets weights be swapped. Prompts are prefilled many at a time by
`generate`, not one by one by `prefill`, and each under the weights that its
first token is sampled from.
"""

from typing import Any

import jax
import numpy as np

from agentrl_jax.rollout.drivers.jetstream_compat import (
  PREFILL_RETURNS_RECORD,
  engine_api,
  tokenizer_api,
  tokenizer_pb2,
)
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.engine import RolloutEngine, StepResult
from agentrl_jax.rollout.engine.request import Request
from agentrl_jax.rollout.engine.weights import ServedWeights


class StepTokens(engine_api.ResultTokens):
  """One step's tokens, several per slot, on their way to the host."""

  def __init__(self, step: StepResult):
    super().__init__(
      data=step.parts,
      tokens_idx=(programs.TOKEN, programs.TOKEN + 1),
      valid_idx=(programs.ACTIVE, programs.ACTIVE + 1),
      length_idx=(programs.COUNT, programs.COUNT + 1),
      samples_per_slot=1,
    )
    object.__setattr__(self, "step", step)

  def copy_to_host_async(self) -> None:
    """Starts the copies that `RolloutEngine.read` waits for."""
    self.step.copy_to_host_async()

  def convert_to_numpy(self) -> "StepTokens":
    """Itself: `RolloutEngine.read` takes the arrays to the host."""
    return self

  def get_result_at_slot(self, slot: int) -> Any:
    """Refuses: JetStream's slots are not the slots that records are of."""
    raise NotImplementedError(
      f"policy slot {slot} has no row of its own; RolloutEngine.read hands out "
      f"answers"
    )


class IdTokenizer(tokenizer_api.Tokenizer):
  """JetStream asks every engine for a tokenizer; this one has ids only."""

  pad_id = bos_id = eos_id = 0
  stop_tokens: frozenset[int] = frozenset()  # each request has its own

  def encode(self, s: str, **_: Any) -> Any:
    """Refuses: requests are tokens already."""
    raise NotImplementedError("requests are token ids; tokenize in data.codec")

  def decode(self, token_ids: list[int], **_: Any) -> str:
    """Refuses: answers stay tokens."""
    raise NotImplementedError("answers are token ids; decode in data.codec")


class JetStreamEngine(engine_api.Engine):
  """Implements the union of the 0.2.2 and 0.3.0 engine APIs."""

  def __init__(self, engine: RolloutEngine, num_seats: int):
    self._engine, self._num_seats = engine, num_seats

  def prefill(
    self,
    *,
    params: ServedWeights,
    padded_tokens: Request,
    true_length: int,
    existing_prefix: Any = None,
    **_: Any,
  ) -> Any:
    """The request itself; its prompt is fed by `generate`."""
    if not PREFILL_RETURNS_RECORD:
      return padded_tokens
    nothing = engine_api.ResultTokens(
      np.zeros((1, 3), np.int32), (0, 1), (1, 2), (2, 3), 1
    )
    return padded_tokens, nothing

  def insert(
    self, prefix: Request, decode_state: None, slot: int, **_: Any
  ) -> None:
    """Admits the request; it finds a slot when the next step begins."""
    self._engine.admit(prefix)

  def generate(
    self, params: ServedWeights, decode_state: None, **_: Any
  ) -> tuple[None, StepTokens]:
    """One step of every version that has work."""
    return None, StepTokens(self._engine.step())

  def free_resource(self, slot: int) -> None:
    """Nothing: the engine frees a slot when it reads its last token."""

  def bulk_insert(self, prefix: Request, decode_state: None, **_: Any) -> None:
    """Refuses: attempts that share a prompt share its cache by themselves."""
    raise NotImplementedError("submit one request per attempt")

  def prefill_multisampling(self, **_: Any) -> Any:
    """Refuses, as `bulk_insert` does."""
    raise NotImplementedError("submit one request per attempt")

  def load_params(self, *_: Any, **__: Any) -> ServedWeights:
    """What JetStream hands back to `prefill` and `generate`."""
    return self._engine.versions

  def init_decode_state(self, *_: Any, **__: Any) -> None:
    """Nothing: the engine keeps its state, where two threads can reach it."""

  def get_prefix_destination_sharding(self) -> None:
    """Nothing: prefill and decode share their devices."""

  def get_tokenizer(self) -> Any:
    """What `build_tokenizer` is called with."""
    return tokenizer_pb2.TokenizerParameters(path="none")

  def build_tokenizer(self, metadata: Any) -> IdTokenizer:
    """A tokenizer that refuses text."""
    return IdTokenizer()

  @property
  def max_concurrent_decodes(self) -> int:
    """Requests inside at once, those that still wait for a slot included."""
    return self._num_seats

  @property
  def samples_per_slot(self) -> int:
    """One answer per request."""
    return 1

  @property
  def max_prefill_length(self) -> int:
    """The longest prompt, with one token of answer."""
    return self._engine.config.context - 1

  @property
  def mesh(self) -> jax.sharding.Mesh | None:
    """None: arrays carry their own shardings."""
    return None

  @property
  def colocated_cpus(self) -> None:
    """None are used."""
    return None

  @property
  def use_chunked_prefill(self) -> bool:
    """Whether JetStream is to cut prompts; the engine does."""
    return False

  @property
  def prefill_chunk_size(self) -> int:
    """The longest chunk that the engine feeds at once."""
    return self._engine.config.prefill_chunks[-1]
