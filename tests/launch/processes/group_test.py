"""Learner processes find each other, share values, and leave."""

import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
from absl.testing import parameterized

from agentrl_jax.errors import ConfigError, DeadlineExceeded
from launch.processes import group
from launch.processes import link as process_link
from tests.clocks import wait_until
from tests.service.processes import free_port

_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.launch.processes.group_test"])
WAIT_S = 60.0


def _lead(port_to, count, log, act):
  _speak_to(log, 0)
  link = process_link.LeadersLink(count, "127.0.0.1", WAIT_S, WAIT_S)
  for _ in range(1, count):
    port_to.put(link.address)
  link.accept()
  act(link)


def _follow(port_from, index, log, act, wait_timeout_s):
  _speak_to(log, index)
  link = process_link.follow(port_from.get(), index, WAIT_S, wait_timeout_s)
  act(link)


def _speak_to(log, index):
  file = os.open(f"{log}/{index}", os.O_WRONLY | os.O_CREAT)
  os.dup2(file, 2)


def _part(link, status=0):
  """Leaves, and waits for the others, as jax's farewell does."""
  link.leave(status)
  wait_until(lambda: all(wire.has_left for wire in link._wires))


def _share_two(link):
  for number in range(2):
    value = bytes([number]) * 3_000_000
    if link.share(value, "numbers") != value:
      raise AssertionError(f"number {number} arrived as another")
  _part(link)


def _wait(link):
  link.share(b"", "the first word")
  time.sleep(WAIT_S)


def _fall(link):
  link.share(b"", "the first word")
  os.kill(os.getpid(), signal.SIGKILL)


def _fail(link):
  link.share(b"", "the first word")
  link.fail("ConfigError: it is wrong")


def _leave_early(link):
  _part(link, 143)


def _share_one(link):
  try:
    link.share(b"", "the first word")
  except SystemExit as left:
    link.leave(left.code)
    raise


def _forward(link):
  link.share(b"", "that process 0 listens")
  link.forward(signal.SIGTERM)
  link.share(b"", "the end")
  _part(link)


def _hear_a_signal(link):
  heard = []
  signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
  link.share(b"", "that process 0 listens")
  wait_until(lambda: heard)
  link.share(b"", "the end")
  _part(link)
  if heard != [signal.SIGTERM]:
    raise AssertionError(f"heard {heard}")


class LinkTest(parameterized.TestCase):
  def _run(self, *acts, wait_timeout_s=WAIT_S):
    """Exit statuses, and what each process said to its standard error."""
    with tempfile.TemporaryDirectory() as folder:
      ports = _FORK.Queue()
      count = len(acts)
      running = [
        _FORK.Process(target=_lead, args=(ports, count, folder, acts[0]))
      ]
      running += [
        _FORK.Process(
          target=_follow, args=(ports, n, folder, act, wait_timeout_s)
        )
        for n, act in enumerate(acts[1:], start=1)
      ]
      for process in running:
        process.start()
      for process in running:
        process.join(WAIT_S)
        self.assertIsNotNone(process.exitcode, "it hangs")
      said = [
        pathlib.Path(folder, str(n)).read_text() for n in range(len(acts))
      ]
    return [process.exitcode for process in running], said

  def test_all_are_told_the_same_in_order(self):
    statuses, said = self._run(_share_two, _share_two, _share_two)
    self.assertEqual(statuses, [0, 0, 0], said)

  @parameterized.parameters(
    *((n, _fall, -signal.SIGKILL, f"process {n} was lost") for n in range(2)),
    *((n, _fail, 1, "failed: ConfigError: it is wrong") for n in range(2)),
  )
  def test_one_that_ends_ends_all_and_they_say_why(
    self, place, act, status, sentence
  ):
    acts, statuses = [_wait] * 3, [process_link.LOST] * 3
    acts[place], statuses[place] = act, status
    found, said = self._run(*acts)
    self.assertEqual(found, statuses, said)
    for other in {0, 1, 2} - {place}:
      self.assertIn(sentence, said[other])

  def test_when_process_0_leaves_the_others_do(self):
    statuses, said = self._run(_leave_early, _share_one, _share_one)
    self.assertEqual(statuses, [0, 143, 143], said)

  @pytest.mark.slow
  def test_a_signal_reaches_process_0(self):
    statuses, said = self._run(_hear_a_signal, _forward)
    self.assertEqual(statuses, [0, 0], said)

  @pytest.mark.slow
  def test_a_word_that_does_not_come_is_named(self):
    statuses, said = self._run(_say_nothing, _share_one, wait_timeout_s=0.2)
    self.assertEqual(statuses[1], 1)
    self.assertIn(
      "waited processes.wait_timeout_s=0.2 s for process 0", said[1]
    )


