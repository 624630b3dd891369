"""Sandboxes start isolated or not at all, and end with their owner."""

import asyncio
import glob
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import pytest

from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.options import MachineLimits
from environments.os_interaction.machines.sandbox import cgroups
from environments.os_interaction.machines.sandbox.engine import SandboxEngine
from environments.os_interaction.rootfs import _fill
from tests.clocks import wait_until
from tests.environments.os_interaction.engines import InSandbox, start_or_skip

PROGRAM = """
import asyncio, sys
from agentrl_jax.errors import ConfigError
from environments.options import MachineLimits
from environments.os_interaction.machines.sandbox.engine import SandboxEngine

async def main():
  engine = SandboxEngine(MachineLimits(), rootfs=sys.argv[1])
  try:
    machine = await engine.start("default")
  except ConfigError as error:
    print(error)
    await engine.close()
    return
  await machine.run(
    ["sh", "-c", f"setsid sleep {sys.argv[2]} >&- 2>&- &"], limit_s=9
  )
  print("started", flush=True)
  await asyncio.sleep(600)

asyncio.run(main())
"""


# Prints the outcome of each call: sockets by family, kind and protocol, and a
# terminal's line discipline.
CALLS = """
import errno, fcntl, os, socket
def attempt(function, *arguments):
  try:
    function(*arguments)
    print("ok")
  except OSError as error:
    print(errno.errorcode[error.errno])
for kind in (
  (1, 1), (2, 1), (2, 2, 17), (10, 1, 6), (16, 3),
  (38, 5), (40, 1), (16, 3, 4), (2, 1, 132),
):
  attempt(socket.socket, *kind)
attempt(fcntl.ioctl, os.openpty()[0], 0x5423, bytes(4))
"""
# Prints each success.
LIMIT_INIT = """prlimit --pid 1 --nofile=9:9 && echo files
prlimit --pid 1 --cpu=0:0 && echo processor; chrt -i -p 0 1 && echo idle
renice -n 19 -p 1 && echo nice; ionice -c 3 -p 1 && echo io
renice -n 19 -u root >&2"""


def groups(engine):
  """Returns the control groups of an engine's sandboxes."""
  owner = engine._zygote._process.pid
  return set(glob.glob(f"/sys/fs/cgroup/**/agentrl/{owner}-*/", recursive=True))


def num_sleepers(seconds):
  """Counts this host's processes that sleep for `seconds`."""
  count = 0
  for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
      count += pathlib.Path(path).read_bytes() == f"sleep\0{seconds}\0".encode()
    except (FileNotFoundError, ProcessLookupError):
      continue
  return count


def wait_for_sleepers(seconds, count):
  wait_until(lambda: num_sleepers(seconds) == count)


def child_of(pid):
  return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text())


def limits_of(pid):
  return pathlib.Path(f"/proc/{pid}/limits").read_text()


def mounts():
  return pathlib.Path("/proc/self/mounts").read_text()


