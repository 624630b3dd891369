"""Which rollout server is asked: plain decisions, without a wait among them.

A conversation stays with the server that has its keys and values; a new one
goes where there is least to do. Servers that are lost, full, or behind the
weights that are asked for are passed over until that changes.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.remote.wire import ServerStatus

MAX_HOMES = 1 << 16  # conversations whose server is remembered


@dataclasses.dataclass(eq=False)
class Server:
  """One rollout server, as far as is known here."""

  address: str  # host:port
  status: ServerStatus | None = None  # what it said last; None: nothing yet
  trouble: str = "has not been reached yet"  # "" while it can be reached
  num_asked: int = 0  # requests of ours that it has
  rests_until: float = 0.0  # it was full; on the pool's clock
  num_lost: int = 0  # times
  num_others: int = 0  # requests of others, when it was last heard

  @property
  def is_reachable(self) -> bool:
    """Whether it answered when it was last spoken to."""
    return not self.trouble

  @property
  def trouble_there(self) -> str:
    """What it says is wrong with itself."""
    return self.status.trouble if self.status else ""

  @property
  def load(self) -> int:
    """Requests that it has, of ours and of others."""
    return self.num_asked + self.num_others

  def publication(self, policy_slot: int) -> int:
    """Of what the policy slot serves; -1 if that is nothing."""
    served = self.status.policy_slots[policy_slot] if self.status else None
    return -1 if served is None else served.publication

  def __str__(self) -> str:
    if self.trouble:
      return f"{self.address} {self.trouble}"
    assert self.status is not None, f"{self.address} is reachable and unheard"
    said = " and ".join(
      "nothing" if s is None else f"version {s.step}"
      for s in self.status.policy_slots
    )
    draining = ", draining" if self.status.is_draining else ""
    about = f" ({self.status.trouble})" if self.status.trouble else ""
    return f"{self.address} serves {said}{draining}{about}"


class ServerPool:
  """The servers of one generator.

  `acceptable` tells the oldest publication that may be sampled from, by policy
  slot.
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
    self._needed: dict[int, int] = {}  # publication by policy slot
    self._homes: collections.OrderedDict[int, Server] = (
      collections.OrderedDict()
    )

  def choose(self, spec: SamplingSpec) -> Server | None:
    """Who is to be asked; None if nobody can be now."""
    oldest = max(
      self._needed.get(spec.policy_slot, -1),
      self._acceptable().get(spec.policy_slot, -1),
    )
    able = [
      s for s in self.servers if self._is_able(s, spec.policy_slot, oldest)
    ]
    if not able:
      return None
    home = self._homes.get(spec.conversation) if spec.conversation else None
    if home not in able:
      home = min(able, key=lambda server: server.load)
    if spec.conversation:
      self._homes[spec.conversation] = home
      self._homes.move_to_end(spec.conversation)
      if len(self._homes) > MAX_HOMES:
        self._homes.popitem(last=False)
    return home

  def need(self, publications: Mapping[int, int]) -> None:
    """Chooses only servers whose policy slots serve these publications or
    later.
    """
    self._needed |= publications

  def lagging(self) -> list[Server]:
    """Reachable servers that do not serve what is needed."""
    return [s for s in self.servers if s.is_reachable and not self._serves(s)]

  def heard(self, server: Server, status: ServerStatus) -> None:
    """A server told how it is. Raises `ConfigError` if it is another's."""
    if len(status.policy_slots) != self.num_policy_slots:
      raise ConfigError(
        f"rollout server {server.address} has {len(status.policy_slots)} "
        f"policy slots and this run {self.num_policy_slots}: start it with this "
        "run's config"
      )
    server.status, server.trouble = status, ""
    has = status.num_inside + status.num_waiting
    server.num_others = max(0, has - server.num_asked)

  def lost(self, server: Server, why: str) -> None:
    """A server cannot be reached; it is asked again once it is heard."""
    server.num_lost += server.is_reachable
    server.trouble, server.num_others = why, 0

  def rest(self, server: Server, seconds: float) -> None:
    """A server is full; it is left in peace for a while."""
    server.rests_until = self._clock() + seconds

  def _is_able(self, server: Server, policy_slot: int, oldest: int) -> bool:
    return (
      server.is_reachable
      and server.status is not None
      and server.status.answers(policy_slot)
      and self._clock() >= server.rests_until
      and server.publication(policy_slot) >= oldest
    )

  def _serves(self, server: Server) -> bool:
    return all(
      server.publication(policy_slot) >= publication
      for policy_slot, publication in self._needed.items()
    )
