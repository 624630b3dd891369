"""The process that sandboxes are forked from: small, and with one thread.

  python -I zygote.py FD

It is spoken to over the socket FD and ends when that is closed. With it end all
sandboxes, and with a sandbox's first process everything that is inside. It
imports the standard library, and its two neighbours by their place: the
packages of the process that trains are none of its business.
"""

import json
import os
import select
import signal
import socket
import sys
import typing

if typing.TYPE_CHECKING:
  from environments.os_interaction.machines.sandbox import cgroups
  from environments.os_interaction.machines.sandbox import isolation as box
else:
  sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
  import cgroups
  import isolation as box

Body = dict[str, typing.Any]

MESSAGE_BYTES = 1 << 16
MAX_FILES = 8


def send(
  line: socket.socket, body: object, files: tuple[int, ...] = ()
) -> None:
  """One message; whoever hung up does not want it."""
  try:
    socket.send_fds(line, [json.dumps(body).encode()], files)
  except OSError:
    return


def receive(line: socket.socket) -> tuple[Body, list[int]] | None:
  """One message, or None once the other side has hung up."""
  try:
    data, files, _, _ = socket.recv_fds(line, MESSAGE_BYTES, MAX_FILES)
  except OSError:
    return None
  return (json.loads(data), files) if data else None


def wake_at_ends() -> socket.socket:
  """A socket that can be read whenever a child has ended."""
  ends, wakes = socket.socketpair()
  for end in (ends, wakes):
    end.setblocking(False)
  signal.signal(signal.SIGCHLD, lambda *_: None)
  signal.set_wakeup_fd(wakes.detach(), warn_on_full_buffer=False)
  return ends


class Zygote:
  """Forks sandboxes and clears up after them."""

  def __init__(self, line: socket.socket):
    self._line = line
    self._parents = cgroups.make_parents(cgroups.find_trees())
    cgroups.sweep(self._parents)
    self._boxes: dict[int, tuple[int, list[str]]] = {}  # by process number

  def run(self) -> None:
    """Until the other side hangs up."""
    ends = wake_at_ends()
    send(self._line, {"ready": True})
    while True:
      ready, _, _ = select.select([self._line, ends], [], [])
      if ends in ready:
        ends.recv(4096)
        self._bury()
      if self._line in ready:
        message = receive(self._line)
        if message is None:
          return
        body, (line,) = message
        self._open(body, line)

  def _open(self, body: Body, line: int) -> None:
    number = body["id"]
    try:
      folders = cgroups.make(
        self._parents,
        f"{os.getpid()}-{number}",
        memory_mb=body["memory_mb"],
        pids=body["pids"],
        cpus=body["cpus"],
      )
    except OSError as error:
      with socket.socket(fileno=line) as its_line:
        send(its_line, {"error": box.last_words(error)})
      send(self._line, {"closed": number})
      return
    child = os.fork()
    if child == 0:
      self._line.close()
      _live(body, socket.socket(fileno=line), folders)
    os.close(line)
    self._boxes[child] = (number, folders)
    opened = {"opened": number, "process": child, "group": folders[0]}
    send(self._line, opened)

  def _bury(self) -> None:
    while self._boxes:
      child, _ = os.waitpid(-1, os.WNOHANG)
      if child == 0:
        return
      number, folders = self._boxes.pop(child)
      cgroups.remove(folders)
      send(self._line, {"closed": number})


def _live(body: Body, line: socket.socket, folders: list[str]) -> None:
  """The life of a sandbox's outer process; does not return."""
  try:
    signal.set_wakeup_fd(-1)
    box.die_with_parent()
    os.setsid()
    cgroups.join(folders)
    box.bound_processes(body["open_files"], disk_mb=body["disk_mb"])
    root = box.mount_files(body["rootfs"], body["scratch"], body["disk_mb"])
    _enter_user_namespace()
    kinds = box.CLONE_NEWPID | box.CLONE_NEWIPC | box.CLONE_NEWUTS
    kinds |= box.CLONE_NEWCGROUP
    if not body["network"]:
      kinds |= box.CLONE_NEWNET
    box.unshare(kinds, "processes, network, names")
    first = os.fork()
    if first == 0:
      _be_first(body, line, root)
    line.close()
    os.waitpid(first, 0)
  except Exception as error:  # noqa: BLE001 - there is nobody to raise it to
    send(line, {"error": box.last_words(error)})
  finally:
    os._exit(0)


