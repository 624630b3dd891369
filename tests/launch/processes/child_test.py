"""A child process that dies, hangs or raises, and one that does neither."""

import os
import signal
import sys
import time

import pytest

from agentrl_jax.errors import ConfigError
from launch.processes.child import Child, ChildDied

FATAL = """\
E1126 18:07:18.000000    1068 other.cc:1] Not this.
F1126 18:07:18.289613    1068 strategies.cc:316] Check failed: 1 < 1 (1 vs. 1) 
*** Check failure stack trace: ***
    @     0x7f5254a9bc54  absl::log_internal::LogMessage::SendToLog()
https://symbolize/r/?trace=7f5254a9bc53
"""


def process_number():
  return os.getpid()


def compile_and_abort(text):
  sys.stderr.write(text)
  sys.stderr.flush()
  os.abort()


def end_by(number):
  os.kill(os.getpid(), number)


def refuse():
  raise ConfigError("no such mesh")


def hang():
  sys.stderr.write("compiling\n")
  sys.stderr.flush()
  time.sleep(60)


def speak():
  sys.stdout.write("out\n")
  sys.stderr.write("a warning\n")


@pytest.fixture(scope="module")
def child():
  made = Child()
  yield made
  made.close()


def call(child, function, *arguments, deadline_s=60.0):
  return child.call(function, *arguments, deadline_s=deadline_s)


def test_one_process_answers_all_calls(child, capfd):
  number = call(child, process_number)
  assert number != os.getpid()
  assert call(child, divmod, 7, 2) == (3, 1)
  with pytest.raises(ConfigError, match="^no such mesh"):
    call(child, refuse)
  assert call(child, speak) is None
  assert capfd.readouterr() == ("", "out\na warning\n")
  assert call(child, process_number) == number


@pytest.mark.parametrize(
  "function, arguments, deadline_s, message",
  [
    (
      compile_and_abort,
      (FATAL,),
      60.0,
      r"was ended by SIGABRT: Check failed: 1 < 1 \(1 vs\. 1\) "
      r"\(strategies\.cc:316\)$",
    ),
    (compile_and_abort, ("last words\n\n",), 60.0, "SIGABRT: last words$"),
    (end_by, (signal.SIGKILL,), 60.0, "SIGKILL, as .* where memory is short$"),
    (os._exit, (3,), 60.0, "ended with status 3$"),
    (hang, (), 0.3, r"did not end in 0\.3 s, and was killed(: compiling)?$"),
  ],
)
def test_a_death_is_a_sentence_and_the_next_call_has_another_process(
  child, capfd, function, arguments, deadline_s, message
):
  before = call(child, process_number)
  with pytest.raises(ChildDied, match=message):
    call(child, function, *arguments, deadline_s=deadline_s)
  assert capfd.readouterr() == ("", "")
  after = call(child, process_number)
  assert after != before
  with pytest.raises(ProcessLookupError):
    os.kill(before, 0)
