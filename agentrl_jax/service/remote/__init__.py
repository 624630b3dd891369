"""Environments in another process or in another event loop."""

from agentrl_jax.service.remote.environment import (
  RemoteEnvironment,
  connect,
  connect_foreign,
)

__all__ = ["RemoteEnvironment", "connect", "connect_foreign"]
