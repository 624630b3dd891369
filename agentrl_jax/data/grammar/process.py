"""Checks grammars in a process of their own, which can be stopped.

llguidance limits the size of grammars and not the time, and a schema of a few
hundred bytes can take minutes. Its calls cannot be interrupted, so each job
runs in a fork of a small process that holds the tokenizer, under a budget of
CPU seconds and memory that the kernel enforces. A grammar that passes is then
compiled again by its user, in the same time. Needs no jax.
"""

import contextlib
import json
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any, BinaryIO

import llguidance

from agentrl_jax.errors import ConfigError, DeadlineExceeded

_log = logging.getLogger(__name__)

_MEMORY = 1 << 30  # bytes that a job may take, beyond the tokenizer's
_WALL_PER_CPU = 20.0  # wall seconds per CPU second, on a busy machine
_START_S = 120.0  # for the process to read its tokenizer


class GrammarTooLarge(ConfigError):
  """A grammar needs more time or memory than it may have."""


class GrammarProcess:
  """One such process, started by the first check. Any thread may use it.

  It runs one job at a time; use several processes for more.
  """

  def __init__(
    self,
    tokenizer: str = "",
    *,
    stop_tokens: Sequence[int] = (),
    vocab_size: int = 0,
  ):
    """`tokenizer` is its JSON, in which markers are special.

    Without one, grammars can be parsed and not compiled.
    """
    self._head = {
      "tokenizer": tokenizer,
      "stop_tokens": list(stop_tokens),
      "vocab_size": vocab_size,
    }
    self._lock = threading.Lock()
    self._running: list[subprocess.Popen[bytes]] = []  # one, or none
    self._finalizer = weakref.finalize(self, _end, self._running)

  def check(self, grammar: str, *, cpu_s: float, compiled: bool = True) -> str:
    """Returns the reason why the grammar cannot be used; "" if it can.

    Without `compiled` the grammar is parsed and not compiled. Blocks. Raises
    `GrammarTooLarge` for a grammar that needs more than `cpu_s` seconds of CPU,
    and `DeadlineExceeded` if the process does not answer.
    """
    job = {"grammar": grammar, "cpu_s": cpu_s, "compiled": compiled}
    with self._lock:
      reason = self._ask(job, _START_S + _WALL_PER_CPU * cpu_s)
    if reason is None:
      raise GrammarTooLarge(
        f"the grammar of {len(grammar)} characters needs more than {cpu_s:g} s "
        "of CPU (http.compile_timeout_s), or too much memory: give it fewer "
        "properties, a smaller multipleOf, or patterns that are shorter"
      )
    return reason

  def close(self) -> None:
    """Ends the process."""
    with self._lock:
      _end(self._running)

  def _ask(self, job: dict[str, Any], deadline_s: float) -> str | None:
    try:
      process = self._process()
      assert process.stdin and process.stdout
      _write(process.stdin, job)
      ready, _, _ = select.select([process.stdout], [], [], deadline_s)
      line = process.stdout.readline() if ready else b""
      if line:
        reason: str | None = json.loads(line)
        return reason
    except OSError as error:
      _log.warning("the process that compiles grammars is gone: %s", error)
    _end(self._running)
    raise DeadlineExceeded(
      "the process that compiles grammars has not answered within "
      f"{deadline_s:g} s, or has ended; it starts again with the next grammar"
    )

  def _process(self) -> subprocess.Popen[bytes]:
    if self._running and self._running[0].poll() is None:
      return self._running[0]
    _end(self._running)
    process = subprocess.Popen(
      [sys.executable, "-m", "agentrl_jax.data.grammar.process"],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      start_new_session=True,  # Ctrl-C must reach the server only
    )
    self._running.append(process)
    _write(process.stdin, self._head)
    return process


def _end(running: list[subprocess.Popen[bytes]]) -> None:
  """Kills the process and its fork, if there are any."""
  while running:
    process = running.pop()
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
      with contextlib.suppress(OSError):
        assert pipe
        pipe.close()


def _write(pipe: Any, body: Any) -> None:
  pipe.write(json.dumps(body).encode() + b"\n")
  pipe.flush()


def serve(source: BinaryIO, out: BinaryIO) -> None:
  """Runs in the process: answers one job per line, until the input ends."""
  head = json.loads(source.readline())
  tokenizer = head["tokenizer"] and llguidance.LLTokenizer(
    head["tokenizer"], n_vocab=head["vocab_size"], eos_token=head["stop_tokens"]
  )
  while line := source.readline():
    _write(out, _forked(tokenizer, json.loads(line)))


def _forked(
  tokenizer: llguidance.LLTokenizer, job: dict[str, Any]
) -> str | None:
  """Runs a job in a fork; returns its reason, or None if it was stopped."""
  reading, writing = os.pipe()
  child = os.fork()
  if not child:
    os.close(reading)
    _limit(job["cpu_s"])
    os.write(writing, _reason(tokenizer, job).encode()[:4000])
    os._exit(0)
  os.close(writing)
  with os.fdopen(reading, "rb") as pipe:
    reason = pipe.read()
  _, status = os.waitpid(child, 0)
  return reason.decode(errors="ignore") if status == 0 else None


def _limit(cpu_s: float) -> None:
  """Limits this process; the kernel ends it at either limit."""
  signal.signal(signal.SIGPROF, signal.SIG_DFL)
  signal.setitimer(signal.ITIMER_PROF, cpu_s)
  with open("/proc/self/statm") as status:
    size = int(status.read().split()[0]) * resource.getpagesize()
  resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _reason(tokenizer: llguidance.LLTokenizer, job: dict[str, Any]) -> str:
  if not job["compiled"]:
    return str(llguidance.LLMatcher.validate_grammar(job["grammar"]))
  matcher = llguidance.LLMatcher(tokenizer, job["grammar"], log_level=0)
  return str(matcher.get_error()) if matcher.is_error() else ""


if __name__ == "__main__":
  serve(sys.stdin.buffer, sys.stdout.buffer)
