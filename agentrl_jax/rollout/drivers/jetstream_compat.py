"""google-jetstream, made fit to be imported and driven here.

Nothing else in the code base imports `jetstream`. What is repaired, on 0.2.2
and 0.3.0 alike:

- `seqio`, which drags in TensorFlow, is imported for two names that only text
  tokenizers need; where it is missing, two empty classes stand in.
- Importing the orchestrator turns the root logger to DEBUG and adds a handler;
  both are undone.
- `delete_pytree` calls what jax 0.6 removed, and would delete arrays that are
  still in use; it does nothing here.

Refuses to change what a driver does: that is the business of
`rollout.drivers.jetstream`.
"""

import contextlib
import importlib
import importlib.util
import logging
import sys
import types
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def _root_logger_untouched() -> Iterator[None]:
  root = logging.getLogger()
  level, handlers = root.level, list(root.handlers)
  try:
    yield
  finally:
    root.setLevel(level)
    root.handlers[:] = handlers


@contextlib.contextmanager
def _without_seqio() -> Iterator[None]:
  """Lets `import seqio.vocabularies` succeed while jetstream is imported."""
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
  with _root_logger_untouched(), _without_seqio(), warnings.catch_warnings():
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
PREFILL_RETURNS_RECORD = hasattr(engine_api.Engine, "bulk_insert")