@pytest.mark.docker
class SandboxTest(InSandbox):
  async def test_commands_end_with_a_code_and_both_streams(self):
    async with self.machine() as machine:
      done = await machine.run(
        ["sh", "-c", "echo out; echo err >&2; exit 3"], limit_s=20.0
      )
      killed = await machine.run(["sh", "-c", "kill -9 $$"], limit_s=20.0)
      missing = await machine.run(["/no/such/program"], limit_s=20.0)
      too_long = await machine.run(["true", "x" * 200_000], limit_s=20.0)
    self.assertEqual(
      (done.code, done.stdout, done.stderr), (3, b"out\n", b"err\n")
    )
    codes = killed.code, missing.code, too_long.code
    self.assertEqual(codes, (137, 127, 126))

  async def test_restart_ends_a_command_that_timed_out(self):
    async with self.machine() as machine:
      done = await machine.run(["sleep", "600"], limit_s=0.3)
      self.assertIsNone(done.code)
      await machine.run(["touch", "/seen"], limit_s=20.0)
      await machine.restart()
      done = await machine.run(
        ["sh", "-c", "ls /seen; pgrep -fx 'sleep 600'"], limit_s=20.0
      )
    self.assertEqual(done.stdout, b"/seen\n")

  async def test_root_holds_its_capabilities_and_no_others(self):
    async with self.machine() as machine:
      done = await machine.run(
        ["grep", "-hE", "^(Cap|NoNew)", "/proc/1/status", "/proc/self/status"],
        limit_s=20.0,
      )
    held = f"{sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7)):016x}"
    for line in done.stdout.decode().splitlines():
      name, value = line.split()
      with self.subTest(name=name):
        expected = {
          "NoNewPrivs:": "1",
          "CapInh:": "0" * 16,
          "CapAmb:": "0" * 16,
        }
        self.assertEqual(value, expected.get(name, held))

  async def test_every_machine_starts_with_the_same_files(self):
    async with self.machine() as machine:
      await machine.run(["rm", "-rf", "/etc", "/root"], limit_s=20.0)
    async with self.machine() as machine:
      done = await machine.run(["ls", "-d", "/etc/passwd"], limit_s=20.0)
    self.assertEqual(done.stdout, b"/etc/passwd\n")

  async def test_many_at_once_leave_nothing(self):
    engine = self.open_engine()
    machine = await start_or_skip(engine)
    before = groups(engine)
    others = await asyncio.gather(*(engine.start("default") for _ in range(12)))
    self.assertGreater(groups(engine), before)
    names = {
      (await each.run(["hostname"], limit_s=20.0)).stdout for each in others
    }
    self.assertEqual(len(names), 12)
    await asyncio.gather(*(each.remove() for each in others))
    self.assertEqual(groups(engine), before)
    await machine.remove()

  async def test_a_machine_whose_engine_is_closed_is_a_fault(self):
    engine = self.make_engine()
    machine = await start_or_skip(engine)
    await engine.close()
    try:
      with self.assertRaises(EnvironmentFault):
        await machine.run(["true"], limit_s=20.0)
    finally:
      await machine.remove()

  async def test_calls_that_reach_the_kernel_are_refused(self):
    async with self.machine() as machine:
      done = await machine.run(["python3", "-c", CALLS], limit_s=20.0)
    self.assertEqual(
      done.stdout.decode().split(),
      ["ok"] * 5 + ["EAFNOSUPPORT"] * 2 + ["EPROTONOSUPPORT"] * 2 + ["EPERM"],
      done.stderr,
    )

  async def test_root_cannot_limit_the_init_process(self):
    async with self.machine() as machine:
      init = child_of(machine._process.pid)
      before = limits_of(init), os.getpriority(os.PRIO_PROCESS, init)
      done = await machine.run(["sh", "-c", LIMIT_INIT], limit_s=20.0)
      self.assertEqual(done.stdout, b"")
      after = limits_of(init), os.getpriority(os.PRIO_PROCESS, init)
      self.assertEqual(after, before)
      done = await machine.run(["id", "-u"], limit_s=20.0)
    self.assertEqual(done.stdout, b"0\n")

  async def test_a_machine_whose_init_is_killed_from_outside_is_a_fault(self):
    async with self.machine() as machine:
      os.kill(child_of(machine._process.pid), signal.SIGKILL)
      with self.assertRaisesRegex(EnvironmentFault, "init process has ended"):
        await machine.run(["sleep", "9"], limit_s=20.0)

  async def test_processes_end_with_a_killed_owner(self):
    seconds = 10_000_000 + os.getpid()
    process = await asyncio.create_subprocess_exec(
      sys.executable,
      "-c",
      PROGRAM,
      self.options["rootfs"],
      str(seconds),
      stdout=subprocess.PIPE,
    )
    try:
      async with asyncio.timeout(60):
        line = await process.stdout.readline()
        if line.strip() != b"started":
          self.skipTest(line.decode())
        await asyncio.to_thread(wait_for_sleepers, seconds, 1)
    finally:
      process.send_signal(signal.SIGKILL)
      await process.communicate()
    await asyncio.to_thread(wait_for_sleepers, seconds, 0)

  async def test_without_cap_sys_admin_there_is_no_sandbox(self):
    if shutil.which("setpriv") is None:
      self.skipTest("needs setpriv (Debian: util-linux)")
    process = await asyncio.create_subprocess_exec(
      "setpriv",
      "--bounding-set=-sys_admin",
      "--inh-caps=-all",
      sys.executable,
      "-c",
      PROGRAM,
      self.options["rootfs"],
      "1",
      stdout=subprocess.PIPE,
    )
    error, _ = await process.communicate()
    self.assertIn(b"the sandbox cannot isolate on this machine", error)
    self.assertIn(b"CAP_SYS_ADMIN", error)

  async def test_nothing_is_mounted_on_the_host(self):
    async with self.machine() as machine:
      self.assertNotIn(machine._zygote.scratch, mounts())
      done = await machine.run(["cat", "/proc/mounts"], limit_s=20.0)
    self.assertIn(machine._zygote.scratch, done.stdout.decode())


class MemoryTest(unittest.TestCase):
  def test_a_full_group_is_told_from_a_full_host(self):
    for files, expected in (
      ({"memory.events": "max 3\noom 1\noom_kill 1\n"}, True),
      ({"memory.events": "max 0\noom 0\noom_kill 1\n"}, False),
      ({"memory.events": "max 3\noom 0\noom_kill 0\n"}, False),
      ({"memory.oom_control": "oom_kill 1\n", "memory.failcnt": "3\n"}, True),
      ({"memory.oom_control": "oom_kill 1\n", "memory.failcnt": "0\n"}, False),
      ({"pids.max": "3\n"}, False),
    ):
      with self.subTest(files=files), tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
          pathlib.Path(folder, name).write_text(text)
        self.assertIs(cgroups.ran_out_of_memory(["/none", folder]), expected)


class FilesTest(unittest.TestCase):
  def test_an_existing_folder_is_not_overwritten(self):
    if os.geteuid() != 0:
      self.skipTest("needs root")
    with self.assertRaisesRegex(ConfigError, "exists already"):
      _fill(pathlib.Path("/tmp"), self.fail)

  def test_a_folder_without_a_linux_is_refused(self):
    for rootfs in ("/no/such/folder", "/tmp"):
      with (
        self.subTest(rootfs=rootfs),
        self.assertRaisesRegex(ConfigError, "os_interaction.rootfs"),
      ):
        SandboxEngine(MachineLimits(), rootfs=rootfs)
