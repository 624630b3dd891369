"""Check scripts run on a fresh machine, whatever the policy did to its own.

The task is like AgentBench's: a command, and a check that calls it and Python.
"""

import pytest

from environments.os_interaction.judging.judge import Judge
from environments.os_interaction.tasks.outcomes import CommandMade
from environments.os_interaction.tasks.problem import OSProblem, Script
from tests.environments.os_interaction.engines import InSandbox, OnDocker

CALC = r"""printf '#!/bin/bash\npython3 -c "print($*)"\n' > /usr/bin/calc
chmod 755 /usr/bin/calc"""
CHECK = """expected=$(python3 -c 'print(6 * 7)')
[ "$(calc '6 * 7')" = "$expected" ] && [ "$(calc 2+2)" = "$(expr 2 + 2)" ] &&
  grep -q bob /etc/passwd && [ "$(stat -c %a /usr/bin/find)" = 755 ] &&
  [ ! -e /root/old ] && [ "$(cat /root/new)" = yes ]"""
PROBLEM = OSProblem(
  "Make calc.",
  init=(Script("bash", "chmod u+s /usr/bin/find; touch /root/old"),),
  check=(Script("bash", CHECK),),
)
WORK = f"""{CALC}
useradd bob; chmod 755 /usr/bin/find; rm /root/old; echo yes > /root/new"""
TRUE = r"printf '#!/bin/dash\nexit 0\n' > /t; chmod 755 /t; "
# Scripts after which the check must fail.
WRONG = {
  "nothing": "true",
  "no calc": f"{WORK}; rm /usr/bin/calc",
  "not executable": f"{WORK}; chmod 644 /usr/bin/calc",
  "wrong calc": f"{WORK}; echo 'echo 42' > /usr/bin/calc",
  "bit left": f"{WORK}; chmod u+s /usr/bin/find",
  "old file left": f"{WORK}; touch /root/old",
  "bash": f"{TRUE} cp /t /bin/b; mv /bin/b /bin/bash",
  "grep": f"{WORK}; {TRUE} userdel bob; cp /t /bin/g; mv /bin/g /bin/grep",
  "stat first": f"{WORK}; {TRUE} cp /t /usr/local/sbin/stat",
  "python first": f"{WORK}; {TRUE} cp /t /usr/local/bin/python3",
  "bin moved": f"{WORK}; cp -r /usr/bin /b; rm /bin; mv /b /bin",
  "libc": f"{WORK}; for f in /lib/*/libc.so.6; do cp $f /l; echo x >> /l; "
  "mv /l $f; done",
}
# Scripts after the work that would fool a check on the policy's own machine.
HARMLESS = {
  "the work": "true",
  "preload": "echo /no/such.so > /etc/ld.so.preload",
  "sitecustomize": "mkdir -p /usr/local/lib/python3.11/dist-packages; echo "
  "'import os; os._exit(0)' > /usr/lib/python3/dist-packages/sitecustomize.py",
  "startup files": "echo exit 1 > /root/.bashrc; echo exit 1 > /etc/profile",
  "module in home": "echo 'raise SystemExit' > /root/site.py",
  "processes": "(setsid bash -c 'while :; do echo x > /root/log; done' "
  "</dev/null >/dev/null 2>&1 &)",
  "alternatives": "ln -sf /t /etc/alternatives/awk",
}


HELLO = r"printf '#!/bin/bash\necho hello\n' > {0}; chmod 755 {0}"
# Scripts that make the command c, and whether it counts.
COMMANDS = {
  "usr/bin": (HELLO.format("/usr/bin/c"), True),
  "local": (HELLO.format("/usr/local/bin/c"), True),
  "linked": (
    f"mkdir /opt/x; {HELLO.format('/opt/x/c.sh')}; "
    "ln -s ../../opt/x/c.sh /usr/bin/c",
    True,
  ),
  "for root alone": (
    f"{HELLO.format('/usr/bin/c')}; chmod 700 /usr/bin/c",
    False,
  ),
  "in a home": (f"{HELLO.format('/root/c')}; ln -s /root/c /usr/bin/c", False),
  "a ring": ("ln -s /usr/bin/c /usr/bin/c", False),
  "a pipe": ("mkfifo -m 777 /usr/bin/c", False),
  "endless": ("ln -s /bin/yes /usr/bin/c", False),
  "an alias": ("echo 'alias c=\"echo hello\"' >> /etc/bash.bashrc", False),
}


class Checks:
  async def is_solved(self, engine, script, problem=PROBLEM):
    """Returns the judgement after one script of root's."""
    machine = await engine.start("default")
    try:
      for init in problem.init:
        await machine.run(["bash", "-c", init.code], limit_s=60.0)
      judge = await Judge.prepare(problem, machine, self.machine, limit_s=20.0)
      await machine.run(["bash", "-c", script], limit_s=60.0)
      return await judge.is_solved("done")
    finally:
      await machine.remove()

  async def test_done_and_not_done(self):
    engine = self.open_engine()
    for name, script in self.sample(HARMLESS):
      with self.subTest(harmless=name):
        self.assertTrue(await self.is_solved(engine, f"{WORK}\n{script}"))
    for name, script in self.sample(WRONG):
      with self.subTest(wrong=name):
        self.assertFalse(await self.is_solved(engine, script))

  async def test_commands_in_any_folder(self):
    engine = self.open_engine()
    problem = OSProblem("Make c.", outcome=CommandMade("c", (((), "hello"),)))
    for name, (script, expected) in self.sample(COMMANDS):
      with self.subTest(name):
        solved = await self.is_solved(engine, script, problem)
        self.assertIs(solved, expected)

  def sample(self, scripts):
    return list(scripts.items())


class FirstChecks(Checks):
  def sample(self, scripts):
    return super().sample(scripts)[:1]


@pytest.mark.docker
class FirstChecksInSandboxTest(FirstChecks, InSandbox):
  pass


@pytest.mark.docker
@pytest.mark.slow
class ChecksInSandboxTest(Checks, InSandbox):
  pass


@pytest.mark.docker
@pytest.mark.slow
class ChecksOnDockerTest(FirstChecks, OnDocker):
  pass


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(1800)
class AllChecksOnDockerTest(Checks, OnDocker):
  pass
