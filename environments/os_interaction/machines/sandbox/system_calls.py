"""Filter of system calls, for what no namespace keeps apart.

Keys, tracing, programs in the kernel, its log and its clock belong to the host
as a whole, and an unusual family of sockets loads a module into the host's
kernel or leaves the network namespace. Most of it needs capabilities that a
sandbox's root does not hold; like Docker's filter, this one also holds where a
kernel does not check. Imports the standard library alone.
"""

import ctypes
import errno
import os
import socket
import struct

_libc = ctypes.CDLL(None, use_errno=True)

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
# Refused calls, with their numbers on x86_64 and aarch64; None is absent.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
  "acct": (163, 89),
  "add_key": (248, 217),
  "adjtimex": (159, 171),
  "bpf": (321, 280),
  "clock_adjtime": (305, 266),
  "clock_settime": (227, 112),
  "delete_module": (176, 106),
  "fanotify_init": (300, 262),
  "finit_module": (313, 273),
  "fsconfig": (431, 431),
  "fsmount": (432, 432),
  "fsopen": (430, 430),
  "fspick": (433, 433),
  "init_module": (175, 105),
  "io_uring_enter": (426, 426),
  "io_uring_register": (427, 427),
  "io_uring_setup": (425, 425),
  "ioperm": (173, None),
  "iopl": (172, None),
  "kexec_file_load": (320, 294),
  "kexec_load": (246, 104),
  "keyctl": (250, 219),
  "lookup_dcookie": (212, 18),
  "mount": (165, 40),
  "mount_setattr": (442, 442),
  "move_mount": (429, 429),
  "open_by_handle_at": (304, 265),
  "open_tree": (428, 428),
  "perf_event_open": (298, 241),
  "pivot_root": (155, 41),
  "quotactl": (179, 60),
  "quotactl_fd": (443, 443),
  "reboot": (169, 142),
  "request_key": (249, 218),
  "setdomainname": (171, 162),
  "sethostname": (170, 161),
  "setns": (308, 268),
  "settimeofday": (164, 170),
  "swapoff": (168, 225),
  "swapon": (167, 224),
  "syslog": (103, 116),
  "umount2": (166, 39),
  "unshare": (272, 97),
  "userfaultfd": (323, 282),
  "vhangup": (153, 58),
}
_SOCKET_CALLS = {"socket": (41, 198), "socketpair": (53, 199)}
# Allowed protocols by family. The kernel loads a module for another.
_INTERNET = (
  0,
  socket.IPPROTO_ICMP,
  socket.IPPROTO_TCP,
  socket.IPPROTO_UDP,
  socket.IPPROTO_ICMPV6,
)
_PROTOCOLS = {
  socket.AF_UNIX: (0,),
  socket.AF_INET: _INTERNET,
  socket.AF_INET6: _INTERNET,
  socket.AF_NETLINK: (socket.NETLINK_ROUTE,),
}
_IOCTL = (16, 29)
_TIOCSETD = 0x5423  # loads a module, too: of a terminal's line discipline
# AUDIT_ARCH_* of linux/audit.h, and the column above.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_X32 = 0x40000000  # numbers from here are x86_64's calls again
# Of `struct seccomp_data`, and of BPF.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, (16, 24, 32)
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def filter_calls() -> None:
  """Filters the calls of this process and of those it will fork, for good.

  The process must have set no_new_privs.
  """
  machine = os.uname().machine
  if machine not in _ARCHITECTURES:
    raise OSError(errno.ENOSYS, f"there is no filter of calls for {machine}")
  code = _program(*_ARCHITECTURES[machine])
  buffer = ctypes.create_string_buffer(code, len(code))
  program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
  if _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) != 0:
    number = ctypes.get_errno()
    raise OSError(number, f"prctl(SECCOMP): {os.strerror(number)}")


def _program(architecture: int, column: int) -> bytes:
  """Assembles the filter; jumps count the instructions that they skip."""
  columns = [numbers[column] for numbers in _REFUSED.values()]
  refused = [number for number in columns if number is not None]
  ioctl = _load(_ARGUMENTS[1]) + _if(_TIOCSETD, _fail(errno.EPERM)) + _allow()
  return b"".join(
    [
      _load(_ARCHITECTURE),
      _instruction(_EQUAL, architecture, yes=1),
      _fail(errno.EPERM),  # another architecture's numbers
      _load(_NUMBER),
      _instruction(_AT_LEAST, _X32, no=1),
      _fail(errno.EPERM),
      *(_if(number, _fail(errno.EPERM)) for number in refused),
      *(
        _if(calls[column], _check_socket()) for calls in _SOCKET_CALLS.values()
      ),
      _if(_IOCTL[column], ioctl),
      _allow(),
    ]
  )


def _check_socket() -> bytes:
  check = _load(_ARGUMENTS[0])
  for family, protocols in _PROTOCOLS.items():
    allowed = b"".join(_if(protocol, _allow()) for protocol in protocols)
    refusal = _fail(errno.EPROTONOSUPPORT)
    check += _if(family, _load(_ARGUMENTS[2]) + allowed + refusal)
  return check + _fail(errno.EAFNOSUPPORT)


def _load(offset: int) -> bytes:
  return _instruction(_LOAD, offset)


def _if(value: int, then: bytes) -> bytes:
  """Runs `then`, which ends with a return, if `value` is loaded."""
  return _instruction(_EQUAL, value, no=len(then) // 8) + then


def _fail(number: int) -> bytes:
  return _instruction(_RETURN, _FAIL | number)


def _allow() -> bytes:
  return _instruction(_RETURN, _ALLOW)


def _instruction(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
  return struct.pack("=HBBI", code, yes, no, value)
