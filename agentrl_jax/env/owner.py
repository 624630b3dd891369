"""Names for processes that outlive them.

A container is labelled with the process that must remove it. The name holds
the host and the time the process began, so that neither another machine's
process nor a later one with the same number is taken for it.
"""

import os
import pathlib
import socket
import subprocess


def current_owner() -> str:
  """This process, as host/number/beginning."""
  pid = os.getpid()
  return f"{socket.gethostname()}/{pid}/{_beginning(pid)}"


def is_gone(owner: str) -> bool:
  """Whether a process of this host has ended; False for other hosts'."""
  host, pid, beginning = owner.split("/", 2)
  return host == socket.gethostname() and _beginning(int(pid)) != beginning


def _beginning(pid: int) -> str | None:
  """When the process began, or None if there is none."""
  if pathlib.Path("/proc/self/stat").exists():
    try:
      stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
      boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()
    except (FileNotFoundError, ProcessLookupError):
      return None
    ticks = stat.rpartition(")")[2].split()[19]  # since the boot
    return f"{boot.strip()}+{ticks}"
  asked = subprocess.run(
    ["ps", "-o", "lstart=", "-p", str(pid)],
    capture_output=True,
    text=True,
    timeout=10,
  )
  return asked.stdout.strip() or None
