"""Logs as lines for people, or as JSON for a collector of logs.

`AGENTRL_LOG=json` in the environment makes every line of a command's or
service's log one JSON object. `time` and `severity` are named as collectors
expect them (Cloud Logging, Loki, Elastic); ids of the run, task, group, episode
and retry have the names that they have in traces (`agentrl_jax.tracing`).
"""

import contextlib
import contextvars
import datetime
import json
import logging
import os
import types
from collections.abc import Iterator, Mapping

from agentrl_jax.errors import ConfigError

FORMAT = "AGENTRL_LOG"  # a variable of the environment
_FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(message)s"

Value = str | int | float
_facts: contextvars.ContextVar[Mapping[str, Value]] = contextvars.ContextVar(
  "facts of the log", default=types.MappingProxyType({})
)
_process_facts: dict[str, Value] = {}


@contextlib.contextmanager
def about(facts: Mapping[str, Value]) -> Iterator[None]:
  """Adds facts to all that its body logs, in this task and those it starts."""
  token = _facts.set({**_facts.get(), **facts})
  try:
    yield
  finally:
    _facts.reset(token)


def about_process(facts: Mapping[str, Value]) -> None:
  """Adds facts to all that this process logs from now on."""
  _process_facts.update(facts)


def is_json() -> bool:
  """Returns whether the environment asks for JSON.

  Raises `ConfigError` if it asks for an unknown format.
  """
  form = os.environ.get(FORMAT) or "text"
  if form not in _FORMATS:
    raise ConfigError(
      f"{FORMAT}={form} in the environment is not one of {', '.join(_FORMATS)}"
    )
  return form == "json"


def set_up(level: int = logging.INFO, *, text: str = _TEXT) -> None:
  """Logs to standard error, as JSON or by the format `text`."""
  formatter = JsonFormatter() if is_json() else logging.Formatter(text)
  handler = logging.StreamHandler()
  handler.setFormatter(formatter)
  logging.basicConfig(level=level, handlers=[handler])


class JsonFormatter(logging.Formatter):
  """Formats a record as a JSON object in one line."""

  def format(self, record: logging.LogRecord) -> str:
    """See `logging.Formatter.format`."""
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    line: dict[str, object] = {
      "time": moment.isoformat(timespec="milliseconds"),
      "severity": record.levelname,
      "message": record.getMessage(),
      "logger": record.name,
      **_process_facts,
      **_facts.get(),
    }
    if record.exc_info and record.exc_info[0] is not None:
      line["exception.type"] = record.exc_info[0].__name__
      line["exception.message"] = str(record.exc_info[1])
      line["exception.stacktrace"] = self.formatException(record.exc_info)
    return json.dumps(line, default=str)
