"""The `rollouts` and `agents` sections of the config."""

import dataclasses
import re
import shlex

from agentrl_jax.bearer_token import read_token
from agentrl_jax.errors import ConfigError

PROTOCOLS = {
  "agentrl": "launch.serve_rollouts, in binary",
  "openai": "vLLM, and engines that complete token ids as it does",
  "sglang": "SGLang",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutsConfig:
  """The `rollouts` section of the config: engines in other processes.

  Without servers, the engine runs in the learner's process, and nothing else
  here is used.
  """

  servers: str  # host:port of each, separated by commas
  protocol: str  # one of `PROTOCOLS`
  model: str  # its name at other projects' engines; "": their first model
  # File whose first line is the servers' token, or env:NAME; "": none.
  token_file: str
  need_seeds: bool  # other projects' engines must honor seeds
  snapshots: str  # folder or bucket; "" is `snapshots` of the run
  max_lag: int  # updates that weights may be behind the learner's
  poll_interval_s: float  # of a server that reads the snapshots
  health_interval_s: float  # of checks of a server
  server_timeout_s: float  # a server that is silent longer is lost
  answer_timeout_s: float  # retries on other servers included
  sync_timeout_s: float  # until all servers serve what is evaluated
  start_timeout_s: float  # of a server without a first snapshot
  grace_s: float  # of a server that is stopped

  def __post_init__(self) -> None:
    for server in self.addresses:
      if not re.fullmatch(r"[^\s/:]+:\d+|\[[\da-fA-F:]+\]:\d+", server):
        raise ConfigError(
          f"rollouts.servers={self.servers!r} has {server!r}: name each as "
          "host:port, such as --config.rollouts.servers=10.0.0.1:7100,10.0.0.2:"
          "7100"
        )
    if len(set(self.addresses)) < len(self.addresses):
      raise ConfigError(
        f"rollouts.servers={self.servers!r} names a server twice"
      )
    self._check_protocol()
    if self.max_lag < 0:
      raise ConfigError(
        f"rollouts.max_lag={self.max_lag} must be 0 (all tokens are sampled "
        "from the learner's newest weights) or a number of updates"
      )
    for name, value in dataclasses.asdict(self).items():
      if name.endswith("_s") and not value > 0:
        raise ConfigError(f"rollouts.{name}={value} must be more than 0")

  def _check_protocol(self) -> None:
    if self.protocol not in PROTOCOLS:
      raise ConfigError(
        f"rollouts.protocol={self.protocol!r} is none of {', '.join(PROTOCOLS)}"
      )
    if self.protocol == "agentrl" and (self.model or not self.need_seeds):
      raise ConfigError(
        f"rollouts.model={self.model!r} and rollouts.need_seeds="
        f"{self.need_seeds} are read where rollouts.protocol is openai or "
        "sglang; keep their defaults for rollout servers of this framework"
      )

  @property
  def addresses(self) -> tuple[str, ...]:
    """The host:port of each server; empty for an engine in this process.

    A tuple in Python's notation is accepted too, since scripts may quote it.
    """
    parts = self.servers.strip(" ()").split(",")
    return tuple(part.strip(" '\"") for part in parts if part.strip())

  def read_token(self) -> str:
    """Reads the token of `token_file`; "" without. Raises `ConfigError`."""
    return read_token(self.token_file, "rollouts.token_file=")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentsConfig:
  """The `agents` section of the config: who plays in place of our players."""

  port: int  # of the learner's server; 0 is any; -1: there is none
  host: str
  token_file: str  # has the token that agents must know; "": none
  idle_timeout_s: float  # without a word from an agent: it is taken for gone
  max_lines: int  # of tokens, that an episode may have
  program: str  # that plays, started by the run; "": agents are elsewhere

  def __post_init__(self) -> None:
    if not -1 <= self.port < 2**16:
      raise ConfigError(
        f"agents.port={self.port} must be a port, 0 for any that is free, or "
        "-1 for no server"
      )
    if not self.idle_timeout_s > 0:
      raise ConfigError(
        f"agents.idle_timeout_s={self.idle_timeout_s} must be more than 0"
      )
    try:
      shlex.split(self.program)
    except ValueError as error:
      raise ConfigError(
        f"agents.program={self.program!r} is no command line: {error}. Write "
        "it as in a shell"
      ) from error
    if self.max_lines < 1:
      raise ConfigError(
        f"agents.max_lines={self.max_lines} must be at least 1: the "
        "conversation that each call continues"
      )

  @property
  def play(self) -> bool:
    """True if external agents play."""
    return self.port >= 0
