"""Program of the zygote: the small, single-threaded parent of all sandboxes.

  python -I zygote.py FD

It serves the socket FD and ends when the other side closes it. All sandboxes
end with it, and all processes of a sandbox end with the sandbox's init process.
It imports the standard library and its neighbours by their location, never the
packages of the training process.
"""

import json
import os
import select
import signal
import socket
import sys
import typing
from collections.abc import Callable

if typing.TYPE_CHECKING:
  from environments.os_interaction.machines.sandbox import (
    cgroups,
    isolation,
    system_calls,
  )
else:
  sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
  import cgroups
  import isolation
  import system_calls

Body = dict[str, typing.Any]

MESSAGE_BYTES = 1 << 16
MAX_FDS = 8
_FIRST_CREATOR = 0x70000000  # of user ids that nobody has, one per sandbox


def send(end: socket.socket, body: object, fds: tuple[int, ...] = ()) -> None:
  """Sends one message; does nothing if the other side has closed."""
  try:
    socket.send_fds(end, [json.dumps(body).encode()], fds)
  except OSError:
    return


def receive(end: socket.socket) -> tuple[Body, list[int]] | None:
  """Waits for one message; None once the other side has closed."""
  try:
    data, fds, _, _ = socket.recv_fds(end, MESSAGE_BYTES, MAX_FDS)
  except OSError:
    return None
  return (json.loads(data), fds) if data else None


def serve(
  end: socket.socket,
  wakeup: socket.socket,
  reap: Callable[[], None],
  handle: Callable[[Body, list[int]], None],
) -> None:
  """Reaps ended children and handles messages until the other side closes."""
  while True:
    ready, _, _ = select.select([end, wakeup], [], [])
    if wakeup in ready:
      wakeup.recv(4096)
      reap()
    if end in ready:
      message = receive(end)
      if message is None:
        return
      handle(*message)


def wakeup_socket() -> socket.socket:
  """Returns a socket that becomes readable whenever a child has ended."""
  wakeup, writer = socket.socketpair()
  for end in (wakeup, writer):
    end.setblocking(False)
  signal.signal(signal.SIGCHLD, lambda *_: None)
  signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
  return wakeup


class Zygote:
  """Forks sandboxes and removes their control groups when they have ended."""

  def __init__(self, end: socket.socket):
    self._socket = end
    self._parents = cgroups.make_parents(cgroups.find_trees())
    cgroups.remove_orphans(self._parents)
    self._sandboxes: dict[int, tuple[int, list[str]]] = {}  # by pid

  def run(self) -> None:
    wakeup = wakeup_socket()
    send(self._socket, {"ready": True})
    serve(self._socket, wakeup, self._reap, self._fork)

  def _fork(self, body: Body, fds: list[int]) -> None:
    number, (fd,) = body["id"], fds
    try:
      folders = cgroups.create(
        self._parents,
        f"{os.getpid()}-{number}",
        memory_mb=body["memory_mb"],
        pids=body["pids"],
        cpus=body["cpus"],
      )
    except OSError as error:
      with socket.socket(fileno=fd) as end:
        send(end, {"error": isolation.describe(error)})
      send(self._socket, {"closed": number})
      return
    child = os.fork()
    if child == 0:
      self._socket.close()
      _run_outer_process(body, socket.socket(fileno=fd), folders)
    os.close(fd)
    self._sandboxes[child] = (number, folders)
    forked = {"forked": number, "pid": child, "cgroup": folders[0]}
    send(self._socket, forked)

  def _reap(self) -> None:
    while self._sandboxes:
      child, _ = os.waitpid(-1, os.WNOHANG)
      if child == 0:
        return
      number, folders = self._sandboxes.pop(child)
      out_of_memory = cgroups.ran_out_of_memory(folders)
      cgroups.remove(folders)
      closed = {"closed": number, "out_of_memory": out_of_memory}
      send(self._socket, closed)


def _run_outer_process(
  body: Body, end: socket.socket, folders: list[str]
) -> typing.NoReturn:
  """Isolates a sandbox, forks its init process and waits for its end."""
  try:
    signal.set_wakeup_fd(-1)
    isolation.die_with_parent()
    os.setsid()
    cgroups.join(folders)
    isolation.set_process_limits(body["open_files"], disk_mb=body["disk_mb"])
    root = isolation.mount_files(
      body["rootfs"], body["scratch"], body["disk_mb"]
    )
    _enter_user_namespace()
    kinds = (
      isolation.CLONE_NEWPID
      | isolation.CLONE_NEWIPC
      | isolation.CLONE_NEWUTS
      | isolation.CLONE_NEWCGROUP
    )
    if not body["network"]:
      kinds |= isolation.CLONE_NEWNET
    isolation.unshare(kinds, "processes, network, names")
    init = os.fork()
    if init == 0:
      _run_init(body, end, root)
    end.close()
    os.waitpid(init, 0)
  except Exception as error:  # noqa: BLE001 - no caller; the message reports it
    send(end, {"error": isolation.describe(error)})
  finally:
    os._exit(0)


