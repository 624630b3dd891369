"""A driver that runs the engine in the threads of JetStream's orchestrator.

JetStream's prefill and transfer threads pass requests on in order, its generate
thread runs the steps, and a detokenize thread of our own reads them while the
next one runs. JetStream kills the process when one of its threads fails; here
the requests fail instead.

Nothing else imports `jetstream`. Importing it, 0.2.2 and 0.3.0 alike, has side
effects that are undone here:

- It imports `seqio`, which needs TensorFlow, for two names that only text
  tokenizers use; if `seqio` is missing, two empty classes replace them.
- The orchestrator sets the root logger to DEBUG and adds a handler; both are
  reverted.
- Its `delete_pytree` calls a function that jax 0.6 removed, and would delete
  arrays in use; it is replaced by a function that does nothing.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import logging
import queue
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from agentrl_jax.errors import GeneratorFault
from agentrl_jax.rollout.api import Request
from agentrl_jax.rollout.drivers.driver import Driver
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.engine import (
  RolloutEngine,
  ServedWeights,
  StepResult,
)


@contextlib.contextmanager
def _root_logger_kept() -> Iterator[None]:
  root = logging.getLogger()
  level, handlers = root.level, list(root.handlers)
  try:
    yield
  finally:
    root.setLevel(level)
    root.handlers[:] = handlers


@contextlib.contextmanager
def _seqio_replaced() -> Iterator[None]:
  """Lets `import seqio.vocabularies` succeed where seqio is not installed."""
  if importlib.util.find_spec("seqio") is not None:
    yield
    return
  package = types.ModuleType("seqio")
  vocabularies = types.ModuleType("seqio.vocabularies")
  for name in ("Vocabulary", "SentencePieceVocabulary"):
    setattr(vocabularies, name, type(name, (), {}))
  sys.modules["seqio"] = package
  sys.modules["seqio.vocabularies"] = vocabularies
  try:
    yield
  finally:
    del sys.modules["seqio"], sys.modules["seqio.vocabularies"]


def _import_jetstream() -> tuple[types.ModuleType, ...]:
  names = (
    "jetstream.core.orchestrator",
    "jetstream.engine.engine_api",
    "jetstream.engine.tokenizer_api",
    "jetstream.engine.tokenizer_pb2",
  )
  with _root_logger_kept(), _seqio_replaced(), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
      return tuple(importlib.import_module(name) for name in names)
    except ImportError as error:
      raise ImportError(
        "google-jetstream cannot be imported; run pip install --no-deps "
        "'google-jetstream>=0.2.2,<0.4' and pip install grpcio protobuf "
        "prometheus-client tiktoken shortuuid, or set engine.driver=local, "
        "which drives the same engine and needs none of them"
      ) from error


orchestrator, engine_api, tokenizer_api, tokenizer_pb2 = _import_jetstream()
orchestrator.delete_pytree = lambda tree: None

# From 0.3.0 on, prefill returns the first token's record beside the prefix.
_PREFILL_RETURNS_RECORD = hasattr(engine_api.Engine, "bulk_insert")


class JetStreamDriver(Driver):
  """Answers requests in background threads until it is closed."""

  def __init__(self, engine: RolloutEngine, *, max_waiting: int = 4096):
    super().__init__(engine, max_waiting=max_waiting)
    adapter = JetStreamEngine(
      engine,
      max_inside=self.max_inside,
      give_back=lambda: self._threads.give_back(),
    )
    params = adapter.load_params()
    self._threads = _Orchestrator(
      self,
      prefill_engines=[adapter],
      generate_engines=[adapter],
      prefill_params=[params],
      generate_params=[params],
      interleaved_mode=True,  # prefill and decode share their devices
      jax_padding=False,
    )

  def close(self) -> None:
    """Fails requests without an answer, and waits for the threads to end.

    They end after the step that is running.
    """
    self._fail(GeneratorFault("the driver was closed"))
    self._threads.stop()

  def _admit(self, request: Request) -> None:
    self._threads.place_request_on_prefill_queue(
      _ActiveRequest(
        max_tokens=request.sampling.max_tokens,
        return_channel=None,
        prefill_content=[],
        request=request,
      )
    )

  def _wake(self) -> None:
    """Does nothing: the generate thread runs while any request is inside."""


@dataclasses.dataclass(eq=False)
class _ActiveRequest(orchestrator.ActiveRequest):
  """JetStream's request, around the engine's."""

  request: Request | None = None


class _Orchestrator(orchestrator.Driver):
  """JetStream's driver with our requests, our reader and our error handling."""

  def __init__(self, owner: JetStreamDriver, **engines: Any):
    self._owner = owner  # set before the threads start
    self._freed: queue.SimpleQueue[int] = queue.SimpleQueue()
    super().__init__(**engines)

  def _process_prefill_content(
    self, request: _ActiveRequest, *_: Any
  ) -> tuple[Request, int]:
    assert request.request is not None, "JetStream lost the engine's request"
    return request.request, len(request.request.prompt)

  def _prefill_thread(self, idx: int) -> None:
    self._run(super()._prefill_thread, idx)

  def _transfer_thread(self, idx: int) -> None:
    self._run(super()._transfer_thread, idx)

  def _generate_thread(self, idx: int) -> None:
    self._run(super()._generate_thread, idx)

  def give_back(self) -> None:
    """Gives JetStream's slots back whose requests have left.

    Only the generate thread may do this. JetStream counts the free slots, then
    waits for a request, then counts again and fails if none is taken: a slot
    that another thread gives back in between would end the engine.
    """
    while not self._freed.empty():
      self._generate_slots[0].put(self._freed.get(), block=False)

  def _detokenize_thread(self, idx: int) -> None:
    self._run(self._read_steps, idx)

  def _run(self, thread: Callable[[int], None], idx: int) -> None:
    """Runs a thread; an exception in it fails the driver's requests."""
    try:
      thread(idx)
    except BaseException as error:  # noqa: BLE001 - every request fails with it
      self._owner._fail(error)

  def _read_steps(self, idx: int) -> None:
    """Reads steps, and notes JetStream's slots of requests that left."""
    backlog = self._detokenize_backlogs[idx]
    slot_of: dict[int, int] = {}  # by the request's serial
    while self.live:
      item = backlog.get()
      if item is None:
        return
      first, content = item
      if isinstance(content, _ActiveRequest) and isinstance(first, int):
        assert content.request is not None, "JetStream lost a request"
        slot_of[content.request.serial] = first
      elif isinstance(content, StepTokens):
        step = content.step
        answered = self._owner.engine.read(step)
        for request in (*(r for r, _ in answered), *step.cancelled):
          self._freed.put(slot_of.pop(request.serial))
        self._owner._settle(answered, step.cancelled)


