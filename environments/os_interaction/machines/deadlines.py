"""Deadlines of environments' own machinery, whose lateness is a fault."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from agentrl_jax.errors import EnvironmentFault


@contextlib.asynccontextmanager
async def fault_after(limit_s: float, message: str) -> AsyncIterator[None]:
  """Raises `EnvironmentFault` with the message if the context takes longer."""
  try:
    async with asyncio.timeout(limit_s):
      yield
  except TimeoutError as error:
    raise EnvironmentFault(message) from error