def _enter_user_namespace() -> None:
  """Into one where root is root of what is inside alone."""
  process = os.getpid()
  waits, goes = os.pipe()
  helper = os.fork()
  if helper == 0:
    try:
      os.close(goes)
      os.read(waits, 1)
      for kind in ("uid", "gid"):
        with open(f"/proc/{process}/{kind}_map", "w") as file:
          file.write("0 0 65536")
      os._exit(0)
    finally:
      os._exit(1)
  os.close(waits)
  try:
    box.unshare(box.CLONE_NEWUSER, "users")
  finally:
    os.close(goes)
    _, status = os.waitpid(helper, 0)
  if status != 0:
    raise OSError("the user namespace's numbers cannot be mapped")
  box.die_with_parent()  # forgotten with the old rights


def _be_first(body: Body, line: socket.socket, root: str) -> None:
  """The first process of a sandbox; does not return."""
  try:
    box.die_with_parent()
    box.take_name("/sbin/docker-init -- /bin/sleep infinity")
    box.enter(root, body["hostname"], network=body["network"])
    box.give_up_rights(body["capabilities"])
    first = First(line)
    first.start_idler()
    send(line, {"ready": True})
    first.run()
  except Exception as error:  # noqa: BLE001 - there is nobody to raise it to
    send(line, {"error": box.last_words(error)})
  finally:
    os._exit(0)


class First:
  """Starts what it is asked to, and buries what has ended."""

  def __init__(self, line: socket.socket):
    self._line = line
    self._asked: dict[int, int] = {}  # process number -> number of the request

  def run(self) -> None:
    """Until the other side hangs up."""
    ends = wake_at_ends()
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
      signal.signal(ignored, signal.SIG_IGN)
    while True:
      ready, _, _ = select.select([self._line, ends], [], [])
      if ends in ready:
        ends.recv(4096)
        self._bury()
      if self._line in ready:
        message = receive(self._line)
        if message is None:
          return
        self._do(*message)

  def start_idler(self) -> None:
    """The child that Docker's init has in AgentRL's containers."""
    nothing = os.open("/dev/null", os.O_RDWR)
    box.start(["/bin/sleep", "infinity"], {}, "/", [nothing] * 3)
    os.close(nothing)

  def _do(self, body: Body, files: list[int]) -> None:
    number = body["id"]
    try:
      if body["do"] == "restart":
        self._end_all()
        send(self._line, {"id": number, "code": 0})
      else:
        self._start(number, files)
    except OSError as error:
      send(self._line, {"id": number, "failed": str(error)})
    finally:
      for file in files:
        os.close(file)

  def _start(self, number: int, files: list[int]) -> None:
    with open(files[0], closefd=False) as asked:
      what = json.load(asked)
    stdio = files[1:]
    outer = None
    if not stdio:
      outer, inner = os.openpty()
      stdio = [inner]
    try:
      process = box.start(what["argv"], what["env"], what["cwd"], stdio)
      self._asked[process] = number
      if outer is not None:
        send(self._line, {"id": number, "began": True}, (outer,))
    finally:
      if outer is not None:
        os.close(outer)
        os.close(inner)

  def _end_all(self) -> None:
    """Kills everything but itself; the kernel leaves no time to fork."""
    try:
      os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
      return
    while True:
      try:
        process, status = os.waitpid(-1, 0)
      except ChildProcessError:
        return
      self._tell(process, status)

  def _bury(self) -> None:
    while True:
      try:
        process, status = os.waitpid(-1, os.WNOHANG)
      except ChildProcessError:
        return
      if process == 0:
        return
      self._tell(process, status)

  def _tell(self, process: int, status: int) -> None:
    number = self._asked.pop(process, None)
    if number is not None:
      code = os.waitstatus_to_exitcode(status)
      code = code if code >= 0 else 128 - code
      send(self._line, {"id": number, "code": code})


def main() -> None:
  """Serves the socket whose number is the only argument."""
  line = socket.socket(fileno=int(sys.argv[1]))
  try:
    zygote = Zygote(line)
  except (cgroups.NoGroups, OSError) as error:
    send(line, {"error": str(error)})
    return
  zygote.run()


if __name__ == "__main__":
  main()
