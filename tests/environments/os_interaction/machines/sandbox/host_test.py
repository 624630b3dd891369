"""Nothing that root of a sandbox does changes its host.

Where it would, the modes, owners and times of the host's devices are restored.

Attacks run on one machine, one after the other. What is noted of the host
before each is equal to what is noted after it. Other processes of the host may
go on meanwhile, so the note has what an attack would change and they do not.
"""

import ctypes
import os
import pathlib
import resource
import socket
import subprocess
import time

import pytest

from environments.os_interaction.machines.sandbox import system_calls
from tests.environments.os_interaction.engines import InSandbox, start_or_skip

DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
UNUSED_DEVICES = ("full", "random")  # whose times nobody else changes
PROC_FILES = tuple(
  name
  for name in (
    "meminfo",
    "cpuinfo",
    "swaps",
    "modules",
    "sysrq-trigger",
    "keys",
  )
  if os.path.exists(f"/proc/{name}")
)
SETTINGS = (
  "kernel/hostname",
  "kernel/domainname",
  "kernel/core_pattern",
  "kernel/sysrq",
  "kernel/shmmax",
  "kernel/pid_max",
  "kernel/printk",
  "vm/overcommit_memory",
  "net/ipv4/ip_forward",
  "fs/protected_hardlinks",
  "user/max_user_namespaces",
)
NAME, NUMBER, PORT = "agentrl-host-test", 0x61676E74, 61999
LIBC = ctypes.CDLL(None)
# For the attacks: the numbers of system calls, and Python with `call`.
COLUMN = system_calls._ARCHITECTURES[os.uname().machine][1]
PREFIX = "; ".join(
  [f"{n}={numbers[COLUMN]}" for n, numbers in system_calls._REFUSED.items()]
  + [
    'py() { python3 -c "import ctypes, os; libc = ctypes.CDLL(None); '
    'call = libc.syscall; $1"; }; exec >/dev/null 2>&1; '
  ]
)
# VICTIM is the id of a process of the host.
ATTACKS = {
  "modes of devices": "chmod 667 /dev/full; chmod 600 /dev/random /dev/tty",
  "owners of devices": "chown 1234:1234 /dev/full /dev/null; chgrp 7 /dev/zero",
  "times of devices": "touch -d @0 /dev/full /dev/random; echo x > /dev/full",
  "removal of devices": "rm -rf /dev/full; mv /dev/zero /dev/full; ls /dev",
  "modes of open files": "chmod 667 /dev/stdin; chown 7 /proc/self/fd/0",
  "modes in proc": "chmod 0 /proc/meminfo /proc/swaps /proc/keys",
  "owners in proc": "chown -R 7 /proc/cpuinfo /proc/modules /proc/sys",
  "modes of all": "chmod -R 700 / & sleep 2; kill %1; chmod -R 700 /dev /proc",
  "settings": "for f in kernel/hostname kernel/core_pattern kernel/sysrq "
  "kernel/shmmax kernel/pid_max kernel/printk vm/overcommit_memory "
  "net/ipv4/ip_forward fs/protected_hardlinks user/max_user_namespaces; do "
  "echo 1 > /proc/sys/$f; done; sysctl -w kernel.domainname=changed",
  "settings by a new mount": "mkdir /p; mount -t proc x /p; "
  "echo 1 > /p/sys/kernel/sysrq; mount -o remount,rw /proc; "
  "umount /proc; echo 1 > /proc/sys/kernel/sysrq",
  "sysrq": "echo m > /proc/sysrq-trigger",
  "files of sys": "find /sys -maxdepth 4 -type f | head -n 200 | while read f; "
  "do chmod 777 $f; echo 0 > $f; done",
  "names": 'hostname changed; domainname changed; py "call($sethostname, '
  "b'changed', 7)\"",
  "clock": 'date -s 2001-01-01; hwclock -w; py "tv = (ctypes.c_long * 26)(1);'
  "call($clock_settime, 0, tv); call($settimeofday, tv, None); "
  'call($adjtimex, tv)"',
  "limits of others": "prlimit --pid VICTIM --nofile=5:5",
  "priorities of others": "renice -n 19 -p VICTIM; renice -n 19 -u root; "
  "ionice -c 3 -u 0; taskset -p 1 VICTIM; chrt -b -p 0 VICTIM",
  "signals": "kill -9 VICTIM; py 'os.kill(-1, 19)'",
  "choice of the memory killer": "echo 1000 > /proc/VICTIM/oom_score_adj",
  "memory of others": "py 'libc.ptrace(16, VICTIM, 0, 0)'; "
  "echo x > /proc/VICTIM/mem",
  "keys": "for ring in -3 -4 -5; do "
  f"py \"call($add_key, b'user', b'{NAME}', b'x', 1, $ring)\"; done; "
  f"py \"call($keyctl, 1, b'{NAME}')\"",
  "shared memory": f"echo x > /dev/shm/{NAME}; "
  f"py 'libc.shmget({NUMBER}, 4096, 0o1666); libc.msgget({NUMBER}, 0o1666); "
  f"libc.semget({NUMBER}, 1, 0o1666)'",
  "watches of files": "py '\nwhile libc.inotify_init() >= 0: pass\n"
  "import time; os.fork() or time.sleep(99)' & sleep 2",
  "terminals": "ulimit -n 4096; for i in 1 2; do py '\ntry:\n  while True: "
  "os.openpty()\nexcept OSError: import time; time.sleep(99)' & done; sleep 3",
  "mounts": "mount -t tmpfs x /mnt; mount --bind /tmp /mnt; "
  "mount --make-rshared /; umount -l /",
  "disks": "mknod /disk b 254 0; dd if=/dev/zero of=/disk bs=1 count=1; "
  "mknod /mem c 1 1; mknod /dev/kmsg c 1 11; losetup -f /etc/passwd; "
  "swapon /disk; swapoff -a",
  "modules": "modprobe dummy; py \"call($init_module, b'', 0, b''); "
  "call($finit_module, 0, b'', 0); [libc.socket(n, 2, 0) for n in range(46)]\"",
  "restarts": "reboot -f; py 'call($reboot, 0xfee1dead, 672274793, 0x1234567)'",
  "the kernel's log": "dmesg -c; py 'call($syslog, 5, None, 0)'",
  "control groups": "mkdir /c; mount -t cgroup -o pids x /c; "
  "mount -t cgroup2 x /c; mkdir /c/changed",
  "network": "ip link add changed type dummy; ip link set lo down; "
  f"timeout 3 python3 -m http.server {PORT} & sleep 1; nsenter -t 1 -n true",
  "input of terminals": "py 'import fcntl\nfor fd in range(9):\n  try: "
  'fcntl.ioctl(fd, 0x5412, b"x")\n  except OSError: pass\'',
}


