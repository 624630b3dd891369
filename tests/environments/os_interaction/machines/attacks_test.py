"""A policy that attacks its machine costs its own session alone.

After every attack the session replies or ends within its deadline, without an
`EnvironmentFault`, and another session on the same engine goes on unharmed.
"""

import asyncio
import os
import pathlib
import re
import tempfile
import time

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.errors import EnvironmentFault
from environments.os_interaction import OSInteraction
from environments.os_interaction.prompts import CUT, OUTPUT
from tests.environments.os_interaction.engines import NAME, InSandbox, OnDocker
from tests.environments.os_interaction.messages import answer, bash

TASK = Task(NAME, "train", 0)
# Scripts that take away what a shell or a machine needs to start.
RUINS = {
  "no bash": "mv /bin/bash /bin/bash.gone; exit",
  "bash sleeps": r"printf '#!/bin/sh\nsleep 1000\n' > /b; chmod 755 /b; "
  "mv /b /bin/bash; exit",
  "sleeping profile": "echo exec sleep 1000 | tee ~/.bashrc > /etc/profile; "
  "exit",
  "profile without end": r"printf 'trap \047\047 INT HUP TERM\n"
  r"while :; do :; done\n' > /etc/profile; exit",
  "imitated prompt": r"""echo "printf '\033[?2004hroot@x:~# '; exec sleep 9" """
  "> /etc/profile; exit",
  "silent readline": "echo 'set enable-bracketed-paste off' > ~/.inputrc; "
  "echo 'PS1=' > ~/.bashrc; exit",
  "no programs": "rm -rf /bin /usr/bin /sbin /usr/sbin; exit",
  "no libraries": "rm -rf /lib/* /lib64/* /usr/lib/*; exit",
  "nothing": "rm -rf --no-preserve-root / & sleep 2; exit",
  "no loader": "rm -f /lib64/ld-* /lib/*/ld-*; exit",
  "forbidden": "chmod 000 /bin/bash; exit",
  "first in PATH": r"printf '#!/bin/dash\nexit 0\n' > /x; chmod 755 /x; "
  "for p in perl sleep sh bash; do cp /x /usr/local/sbin/$p; done; "
  "trap '' INT; while :; do :; done",
  "no first process": "rm -f /usr/bin/perl /bin/sh /bin/sleep; trap '' INT; "
  "while :; do :; done",
  "no users": ": > /etc/passwd; : > /etc/group; exit",
  "a ring of users": "ln -sf passwd /etc/passwd; exit",
  "a ring of settings": "mv /etc /e; ln -s /etc /etc; exit",
  "no home": "cd /; rm -rf /root; exit",
  "a ring at home": "cd /; rm -rf /root; ln -s /root /root; exit",
}
COMMAND_TIMEOUT_S = 3.0
GRACE_S = 30.0  # to stop a command on a busy machine


class Attacked:
  """Sessions of a policy that attacks its machine."""

  def setUp(self):
    self.environment = OSInteraction(
      engine=self.open_engine(memory_mb=128, pids=64, disk_mb=64),
      command_limit_s=COMMAND_TIMEOUT_S,
      kinds=("search",),
    )
    self.addAsyncCleanup(self.environment.close)

  async def attack(self, *scripts):
    """Plays the scripts and a harmless one beside another session.

    Returns the replies and the last status.
    """
    replies, status = [], Status.RUNNING
    async with (
      self.environment.open(TASK, seed=0) as session,
      self.environment.open(TASK, seed=0) as neighbour,
    ):
      await session.reset()
      await neighbour.reset()
      for script in (*scripts, "echo $((6 * 7))"):
        if status is not Status.RUNNING:
          break
        began = time.monotonic()
        async with asyncio.TaskGroup() as both:
          ours = both.create_task(session.step(bash(script)))
          theirs = both.create_task(neighbour.step(bash("echo $((1 + 1))")))
        step, status = ours.result(), ours.result().status
        self.assertLess(time.monotonic() - began, COMMAND_TIMEOUT_S + GRACE_S)
        self.assertEqual(
          theirs.result().messages[0].content, OUTPUT.format("2\r\n")
        )
        self.assertTrue(status is Status.RUNNING or status.is_policys_doing)
        replies.append(step.messages[0].content)
    return replies, status

  async def survives(self, *scripts):
    """Attacks, and checks that the harmless script runs."""
    replies, status = await self.attack(*scripts)
    self.assertIn(OUTPUT.format("42\r\n"), replies[-1], replies)
    self.assertIs(status, Status.RUNNING)
    return replies

  async def test_ignoring_interrupts(self):
    replies = await self.survives("trap '' INT QUIT TERM; sleep infinity")
    self.assertIn("So was every other process", replies[0])


