"""The `rollouts` and `agents` sections of the config."""

import dataclasses
import re
import shlex

from agentrl_jax.bearer_token import read_token
from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import Section, key, seconds

PROTOCOLS = {
  "agentrl": "launch.serve_rollouts, in binary",
  "openai": "vLLM, and engines that complete token ids as it does",
  "sglang": "SGLang",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutsConfig(Section, section="rollouts"):
  """The `rollouts` section of the config: engines in other processes.

  Without servers, the engine runs in the learner's process, and nothing else
  here is used.
  """

  servers: str = key(
    "",
    "addresses of rollout servers, as host:port,host:port; '': the engine is "
    "in this process. See docs/engine.md",
  )
  protocol: str = key(
    "agentrl",
    "of the servers: agentrl, of launch.serve_rollouts; openai (vLLM) or "
    "sglang, of other projects' engines",
    one_of=PROTOCOLS,
  )
  model: str = key(
    "", "its name at other engines; '' is the first that they list"
  )
  token_file: str = key(
    "", "file whose first line is the servers' token, or env:NAME; '': no token"
  )
  need_seeds: bool = key(
    True, "require of other engines that a seed repeats an answer"
  )
  snapshots: str = key(
    "", "folder or bucket of weights; '' is snapshots of the run"
  )
  max_lag: int = key(2, "updates that weights may be behind the learner's")
  poll_interval_s: float = seconds(
    0.5, "time between a server's polls for snapshots"
  )
  health_interval_s: float = seconds(
    1.0, "time between health checks of a server"
  )
  server_timeout_s: float = seconds(
    20.0, "silence after which a server is lost"
  )
  answer_timeout_s: float = seconds(
    540.0, "wait for an answer, retries on other servers included"
  )
  sync_timeout_s: float = seconds(
    600.0, "wait for all servers to serve what is evaluated"
  )
  start_timeout_s: float = seconds(
    3600.0, "a server's wait for its first weights"
  )
  grace_s: float = seconds(
    30.0, "time for a server that must stop to finish its answers"
  )

  def __post_init__(self) -> None:
    super().__post_init__()
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

  def _check_protocol(self) -> None:
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
class AgentsConfig(Section, section="agents"):
  """The `agents` section of the config: who plays in place of our players."""

  port: int = key(
    -1,
    "of an OpenAI API in this process, by which agents of other libraries "
    "play: docs/serving.md. 0: any free one; -1: our own player plays",
    at_least=-1,
    below=2**16,
  )
  host: str = key(
    "127.0.0.1", "address to listen at; 0.0.0.0: other machines, too"
  )
  token_file: str = key(
    "", "file whose first line is the agents' token; '': none"
  )
  idle_timeout_s: float = seconds(
    600.0, "silence after which an agent counts as gone"
  )
  max_lines: int = key(
    16,
    "conversations of an episode, each of which is trained on as a line of "
    "tokens: of several agents, or of one that rewrites its history. With 1, "
    "a call that does not continue the last one is refused",
    at_least=1,
  )
  program: str = key(
    "",
    "command that plays, which the run starts; {url} and {model} stand for "
    "this server and the run's name. '': agents come by themselves",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    try:
      shlex.split(self.program)
    except ValueError as error:
      raise ConfigError(
        f"agents.program={self.program!r} is no command line: {error}. Write "
        "it as in a shell"
      ) from error

  @property
  def play(self) -> bool:
    """True if external agents play."""
    return self.port >= 0