@pytest.mark.timeout(60)
def test_a_process_that_reads_nothing_is_not_waited_for_below_a_second():
  with (
    socket.create_server(("127.0.0.1", 0)) as server,
    socket.create_connection(server.getsockname()) as sender,
    server.accept()[0],
  ):
    wire = process_link._Wire(sender, 1, 0.2)
    with pytest.raises(OSError, match="unavailable|timed out"):
      wire.send(b"s", bytes(64 << 20))


def _say_nothing(link):
  del link
  time.sleep(WAIT_S)  # the loss of the other process ends this one


class ProcessesTest(parameterized.TestCase):
  @parameterized.parameters(
    ({}, None),
    ({"NUM_PROCESSES": "1", "PROCESS_ID": "0", "COORDINATOR": "h:1"}, None),
    ({"NUM_PROCESSES": "auto"}, {}),
  )
  def test_reads_the_environment(self, found, expected):
    found = {f"AGENTRL_{name}": value for name, value in found.items()}
    self.assertEqual(group._read(found), expected)

  @parameterized.parameters(
    ({"NUM_PROCESSES": "2"}, "AGENTRL_COORDINATOR and AGENTRL_PROCESS_ID are"),
    (
      {"NUM_PROCESSES": "2", "PROCESS_ID": "2", "COORDINATOR": "h:1"},
      "AGENTRL_PROCESS_ID=2 must be from 0 to 1",
    ),
    (
      {"NUM_PROCESSES": "two", "PROCESS_ID": "0", "COORDINATOR": "h:1"},
      "AGENTRL_NUM_PROCESSES='two'",
    ),
  )
  def test_refuses_what_is_half_said(self, found, sentence):
    found = {f"AGENTRL_{name}": value for name, value in found.items()}
    with self.assertRaisesRegex(ConfigError, sentence):
      group._read(found)

  def test_one_process_shares_with_itself(self):
    alone = group.Processes()
    self.assertTrue(alone.leads)
    self.assertEqual(alone.share(b"x", what="x"), b"x")
    self.assertEqual(alone.share_json([1], what="x"), [1])

  def test_nobody_calls(self):
    link = process_link.LeadersLink(2, "127.0.0.1", 0.05, WAIT_S)
    with self.assertRaisesRegex(DeadlineExceeded, r"processes \[1\] to call"):
      link.accept()


LATE_S = 35  # gloo waits 30 s for a new connection
LIMIT_S = 300

PROGRAM = f"""
import time
import jax
from jax.sharding import NamedSharding, PartitionSpec
from agentrl_jax.model import sharding
from launch.processes.devices import connect_devices
from launch.processes.group import ProcessLimits, joined

limits = ProcessLimits(
  join_timeout_s=120, heartbeat_timeout_s=120, wait_timeout_s=120
)
with joined(limits) as processes:
  mesh = sharding.make_mesh({{"data": 2, "fsdp": 2}})
  connect_devices(mesh, processes)
  place = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
  x = jax.jit(lambda: jax.numpy.ones(4), out_shardings=place)()
  # Over all devices: joining connects those of the same rank alone.
  program = jax.jit(lambda x: x.sum()).lower(x).compile()
  time.sleep({LATE_S} * processes.index)
  jax.block_until_ready(program(x))
  processes.share(what="the end")
print("all are there")
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_a_process_that_is_late_is_waited_for():
  port = free_port()
  running = [
    subprocess.Popen(
      [sys.executable, "-c", PROGRAM],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      env={
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "AGENTRL_COORDINATOR": f"127.0.0.1:{port}",
        "AGENTRL_NUM_PROCESSES": "2",
        "AGENTRL_PROCESS_ID": str(index),
      },
    )
    for index in range(2)
  ]
  said = [process.communicate(timeout=LIMIT_S)[0] for process in running]
  assert all("all are there" in text for text in said), said
