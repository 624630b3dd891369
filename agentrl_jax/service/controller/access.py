"""Access to a controller: a token for each role, and the hosts of workers.

Without tokens everybody who reaches the port is every role, so the controller
then listens on this machine alone, unless its caller says otherwise. A
session's id is another secret: who does not know it cannot play or end the
session.

A heartbeat has an address that the controller will call. Over HTTP it must be
on the machine that sent it, or on a host that is allowed by name; a worker that
opens a stream is called on that stream.
"""

import asyncio
import dataclasses
import enum
import fnmatch
import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from agentrl_jax import bearer_token
from agentrl_jax.errors import ConfigError
from agentrl_jax.service.controller.registry import Refused

_RESOLVE_S = 5.0  # for the addresses of a host's name


class Role(enum.Enum):
  """The roles of those that call a controller."""

  CLIENT = "client"  # plays sessions
  WORKER = "worker"  # has an environment
  OPERATOR = "operator"  # sees and ends everybody's sessions, and may play


_PLAY = frozenset({Role.CLIENT, Role.OPERATOR})
_OPERATE = frozenset({Role.OPERATOR})
_SERVE = frozenset({Role.WORKER})
ROLES: Mapping[str, frozenset[Role]] = {
  "get_indices": _PLAY,
  "describe": _PLAY,
  "version": _PLAY,
  "start_sample": _PLAY,
  "interact": _PLAY,
  "cancel": _PLAY,
  "list_workers": _OPERATE,
  "list_sessions": _OPERATE,
  "overview": _OPERATE,
  "cancel_all": _OPERATE,
  "mark_stale": _OPERATE,
  "clean_worker": _OPERATE,
  "clean_session": _OPERATE,
  "sync_all": _OPERATE,
  "receive_heartbeat": _SERVE,
  "cancel_notice": _SERVE,
}


class NotAllowed(Refused):
  """The caller has no token of a role that may do this."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
  """The tokens of a controller; all are set, or none."""

  client: str = ""
  worker: str = ""
  operator: str = ""

  def __post_init__(self) -> None:
    tokens = {role.value: getattr(self, role.value) for role in Role}
    missing = [name for name, token in tokens.items() if not token]
    if missing and len(missing) < len(tokens):
      raise ConfigError(
        f"there is no token of {' and '.join(missing)}s: give the tokens of "
        f"all of {', '.join(tokens)}, or none, since a role without a token is "
        "open to everybody"
      )
    if not missing and len(set(tokens.values())) < len(tokens):
      raise ConfigError(
        "two roles have the same token, so that one could act as the other: "
        "write one for each with openssl rand -hex 32"
      )

  @property
  def is_open(self) -> bool:
    """Returns whether everybody may do everything."""
    return not self.worker

  def check(self, endpoint: str, header: str) -> None:
    """Raises `NotAllowed` unless the header has the token of a role."""
    if self.is_open:
      return
    roles = ROLES[endpoint]
    # All are compared, so that the time tells nothing about any.
    sent = [
      bearer_token.sends(header, getattr(self, role.value)) for role in Role
    ]
    if not any(
      is_sent and role in roles
      for role, is_sent in zip(Role, sent, strict=True)
    ):
      names = " or ".join(role.value for role in Role if role in roles)
      raise NotAllowed(
        f"{endpoint} needs the token of {names}: send it as 'Authorization: "
        "Bearer <token>'"
      )


@dataclasses.dataclass(frozen=True)
class WorkerHosts:
  """Hosts at which workers may be, besides the sender of their heartbeats.

  Args:
    patterns: names, as `worker-*.internal`, and networks, as `10.0.0.0/8`;
      networks hold for addresses that are written as numbers.
  """

  patterns: tuple[str, ...] = ()

  async def check(
    self, address: str, sender: str | None, *, is_known: bool
  ) -> None:
    """Raises `Refused` for a worker's URL at another host.

    Args:
      address: the URL.
      sender: the address of the machine that sent the heartbeat.
      is_known: whether the URL has been admitted before; names are not
        resolved again, since a pause of their server must not cost workers.
    """
    host = _host_of(address)
    if is_known:
      return
    if any(_fits(host, pattern) for pattern in self.patterns):
      return
    here = _plain(sender) if sender else None
    # Of several addresses nobody knows which the controller will call.
    if here and all(
      each == here or (each.is_loopback and here.is_loopback)
      for each in await _addresses_of(host)
    ):
      return
    raise Refused(
      f"worker address {address!r:.200} is not on the machine that sent it "
      f"({sender}): set the worker's --address, or allow the host with the "
      "controller's --worker-hosts"
    )


def is_loopback(host: str) -> bool:
  """Returns whether only this machine reaches a server that listens there."""
  if host == "localhost":
    return True
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False


def _host_of(address: str) -> str:
  refusal = Refused(
    f"worker address {address!r:.200} must be a URL such as "
    "http://host:5021/api"
  )
  try:
    url = urlsplit(address)
    if url.scheme not in ("http", "https") or not url.hostname or url.port == 0:
      raise refusal
    return url.hostname
  except ValueError as error:  # of the host or the port
    raise refusal from error


def _fits(host: str, pattern: str) -> bool:
  try:
    network = ipaddress.ip_network(pattern)
  except ValueError:
    return fnmatch.fnmatchcase(host, pattern.lower())
  try:
    return _plain(host) in network
  except ValueError:
    return False


async def _addresses_of(
  host: str,
) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
  try:
    async with asyncio.timeout(_RESOLVE_S):
      found = await asyncio.get_running_loop().getaddrinfo(
        host, None, type=socket.SOCK_STREAM
      )
  except (OSError, UnicodeError, TimeoutError) as error:
    raise Refused(
      f"the host {host!r:.200} of the worker has no address: {error!r:.200}"
    ) from error
  return [_plain(str(info[4][0])) for info in found]


def _plain(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
  """Reads an address; IPv4 within IPv6 becomes IPv4."""
  address = ipaddress.ip_address(text.partition("%")[0])
  if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
    return address.ipv4_mapped
  return address
