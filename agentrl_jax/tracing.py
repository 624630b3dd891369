"""Spans of groups, episodes, answers and replies, as OpenTelemetry has them.

Names and attributes are those of its conventions for generative AI (`gen_ai.*`)
where there is one, and `agentrl.*` elsewhere. Until `traced_with` is entered a
span is nothing, and costs less than a microsecond. No span has the text of a
message.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from opentelemetry import trace

Value = str | bool | int | float
_NOTHING = contextlib.nullcontext(trace.INVALID_SPAN)
_tracer: trace.Tracer | None = None


@contextlib.contextmanager
def traced_with(tracer: trace.Tracer) -> Iterator[None]:
  """Makes the spans of this process those of a tracer, until left."""
  global _tracer
  before, _tracer = _tracer, tracer
  try:
    yield
  finally:
    _tracer = before


def span(
  name: str, attributes: Mapping[str, Value]
) -> AbstractContextManager[trace.Span]:
  """Returns a context that times its body as a part of the span around it.

  An exception is recorded in the span, and passes through.
  """
  if _tracer is None:
    return _NOTHING
  return _tracer.start_as_current_span(name, attributes=attributes)


def note(attributes: Mapping[str, Value]) -> None:
  """Adds attributes to the span around the caller."""
  trace.get_current_span().set_attributes(attributes)
