"""Tools on OpenEnv's own classes, served by its package.

uvicorn --app-dir tests/env/adapters/servers openenv_apps:tools
"""

import random

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import (
  CallToolAction,
  CallToolObservation,
)
from openenv.core.env_server.types import Observation, State

SESSIONS = 8


class Tools(MCPEnvironment):
  """A number to guess, by a tool."""

  SUPPORTS_CONCURRENT_SESSIONS = True
  state = State()

  def __init__(self):
    server = FastMCP("numbers")

    @server.tool
    def guess(number: int) -> str:
      """Guesses the number."""
      self._won = number == self._number
      return "right" if self._won else "lower, or higher"

    super().__init__(server)

  def reset(self, seed=None, **options):
    """Begins with another number."""
    self._number, self._won = random.Random(seed).randrange(10**6), False
    return Observation(metadata={"hint": str(self._number % 1000)})

  async def step_async(self, action, **options):
    """Calls a tool."""
    seen = await super().step_async(action, **options)
    if isinstance(seen, CallToolObservation):
      seen.reward, seen.done = float(self._won), self._won
    return seen

  def _step_impl(self, action, **options):
    raise ValueError("there are tools alone")


tools = create_app(
  Tools, CallToolAction, CallToolObservation, max_concurrent_envs=SESSIONS
)
