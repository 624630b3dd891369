"""Tests of a container per session, on a real engine."""

import asyncio
import signal
import subprocess
import sys
import unittest

import docker.errors
import pytest

from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.docker.orphans import remove_orphans
from agentrl_jax.service.docker.session_container import (
  SessionContainer,
  SessionContainerSpec,
  keeps_quotas,
)
from tests.service.docker.engine_for_tests import DockerTestCase, base_or_skip

PROGRAM = """
import asyncio, sys
from agentrl_jax.service.docker import engine
from agentrl_jax.service.docker.session_container import *

async def main():
  with engine.connect() as docker:
    spec = SessionContainerSpec(image=sys.argv[1], workdir="/")
    container = await SessionContainer.start(docker, spec)
    print(container.name, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.docker
class SessionContainerTest(DockerTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.image = base_or_skip(cls.docker)

  async def start(self, **settings):
    spec = SessionContainerSpec(image=self.image, workdir="/", **settings)
    container = await SessionContainer.start(self.docker, spec)
    self.addAsyncCleanup(container.remove)
    return container

  async def in_shell(self, container, script, *, limit_s=20.0, **limits):
    """Runs a script of the container's `sh`."""
    return await container.run(["sh", "-c", script], limit_s=limit_s, **limits)

  async def test_root_cannot_change_modes_of_the_hosts_files(self):
    container = await self.start(capabilities=("CHOWN", "FOWNER"))
    script = (
      "cd /proc; for f in [!0-9]*; do test -L $f || chmod -f "
      "$(stat -c %a $f) $f && echo $f; done"
    )
    done = await self.in_shell(container, script)
    # Docker covers these with files and folders of the container.
    own = {"acpi", "asound", "kcore", "keys", "latency_stats", "sched_debug"}
    own |= {"timer_list", "timer_stats", "scsi", "interrupts"}
    links = {"mounts", "net", "self", "thread-self"}
    self.assertEqual(set(done.stdout.decode().split()) - own, links)

  async def test_commands_end_with_a_code_and_both_streams(self):
    container = await self.start()
    done = await self.in_shell(container, "echo out; echo err >&2; exit 3")
    self.assertEqual(
      (done.code, done.stdout, done.stderr), (3, b"out\n", b"err\n")
    )

  async def test_a_bash_that_waits_becomes_the_first_script(self):
    container = await self.start()
    await container.get_ready()
    script = "cat; echo $#; ps=$(ls /proc | grep -c '^[0-9]'); exit 4\n"
    argv = ["bash", "-c", f"{script}"]
    first = await container.run(argv, limit_s=20.0)
    second = await container.run(argv, limit_s=20.0)
    self.assertEqual((first.code, first.stdout), (4, b"0\n"))
    self.assertEqual(second, first)

  async def test_sealing_ends_the_bash_that_waits(self):
    container = await self.start()
    await container.get_ready()
    await container.seal()
    await container.seal()
    script = "sleep 1; grep -l '^bash' /proc/[0-9]*/cmdline"
    done = await self.in_shell(container, script)
    self.assertEqual(done.stdout, b"")

  async def test_output_is_read_and_not_kept(self):
    container = await self.start()
    script = "yes | head -c 5000000"
    done = await self.in_shell(container, script, max_bytes=1000)
    self.assertEqual((done.code, len(done.stdout)), (0, 1000))

  @pytest.mark.slow
  async def test_a_command_without_end_is_left_and_restart_ends_it(self):
    container = await self.start()
    done = await self.in_shell(container, "touch /seen; sleep 600", limit_s=1.0)
    self.assertIsNone(done.code)
    await container.restart()
    script = "ls /seen; grep -l '^sleep.600' /proc/*/cmdline"
    done = await self.in_shell(container, script)
    self.assertEqual(done.stdout, b"/seen\n")

  async def test_terminal(self):
    container = await self.start()
    terminal = await container.terminal(["sh", "-c", "read x; echo got $x"])
    terminal.write(b"this\n")
    output = b""
    async with asyncio.timeout(20):
      while data := await terminal.read():
        output += data
    await terminal.close()
    self.assertIn(b"got this\r\n", output)

  async def test_limits_are_the_engines(self):
    container = await self.start(
      memory_mb=100, cpus=0.5, pids=17, capabilities=("CHOWN",)
    )
    host = self.docker.api.inspect_container(container.name)["HostConfig"]
    limits = {
      "Memory": 100 << 20,
      "MemorySwap": 100 << 20,
      "NanoCpus": 500_000_000,
      "PidsLimit": 17,
      "CapDrop": ["ALL"],
      "NetworkMode": "none",
    }
    self.assertEqual({name: host[name] for name in limits}, limits)
    self.assertFalse(host["Privileged"])
    self.assertFalse(host["Binds"])
    done = await container.run(["cat", "/proc/self/status"], limit_s=20.0)
    self.assertIn(b"CapBnd:\t0000000000000001\n", done.stdout)
    self.assertIn(b"NoNewPrivs:\t1\n", done.stdout)

  async def test_its_first_process_cannot_be_killed_and_reaps_orphans(self):
    container = await self.start(capabilities=("KILL",))
    await self.in_shell(container, "kill -9 1 -1; kill -TERM 1; kill -CHLD 1")
    await self.in_shell(container, "(sleep 0.1 &) &")
    script = "sleep 0.5; grep -l 'State:.Z' /proc/[0-9]*/status"
    done = await self.in_shell(container, script)
    self.assertEqual(done.stdout, b"")
    self.assertTrue(await container.is_running())

  async def test_removing_twice_is_allowed(self):
    container = await self.start()
    await container.remove()
    await container.remove()
    with self.assertRaises(docker.errors.NotFound):
      self.docker.containers.get(container.name)
    with self.assertRaises(EnvironmentFault):
      await container.run(["true"], limit_s=20.0)

  async def test_cancelled_start_leaves_nothing(self):
    before = self.containers()
    spec = SessionContainerSpec(image=self.image, workdir="/")
    starting = asyncio.create_task(SessionContainer.start(self.docker, spec))
    await asyncio.sleep(0.01)
    starting.cancel()
    with self.assertRaises(asyncio.CancelledError):
      await starting
    self.assertEqual(len(self.containers()), len(before))

  async def test_a_missing_image_is_named(self):
    spec = SessionContainerSpec(image="no/such_image_anywhere")
    with self.assertRaisesRegex(ConfigError, "launch.build_images"):
      await SessionContainer.start(self.docker, spec)

  async def test_quotas_are_tried_and_leave_nothing(self):
    self.assertIn(keeps_quotas(self.docker, self.image), (True, False))
    self.assertEqual(self.containers(), [])

  async def test_containers_of_a_killed_process_are_removed(self):
    process = await asyncio.create_subprocess_exec(
      sys.executable, "-c", PROGRAM, self.image, stdout=subprocess.PIPE
    )
    async with asyncio.timeout(60):
      name = (await process.stdout.readline()).decode().strip()
      self.docker.containers.get(name)
      process.send_signal(signal.SIGKILL)
      await process.communicate()
      # Its own reaper does the same, at a time of its own.
      await asyncio.to_thread(remove_orphans, self.docker)
    with self.assertRaises(docker.errors.NotFound):
      self.docker.containers.get(name)


class SpecTest(unittest.TestCase):
  def test_limits_are_positive(self):
    for name in ("memory_mb", "cpus", "pids", "disk_mb"):
      with self.subTest(name=name), self.assertRaises(ConfigError):
        SessionContainerSpec(image="x", **{name: 0})
