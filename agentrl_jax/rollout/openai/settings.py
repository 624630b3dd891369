"""The server that agents elsewhere call, as the config describes it."""

import dataclasses

from agentrl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentsConfig:
  """The `agents` section of the config: who plays in place of our players."""

  port: int = -1  # of the learner's server; 0 is any; -1: there is none
  host: str = "127.0.0.1"
  token_file: str = ""  # has the token that agents must know; "": none
  idle_timeout_s: float = (
    600.0  # without a word from an agent: it is taken for gone
  )

  def __post_init__(self) -> None:
    if not -1 <= self.port < 2**16:
      raise ConfigError(
        f"agents.port={self.port} must be a port, 0 for any that is free, or "
        "-1 for no server"
      )
    unread = [
      f"agents.{field.name}={getattr(self, field.name)!r}"
      for field in dataclasses.fields(self)
      if getattr(self, field.name) != field.default
    ]
    if not self.play and unread:
      raise ConfigError(
        f"{', '.join(unread)} is read by nothing with agents.port=-1: set the "
        "port that agents are to call, or leave it as it is"
      )
    if self.idle_timeout_s <= 0:
      raise ConfigError(
        f"agents.idle_timeout_s={self.idle_timeout_s} must be more than 0"
      )

  @property
  def play(self) -> bool:
    """Whether agents elsewhere play."""
    return self.port >= 0