class Attacks(Attacked):
  """Attacks that are tested on every engine."""

  async def test_fork_bomb(self):
    await self.attack(":(){ :|:& };:", "echo", "echo")

  async def test_memory_bomb(self):
    replies = await self.survives("head -c 1G /dev/zero | tail")
    self.assertIn("Killed", replies[0])

  async def test_filling_the_disk(self):
    replies, status = await self.attack(
      "for i in $(seq 40); do dd if=/dev/zero of=/big$i bs=1M count=10 "
      "2>/dev/null; done; sleep 1.5; ls / | grep -c big",
      "df / >/dev/null; dd if=/dev/zero of=/last bs=1M count=10",
    )
    text = "".join(replies)
    if status is Status.RUNNING:
      self.assertIn("No space left on device", text)
    else:
      self.assertIn("more than 64 MB were written", text)

  async def test_kill_everything(self):
    replies = await self.survives("sleep 100 & kill -9 -1")
    self.assertNotIn("shell has ended", replies[-1])

  async def test_closing_the_shell(self):
    replies = await self.survives("exit", "exec true", "kill -9 $$")
    for reply in replies[:3]:
      self.assertIn("The shell has ended", reply)

  async def test_a_ruined_system(self):
    for name, script in self.sample(RUINS):
      with self.subTest(name):
        await self.attack(script)

  def sample(self, scripts):
    return list(scripts.items())

  async def test_reading_host_files(self):
    with tempfile.NamedTemporaryFile("w", dir="/var/tmp") as secret:
      secret.write("a secret of the host")
      secret.flush()
      name = pathlib.Path(secret.name).name
      replies = await self.survives(
        f"find / -name {name} 2>/dev/null | wc -l; cat {secret.name}; "
        f"cat /proc/*/root{secret.name}",
        "mount -t proc x /mnt; mount --bind / /mnt; mknod /d b 254 0; "
        "cat /d | head -c 1; unshare -Urm true && echo inside; ls /mnt",
        f"cat /proc/1/environ; ls /proc/1/cwd/; ls -d /proc/{os.getpid()}",
      )
    self.assertTrue(replies[0].startswith(OUTPUT.format("0\r\n")), replies)
    self.assertNotIn("secret of", "".join(replies))
    self.assertNotIn("inside", replies[1].replace("echo inside", ""))
    self.assertIn("No such file", replies[2])

  async def test_reaching_the_network(self):
    replies = await self.survives(
      "ls /sys/class/net 2>/dev/null | tr -d '\\r' | xargs echo nets:",
      "timeout 2 bash -c 'echo > /dev/tcp/1.1.1.1/53'; echo code $?",
    )
    self.assertIn("nets: lo\r\n", replies[0])
    self.assertIn("code 1\r\n", replies[1])