def note(victim: subprocess.Popen) -> dict[str, object]:
  """Notes what the attacks would change on this host."""
  devices = {name: os.stat(f"/dev/{name}") for name in DEVICES}
  pid = victim.pid
  return {
    "devices": {n: (s.st_mode, s.st_uid, s.st_gid) for n, s in devices.items()},
    "times": {n: devices[n].st_mtime for n in UNUSED_DEVICES},
    "proc": _new_proc(),
    "settings": {f: _read(f"/proc/sys/{f}") for f in SETTINGS},
    "clock": round((time.time() - time.monotonic()) / 10),
    "victim": (
      victim.poll(),
      resource.prlimit(pid, resource.RLIMIT_NOFILE),
      os.getpriority(os.PRIO_PROCESS, pid),
      os.sched_getaffinity(pid),
      _read(f"/proc/{pid}/oom_score_adj"),
      _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0],
    ),
    "keys": NAME in _read("/proc/keys"),
    "shared": [
      str(NUMBER) in _read(f"/proc/sysvipc/{kind}")
      for kind in ("shm", "msg", "sem")
    ],
    "files": os.path.exists(f"/dev/shm/{NAME}"),
    "swaps": _read("/proc/swaps"),
    "modules": os.path.exists("/sys/module/dummy"),
    "network": ("changed" in os.listdir("/sys/class/net"), _listens()),
    "limits": (_can_watch(), _can_open_terminal()),
  }


def _new_proc() -> bytes:
  """Lists modes and owners as a new mount has them; an old one may not."""
  files = " ".join(PROC_FILES)
  listing = f"mount -t proc p /proc; cd /proc; stat -c '%n %a %u %g' {files}"
  return subprocess.run(
    ["unshare", "--mount", "--pid", "--fork", "sh", "-c", listing],
    check=True,
    stdout=subprocess.PIPE,
  ).stdout


def _read(path: str) -> str:
  file = pathlib.Path(path)
  return file.read_text() if file.exists() else ""


def _listens() -> bool:
  with socket.socket() as client:
    return client.connect_ex(("127.0.0.1", PORT)) == 0


def _can_watch() -> bool:
  fd = LIBC.inotify_init()
  if fd >= 0:
    os.close(fd)
  return fd >= 0


def _can_open_terminal() -> bool:
  try:
    for fd in os.openpty():
      os.close(fd)
  except OSError:
    return False
  return True


def _restore(paths: dict[str, os.stat_result]) -> None:
  for path, status in paths.items():
    os.chown(path, status.st_uid, status.st_gid)
    os.chmod(path, status.st_mode & 0o7777)
    if path.startswith("/dev"):
      os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.docker
class HostTest(InSandbox):
  attacks = ("modes of devices", "settings", "limits of others")

  def setUp(self):
    paths = [f"/dev/{n}" for n in DEVICES] + [f"/proc/{n}" for n in PROC_FILES]
    self.addCleanup(_restore, {path: os.stat(path) for path in paths})
    self.victim = self.enterContext(subprocess.Popen(["sleep", "600"]))
    self.addCleanup(self.victim.kill)

  async def test_attacks_do_not_reach_the_host(self):
    machine = await start_or_skip(self.open_engine(pids=64))
    try:
      for name in self.attacks:
        before = note(self.victim)
        attack = PREFIX + ATTACKS[name].replace("VICTIM", str(self.victim.pid))
        await machine.run(["bash", "-c", attack], limit_s=9.0)
        after = note(self.victim)
        await machine.restart()
        with self.subTest(name):
          self.assertEqual(after, before)
    finally:
      await machine.remove()


@pytest.mark.slow
class AllAttacksOnHostTest(HostTest):
  attacks = tuple(ATTACKS)
