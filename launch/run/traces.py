"""Writes the spans of a run: `traces.jsonl`, and a collector if there is one.

A line is one span, as OpenTelemetry's SDK writes it. Where the environment has
OTEL_EXPORTER_OTLP_ENDPOINT, the spans are sent there, too.
"""

import contextlib
import os
import pathlib
import typing
from collections.abc import Iterator

from agentrl_jax import tracing
from agentrl_jax.errors import ConfigError
from agentrl_jax.files import drop_half_line

if typing.TYPE_CHECKING:
  from opentelemetry.sdk import trace
  from opentelemetry.sdk.trace import export

FILE = "traces.jsonl"
_MOST_SPANS = 1 << 16  # that wait to be written
_EVERY_MS = 500
_ENDPOINTS = (
  "OTEL_EXPORTER_OTLP_ENDPOINT",
  "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)


@contextlib.contextmanager
def traced(folder: pathlib.Path, run: str, *, share: float) -> Iterator[None]:
  """Traces a share of the groups until left; none if it is 0.

  A group is traced whole, or not at all. Raises `ConfigError` if a package is
  missing.
  """
  if not 0 <= share <= 1:
    raise ConfigError(
      f"report.trace_share is {share}; it must be between 0, for no group, and "
      "1, for all"
    )
  if not share:
    yield
    return
  try:
    from opentelemetry.sdk import resources, trace
    from opentelemetry.sdk.trace import export, sampling
  except ImportError as error:
    raise ConfigError(
      f"report.trace_share={share} needs OpenTelemetry's SDK: pip install "
      "'agentrl_jax[trace]', or set it to 0"
    ) from error
  drop_half_line(folder / FILE)
  with (folder / FILE).open("a", encoding="utf-8") as file:
    provider = trace.TracerProvider(
      sampler=sampling.ParentBased(sampling.TraceIdRatioBased(share)),
      resource=resources.Resource.create(
        {"service.name": "agentrl_jax", "service.instance.id": run}
      ),
      shutdown_on_exit=False,
    )
    exporters: list[export.SpanExporter] = [
      export.ConsoleSpanExporter(out=file, formatter=_line)
    ]
    if any(name in os.environ for name in _ENDPOINTS):
      exporters.append(_otlp_exporter())
    for exporter in exporters:
      provider.add_span_processor(
        export.BatchSpanProcessor(
          exporter,
          max_queue_size=_MOST_SPANS,  # beyond, spans would be dropped
          max_export_batch_size=_MOST_SPANS // 16,
          schedule_delay_millis=_EVERY_MS,
        )
      )
    try:
      with tracing.traced_with(provider.get_tracer("agentrl_jax")):
        yield
    finally:
      provider.shutdown()


def _line(span: "trace.ReadableSpan") -> str:
  return f"{span.to_json(indent=None)}\n"


def _otlp_exporter() -> "export.SpanExporter":
  try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
      OTLPSpanExporter,
    )
  except ImportError as error:
    raise ConfigError(
      f"{' or '.join(_ENDPOINTS)} is set, and the package that sends spans "
      "there is not installed: pip install "
      "opentelemetry-exporter-otlp-proto-http, or unset it"
    ) from error
  return typing.cast("export.SpanExporter", OTLPSpanExporter())
