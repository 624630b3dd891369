"""System calls that isolate a sandbox: namespaces, mounts, capabilities.

Runs in processes that `zygote` forks, never in the training process. Imports
the standard library alone, and nothing after the host's files are unmounted.
"""

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import stat
import struct
import sys

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME = 1, 4, 15
PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_SET_NO_NEW_PRIVS = 24, 47, 38
PR_CAP_AMBIENT_CLEAR_ALL = 4
PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP = 28, 4
SIGKILL = 9
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = {
  "CHOWN": 0,
  "DAC_OVERRIDE": 1,
  "FOWNER": 3,
  "FSETID": 4,
  "KILL": 5,
  "SETGID": 6,
  "SETUID": 7,
}
# Numbers by name, as Linux's documentation lists them.
_DEVICES = {
  "null": (1, 3),
  "zero": (1, 5),
  "full": (1, 7),
  "random": (1, 8),
  "urandom": (1, 9),
  "tty": (5, 0),
}
_MAX_TERMINALS = 64  # the kernel shares a few thousand among all of its users
# Python and the init process ignore or handle these; commands must not.
_DEFAULT_SIGNALS = (
  signal.SIGPIPE,
  signal.SIGXFSZ,
  signal.SIGCHLD,
  signal.SIGTERM,
  signal.SIGINT,
  signal.SIGHUP,
)
# Paths below /proc.
_HIDDEN = ("kcore", "keys", "timer_list", "sched_debug", "acpi", "scsi")
# Folders of the init process, shown empty: an error there would make `find /`
# end with 1.
_INIT_HIDDEN = ("fd", "fdinfo", "map_files", "ns")


def check(result: int, call: str) -> None:
  """Raises OSError, with the name of the system call, if the call failed."""
  if result != 0:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int, name: str) -> None:
  """Moves this process into new namespaces of the kinds in `flags`."""
  check(_libc.unshare(flags), f"unshare({name})")


def mount(
  source: str, target: str, kind: str, flags: int = 0, data: str = ""
) -> None:
  """Calls mount(2)."""
  result = _libc.mount(
    source.encode(),
    target.encode(),
    kind.encode(),
    ctypes.c_ulong(flags),
    data.encode(),
  )
  check(result, f"mount({kind or 'bind'} on {target})")


def prctl(option: int, argument: int, name: str) -> None:
  """Calls prctl(2)."""
  check(_libc.prctl(option, argument, 0, 0, 0), f"prctl({name})")


def die_with_parent() -> None:
  """Has the kernel kill this process when its parent ends."""
  prctl(PR_SET_PDEATHSIG, SIGKILL, "PDEATHSIG")


def keep_capabilities() -> None:
  """Keeps root's capabilities when its user id changes."""
  prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, "SECUREBITS")


def own_files_as_root() -> None:
  """Makes the files that this process creates root's, as its user has none."""
  _libc.setfsuid(0)


def mount_files(rootfs: str, scratch: str, disk_mb: int) -> str:
  """Mounts the image's files under a writable layer of `disk_mb` in memory.

  Uses a new mount namespace, so that nothing is left to unmount. Returns the
  new root folder.
  """
  unshare(CLONE_NEWNS, "mounts")
  mount("none", "/", "", MS_REC | MS_PRIVATE)
  mount("tmpfs", scratch, "tmpfs", MS_NOSUID, f"size={disk_mb}m,mode=755")
  for name in ("upper", "work", "root"):
    os.mkdir(f"{scratch}/{name}")
  os.chmod(f"{scratch}/upper", 0o755)
  root = f"{scratch}/root"
  layers = f"lowerdir={rootfs},upperdir={scratch}/upper,workdir={scratch}/work"
  mount("overlay", root, "overlay", MS_NODEV, layers)
  _make_devices(f"{root}/dev")
  return root


def _make_devices(dev: str) -> None:
  """Makes devices of the sandbox's own, as its root may change their modes.

  A user namespace may not do this, and the host's nodes would be the host's.
  """
  os.makedirs(dev, exist_ok=True)
  flags = MS_NOSUID | MS_NOEXEC
  mount("tmpfs", dev, "tmpfs", flags, "size=64k,mode=755")
  for name, (major, minor) in _DEVICES.items():
    os.mknod(f"{dev}/{name}", stat.S_IFCHR, os.makedev(major, minor))
    os.chmod(f"{dev}/{name}", 0o666)


def enter_root(root: str, hostname: str, *, network: bool) -> int:
  """Makes `root` the root folder and unmounts all other files.

  The process must already be in its user namespace, which will own the mounts,
  and must have been forked into its process namespace. Returns a descriptor of
  a writable /proc, for `start`.
  """
  unshare(CLONE_NEWNS, "mounts")
  mount(root, root, "", MS_BIND | MS_REC)
  _mount_on_dev(f"{root}/dev")
  writable_proc = _mount_proc(f"{root}/proc", f"{root}/dev/null")
  flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
  mount("sysfs", f"{root}/sys", "sysfs", flags)
  if not network:
    _raise_loopback()
  socket.sethostname(hostname)
  _write_host_files(root, hostname)
  os.chdir(root)
  check(_libc.pivot_root(b".", b"."), "pivot_root")
  check(_libc.umount2(b".", MNT_DETACH), "umount of the host's files")
  os.chdir("/")
  return writable_proc