class JetStreamEngine(engine_api.Engine):
  """`RolloutEngine` behind JetStream's engine interface, 0.2.2 and 0.3.0.

  - A prefix is a `Request`, and the decode state stays in the engine.
  - Params are a `ServedWeights`: JetStream reads params once, when a thread
    starts, so a reference to them has to follow swaps.
  - `generate` prefills prompts, many at a time, with the weights that their
    first token is sampled from; `prefill` does not.
  - JetStream's slots bound the requests inside; they are not engine slots.
    `generate` gives back those of requests that have left.
  """

  def __init__(
    self, engine: RolloutEngine, max_inside: int, give_back: Callable[[], None]
  ):
    self._engine, self._max_inside = engine, max_inside
    self._give_back = give_back

  def prefill(
    self,
    *,
    params: ServedWeights,
    padded_tokens: Request,
    true_length: int,
    existing_prefix: Any = None,
    **_: Any,
  ) -> Any:
    """Returns the request itself."""
    if not _PREFILL_RETURNS_RECORD:
      return padded_tokens
    nothing = engine_api.ResultTokens(
      np.zeros((1, 3), np.int32), (0, 1), (1, 2), (2, 3), 1
    )
    return padded_tokens, nothing

  def insert(
    self, prefix: Request, decode_state: None, slot: int, **_: Any
  ) -> None:
    """Admits the request; it gets an engine slot in one of the next steps."""
    self._engine.admit(prefix)

  def generate(
    self, params: ServedWeights, decode_state: None, **_: Any
  ) -> tuple[None, "StepTokens"]:
    """Launches one step of every policy slot that has work."""
    self._give_back()
    return None, StepTokens(self._engine.step())

  def free_resource(self, slot: int) -> None:
    """Does nothing: the engine frees a slot when it reads its last token."""

  def bulk_insert(self, prefix: Request, decode_state: None, **_: Any) -> None:
    """Refuses: requests with the same prompt share its cache without this."""
    raise NotImplementedError("submit one request per answer")

  def prefill_multisampling(self, **_: Any) -> Any:
    """Refuses, as `bulk_insert` does."""
    raise NotImplementedError("submit one request per answer")

  def load_params(self, *_: Any, **__: Any) -> ServedWeights:
    """Returns what JetStream passes to `prefill` and `generate` as params."""
    return self._engine.versions

  def init_decode_state(self, *_: Any, **__: Any) -> None:
    """Returns nothing: the engine keeps its state, which two threads use."""

  def get_prefix_destination_sharding(self) -> None:
    """Returns nothing: prefill and decode share their devices."""

  def get_tokenizer(self) -> Any:
    """Returns the argument of `build_tokenizer`."""
    return tokenizer_pb2.TokenizerParameters(path="none")

  def build_tokenizer(self, metadata: Any) -> "IdTokenizer":
    """Returns a tokenizer that refuses text."""
    return IdTokenizer()

  @property
  def max_concurrent_decodes(self) -> int:
    """Requests inside at once, including those without an engine slot."""
    return self._max_inside

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
    """False: the engine cuts prompts into chunks, not JetStream."""
    return False

  @property
  def prefill_chunk_size(self) -> int:
    """The longest prefill chunk of the engine."""
    return self._engine.config.prefill_chunks[-1]


class StepTokens(engine_api.ResultTokens):
  """The tokens of one step, which may be on their way to the host."""

  def __init__(self, step: StepResult):
    super().__init__(
      data=step.calls,
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
    """Returns itself: `RolloutEngine.read` copies the arrays to the host."""
    return self

  def get_result_at_slot(self, slot: int) -> Any:
    """Refuses: JetStream's slots are not the slots of the records."""
    raise NotImplementedError(
      f"JetStream's slot {slot} has no tokens; RolloutEngine.read returns the "
      "answers"
    )


class IdTokenizer(tokenizer_api.Tokenizer):
  """JetStream asks every engine for a tokenizer; this one refuses text."""

  pad_id = bos_id = eos_id = 0
  stop_tokens: frozenset[int] = frozenset()  # each request has its own

  def encode(self, s: str, **_: Any) -> Any:
    """Refuses: requests are token ids."""
    raise NotImplementedError("requests are token ids; tokenize in data.codec")

  def decode(self, token_ids: list[int], **_: Any) -> str:
    """Refuses: answers are token ids."""
    raise NotImplementedError("answers are token ids; decode in data.codec")
