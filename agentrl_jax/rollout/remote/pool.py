"""Chooses the rollout server of a request, without any waiting.

A conversation stays with the server that has its keys and values; a new one
goes to the server with the least load. Servers that are lost, full, or behind
the required weights are skipped until that changes.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.remote.wire import ServerStatus

MAX_CONVERSATIONS = 1 << 16  # whose server is remembered


@dataclasses.dataclass(eq=False)
class Server:
  """The known state of one rollout server."""

  address: str  # host:port
  status: ServerStatus | None = None  # reported last; None: not yet
  trouble: str = "has not been reached yet"  # "" while it can be reached
  num_requests: int = 0  # of this process
  paused_until: float = 0.0  # since it was full; by the pool's clock
  num_lost: int = 0  # times that it was lost
  num_others: int = 0  # requests of other clients, reported last

  @property
  def is_reachable(self) -> bool:
    """True if the last request to it was answered."""
    return not self.trouble

  @property
  def reported_trouble(self) -> str:
    """The problem that the server reports of itself."""
    return self.status.trouble if self.status else ""

  @property
  def load(self) -> int:
    """Requests of this process and of other clients."""
    return self.num_requests + self.num_others

  def publication(self, policy_slot: int) -> int:
    """Returns the publication that a policy slot serves; -1: none."""
    served = self.status.policy_slots[policy_slot] if self.status else None
    return -1 if served is None else served.publication

  def __str__(self) -> str:
    if self.trouble:
      return f"{self.address} {self.trouble}"
    assert self.status is not None, (
      f"{self.address} is reachable without a status"
    )
    versions = " and ".join(
      "nothing" if s is None else f"version {s.version}"
      for s in self.status.policy_slots
    )
    draining = ", draining" if self.status.is_draining else ""
    trouble = f" ({self.status.trouble})" if self.status.trouble else ""
    return f"{self.address} serves {versions}{draining}{trouble}"


class ServerPool:
  """The servers of one generator.

  `acceptable` returns the oldest publication that may be sampled from, by
  policy slot.
  """

  def __init__(
    self,
    addresses: Sequence[str],
    *,
    num_policy_slots: int,
    acceptable: Callable[[], Mapping[int, int]] = dict,
    clock: Callable[[], float] = time.monotonic,
  ):
    self.servers = [Server(address) for address in addresses]
    self.num_policy_slots = num_policy_slots
    self._clock, self._acceptable = clock, acceptable
    self._required: dict[int, int] = {}  # publication by policy slot
    self._servers_of: collections.OrderedDict[int, Server] = (
      collections.OrderedDict()
    )

  def choose(self, sampling: SamplingParams) -> Server | None:
    """Returns the server for a request; None if none is available."""
    oldest = max(
      self._required.get(sampling.policy_slot, -1),
      self._acceptable().get(sampling.policy_slot, -1),
    )
    available = [
      s
      for s in self.servers
      if self._is_available(s, sampling.policy_slot, oldest)
    ]
    if not available:
      return None
    server = (
      self._servers_of.get(sampling.conversation)
      if sampling.conversation
      else None
    )
    if server not in available:
      server = min(available, key=lambda s: s.load)
    if sampling.conversation:
      self._servers_of[sampling.conversation] = server
      self._servers_of.move_to_end(sampling.conversation)
      if len(self._servers_of) > MAX_CONVERSATIONS:
        self._servers_of.popitem(last=False)
    return server

  def require(self, publications: Mapping[int, int]) -> None:
    """Excludes servers whose policy slots serve older publications."""
    self._required |= publications

  def lagging(self) -> list[Server]:
    """Returns reachable servers that do not serve what is required."""
    return [s for s in self.servers if s.is_reachable and not self._serves(s)]

  def update(self, server: Server, status: ServerStatus) -> None:
    """Stores a server's status. Raises `ConfigError` for another run's."""
    if len(status.policy_slots) != self.num_policy_slots:
      raise ConfigError(
        f"rollout server {server.address} has {len(status.policy_slots)} "
        f"policy slots and this run {self.num_policy_slots}: start it with "
        "this run's config"
      )
    server.status, server.trouble = status, ""
    num_all = status.num_inside + status.num_waiting
    server.num_others = max(0, num_all - server.num_requests)

  def mark_lost(self, server: Server, trouble: str) -> None:
    """Excludes a server that cannot be reached, until its next status."""
    server.num_lost += server.is_reachable
    server.trouble, server.num_others = trouble, 0

  def pause(self, server: Server, seconds: float) -> None:
    """Excludes a server that is full, for a while."""
    server.paused_until = self._clock() + seconds

  def _is_available(
    self, server: Server, policy_slot: int, oldest: int
  ) -> bool:
    return (
      server.is_reachable
      and server.status is not None
      and server.status.answers(policy_slot)
      and self._clock() >= server.paused_until
      and server.publication(policy_slot) >= oldest
    )

  def _serves(self, server: Server) -> bool:
    return all(
      server.publication(policy_slot) >= publication
      for policy_slot, publication in self._required.items()
    )