def _enter_user_namespace() -> None:
  """Enters a namespace whose root has no rights outside of it.

  The kernel counts what a namespace uses of its users' limits (inotify, message
  queues, signals, timers) as its creator's, who is thus not the host's root.
  The init process stays that user, which has no id in the sandbox: root cannot
  change its limits and priorities. A helper process, which stays in the host's
  namespace, maps the user ids.
  """
  pid = os.getpid()
  reader, writer = os.pipe()
  helper = os.fork()
  if helper == 0:
    try:
      os.close(writer)
      os.read(reader, 1)
      for kind in ("uid", "gid"):
        with open(f"/proc/{pid}/{kind}_map", "w") as file:
          file.write("0 0 65536")
      os._exit(0)
    finally:
      os._exit(1)
  os.close(reader)
  try:
    isolation.keep_capabilities()
    creator = _FIRST_CREATOR + pid
    os.setresuid(creator, creator, creator)
    isolation.unshare(isolation.CLONE_NEWUSER, "users")
  finally:
    os.close(writer)
    _, status = os.waitpid(helper, 0)
  if status != 0:
    raise OSError("the user namespace's numbers cannot be mapped")
  isolation.own_files_as_root()
  isolation.die_with_parent()  # the kernel resets it with the credentials


def _run_init(body: Body, end: socket.socket, root: str) -> typing.NoReturn:
  """Completes the isolation and serves the host as process 1."""
  try:
    isolation.die_with_parent()
    isolation.set_process_title("/sbin/docker-init -- /bin/sleep infinity")
    writable_proc = isolation.enter_root(
      root, body["hostname"], network=body["network"]
    )
    isolation.drop_capabilities(body["capabilities"])
    system_calls.filter_calls()
    init = Init(end, writable_proc)
    init.start_idle_child()
    send(end, {"ready": True})
    init.run()
  except Exception as error:  # noqa: BLE001 - no caller; the message reports it
    send(end, {"error": isolation.describe(error)})
  finally:
    os._exit(0)


class Init:
  """Init process of a sandbox: starts commands and reaps every process."""

  def __init__(self, end: socket.socket, writable_proc: int):
    self._socket = end
    self._writable_proc = writable_proc
    self._null = os.open("/dev/null", os.O_RDWR)
    self._requests: dict[int, int] = {}  # pid -> id of the request

  def run(self) -> None:
    wakeup = wakeup_socket()
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
      signal.signal(ignored, signal.SIG_IGN)
    serve(self._socket, wakeup, self._reap, self._handle)

  def start_idle_child(self) -> None:
    """Starts the child that Docker's init has in AgentRL's containers."""
    self._fork(["/bin/sleep", "infinity"], {}, "/", [self._null] * 3)

  def _handle(self, body: Body, fds: list[int]) -> None:
    number = body["id"]
    try:
      if body["do"] == "restart":
        self._kill_all()
        send(self._socket, {"id": number, "code": 0})
      else:
        self._start(number, fds)
    except OSError as error:
      send(self._socket, {"id": number, "failed": str(error)})
    finally:
      for fd in fds:
        os.close(fd)

  def _start(self, number: int, fds: list[int]) -> None:
    with open(fds[0], closefd=False) as file:
      command = json.load(file)
    stdio = fds[1:]
    outer = None
    if not stdio:
      outer, inner = os.openpty()
      stdio = [inner]
    elif len(stdio) == len(("stdout", "stderr")):
      stdio = [self._null, *stdio]
    try:
      pid = self._fork(command["argv"], command["env"], command["cwd"], stdio)
      self._requests[pid] = number
      if outer is not None:
        send(self._socket, {"id": number, "began": True}, (outer,))
    finally:
      if outer is not None:
        os.close(outer)
        os.close(inner)

  def _fork(
    self, argv: list[str], env: dict[str, str], cwd: str, stdio: list[int]
  ) -> int:
    return isolation.start(
      argv, env, cwd, stdio, writable_proc=self._writable_proc
    )

  def _kill_all(self) -> None:
    """Kills all other processes in one call, so that none forks meanwhile."""
    try:
      os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
      return
    self._reap(options=0)

  def _reap(self, options: int = os.WNOHANG) -> None:
    while True:
      try:
        pid, status = os.waitpid(-1, options)
      except ChildProcessError:
        return
      if pid == 0:
        return
      number = self._requests.pop(pid, None)
      if number is not None:
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        send(self._socket, {"id": number, "code": code})


def main() -> None:
  """Serves the socket whose descriptor is the only argument."""
  end = socket.socket(fileno=int(sys.argv[1]))
  try:
    zygote = Zygote(end)
  except (cgroups.NoGroups, OSError) as error:
    send(end, {"error": str(error)})
    return
  zygote.run()


if __name__ == "__main__":
  main()