def _mount_proc(proc: str, null: str) -> int:
  """Mounts the sandbox's processes; returns the descriptor of a writable mount.

  What else is below /proc is the host's, down to the modes of the files, and
  belongs to the sandbox's root: the policy sees all of it read-only.
  """
  os.makedirs(proc, exist_ok=True)
  mount("proc", proc, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
  with open(f"{proc}/sys/user/max_user_namespaces", "w") as file:
    file.write("0")  # in a new namespace root would hold all capabilities
  writable = os.open(proc, os.O_PATH | os.O_DIRECTORY)
  mount(proc, proc, "", MS_BIND)
  flags = MS_BIND | MS_REMOUNT | MS_RDONLY
  mount("none", proc, "", flags | MS_NOSUID | MS_NODEV | MS_NOEXEC)
  for name in _HIDDEN:
    path = f"{proc}/{name}"
    if os.path.isdir(path):
      mount("tmpfs", path, "tmpfs", MS_RDONLY, "size=0")
    elif os.path.exists(path):
      mount(null, path, "", MS_BIND)
  _hide_init(proc)
  return writable


def _hide_init(proc: str) -> None:
  flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
  for process in (f"{proc}/1", f"{proc}/1/task/1"):
    for name in _INIT_HIDDEN:
      if os.path.isdir(f"{process}/{name}"):
        mount("tmpfs", f"{process}/{name}", "tmpfs", flags, "size=0,mode=555")


def _mount_on_dev(dev: str) -> None:
  for name in ("pts", "shm"):
    os.mkdir(f"{dev}/{name}")
  flags = MS_NOSUID | MS_NOEXEC
  pts = f"newinstance,ptmxmode=0666,mode=620,gid=5,max={_MAX_TERMINALS}"
  mount("devpts", f"{dev}/pts", "devpts", flags, pts)
  mount("tmpfs", f"{dev}/shm", "tmpfs", flags | MS_NODEV, "size=64m,mode=1777")
  for name, target in {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
  }.items():
    os.symlink(target, f"{dev}/{name}")


def _raise_loopback() -> None:
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    request = struct.pack("16sH14x", b"lo", IFF_UP)
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


def _write_host_files(root: str, hostname: str) -> None:
  files = {
    "hostname": f"{hostname}\n",
    "hosts": f"127.0.0.1\tlocalhost\n127.0.1.1\t{hostname}\n",
  }
  for name, text in files.items():
    with open(f"{root}/etc/{name}", "w") as file:
      file.write(text)


def set_process_limits(open_files: list[int], *, disk_mb: int) -> None:
  """Sets the limits of each process, which are the host's otherwise."""
  size = disk_mb << 20
  soft, hard = open_files
  # Below one block, for no file; above 0, for which the kernel would start the
  # host's program for crashes, if it has one.
  resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
  resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
  resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
  resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
  os.umask(0o022)


def drop_capabilities(keep: list[str]) -> None:
  """Drops all of root's capabilities except `keep`, irrevocably."""
  kept = {_CAPABILITIES[name] for name in keep}
  with open("/proc/sys/kernel/cap_last_cap") as file:
    last = int(file.read())
  for number in range(last + 1):
    if number not in kept:
      prctl(PR_CAPBSET_DROP, number, f"CAPBSET_DROP {number}")
  check(
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0),
    "prctl(AMBIENT)",
  )
  mask = sum(1 << number for number in kept)
  header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
  low, high = mask & 0xFFFFFFFF, mask >> 32
  sets = struct.pack("=6I", low, low, 0, high, high, 0)
  check(_libc.capset(header, sets), "capset")
  prctl(PR_SET_NO_NEW_PRIVS, 1, "NO_NEW_PRIVS")
  # Other processes of the sandbox must not read this one's memory.
  prctl(PR_SET_DUMPABLE, 0, "DUMPABLE")


def start(
  argv: list[str],
  environment: dict[str, str],
  cwd: str,
  stdio: list[int],
  *,
  writable_proc: int,
) -> int:
  """Forks a command with the descriptors `stdio`; returns its pid.

  A single descriptor is a terminal, which becomes the command's controlling
  terminal. Without the folder `cwd` the command starts in /.
  """
  pid = os.fork()
  if pid:
    return pid
  try:
    signal.set_wakeup_fd(-1)
    os.setsid()
    os.setresuid(0, 0, 0)
    # Without memory, the kernel shall kill this process and not init.
    own = "self/oom_score_adj"
    adjustment = os.open(own, os.O_WRONLY, dir_fd=writable_proc)
    os.write(adjustment, b"500")
    files = stdio * 3 if len(stdio) == 1 else stdio
    if len(stdio) == 1:
      fcntl.ioctl(stdio[0], 0x540E, 0)  # TIOCSCTTY
    for target, file in enumerate(files):
      os.dup2(file, target)
    os.closerange(3, 1 << 20)
    for number in _DEFAULT_SIGNALS:
      signal.signal(number, signal.SIG_DFL)
    os.chdir(cwd if os.path.isdir(cwd) else "/")
    os.execvpe(argv[0], argv, environment)
  except OSError as error:
    os.write(2, f"{argv[0]}: {error}\n".encode())
    os._exit(126 if error.errno == errno.EACCES else 127)
  finally:
    os._exit(127)


def set_process_title(title: str) -> None:
  """Overwrites this process's command line, which shows the host's paths."""
  with open("/proc/self/stat") as file:
    fields = file.read().rpartition(")")[2].split()
  begin, end = int(fields[45]), int(fields[46])  # of the arguments
  arguments = title.replace(" ", "\0").encode()[: end - begin - 1]
  ctypes.memset(begin, 0, end - begin)
  ctypes.memmove(begin, arguments, len(arguments))
  name = os.path.basename(title.split()[0])
  _libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def describe(error: BaseException) -> str:
  """Formats an error for the message that reports it to the host's side."""
  return f"{type(error).__name__}: {error} (Python {sys.version_info[:2]})"