class AllAttacks(Attacks):
  async def test_processes_are_counted(self):
    program = (
      "import os, time\\nn = 0\\ntry:\\n  while True:\\n    n += 1\\n"
      "    os.fork() or time.sleep(50)\\nexcept OSError as e: print(n, e)"
    )
    replies, _ = await self.attack(f"python3 -c $'{program}'")
    self.assertIn("Resource temporarily unavailable", replies[0])
    self.assertLessEqual(int(re.search(r"\d+", replies[0]).group()), 64)

  async def test_one_large_file(self):
    replies, _ = await self.attack("dd if=/dev/zero of=/big bs=1M count=500")
    self.assertTrue(
      any(w in replies[0] for w in ("File size limit", "No space left")),
      replies,
    )

  async def test_ten_gigabytes_of_output(self):
    replies = await self.survives("head -c 10G /dev/zero | tr '\\0' 'x'")
    # A busy machine may reach the time limit before the output limit.
    self.assertRegex(replies[0], "its output was endless|ran longer than")
    self.assertIn(CUT, replies[0])
    self.assertLess(len(replies[0]), 1000)

  async def test_kill_the_first_process(self):
    await self.survives("kill -9 1; kill -TERM 1; kill -INT 1; kill -CHLD 1")

  async def test_sleeping_for_ever(self):
    replies = await self.survives("sleep infinity")
    self.assertIn("ran longer than 3 seconds", replies[0])

  async def test_binary_garbage(self):
    replies = await self.survives("head -c 2000 /dev/urandom; printf '\\xff'")
    self.assertIn("cannot be decoded as UTF-8", replies[0])

  async def test_escape_codes(self):
    await self.survives(
      "printf '\\033[?2004h\\033[?2004l\\033]0;root@x: ~\\007root@x:~# '",
      "stty raw -echo; printf '\\033[2J'; stty sane",
    )

  async def test_reaching_the_docker_socket(self):
    replies = await self.survives(
      "find / -xdev -type s 2>/dev/null; ls /var/run/docker.sock"
    )
    self.assertIn("No such file", replies[0])

  async def test_changing_the_kernel(self):
    replies = await self.survives(
      "echo x > /proc/sys/kernel/hostname; echo b > /proc/sysrq-trigger; "
      "hostname other; dmesg | head -n 1; echo 1 > /proc/sys/vm/drop_caches"
    )
    self.assertGreaterEqual(replies[0].count("Read-only file system"), 2)

  async def test_sessions_do_not_see_each_other(self):
    async with (
      self.environment.open(TASK, seed=0) as session,
      self.environment.open(TASK, seed=0) as other,
    ):
      await session.reset()
      await other.reset()
      await session.step(bash("touch /seen; sleep 1000 &"))
      step = await other.step(bash("ls /seen; pgrep -x sleep -a | grep 1000"))
    self.assertIn("No such file", step.messages[0].content)
    self.assertNotIn("sleep 1000", step.messages[0].content)

  async def test_an_attack_before_the_answer_is_judged(self):
    for script in ("ulimit -u 1; ln -sf /bin/true /bin/grep", ":(){ :|:& };:"):
      async with self.environment.open(TASK, seed=0) as session:
        await session.reset()
        step = await session.step(bash(script))
        self.assertTrue(step.messages[0].content)
        step = await session.step(answer("none"))
      with self.subTest(script):
        self.assertEqual((step.status, step.reward), (Status.COMPLETED, 0.0))


@pytest.mark.docker
class IgnoredInterruptsInSandboxTest(Attacked, InSandbox):
  pass


@pytest.mark.docker
@pytest.mark.slow
class AttacksInSandboxTest(AllAttacks, InSandbox):
  pass


@pytest.mark.docker
@pytest.mark.slow
class AttacksOnDockerTest(Attacks, OnDocker):
  def sample(self, scripts):
    return super().sample(scripts)[::6]

  async def test_a_removed_container_is_a_fault(self):
    async with self.environment.open(TASK, seed=0) as session:
      await session.reset()
      for container in self.containers():
        container.remove(force=True)
      with self.assertRaises(EnvironmentFault):
        await session.step(bash("true"))


@pytest.mark.docker
@pytest.mark.full
class AllAttacksOnDockerTest(AllAttacks, OnDocker):
  pass
