"""A game, Python and tools on OpenEnv's own classes, served by its package.

uvicorn --app-dir tests/env/adapters/servers openenv_apps:game
"""

import random
import threading

import textarena
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import (
  CallToolAction,
  CallToolObservation,
)
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.tools import PyExecutor

SESSIONS = 8
CHANCE = threading.Lock()  # TextArena draws from the process's generators


class Text(Action):
  """Text of the policy."""

  text: str


class Seen(Observation):
  """Text for the policy."""

  text: str


class Game(Environment):
  """TextArena's frozen lake, another one for each seed."""

  SUPPORTS_CONCURRENT_SESSIONS = True
  state = State()

  def reset(self, seed=None, **options):
    """Begins a game."""
    with CHANCE:
      self._game = textarena.make("FrozenLake-v0-random")
      self._game.reset(num_players=1, seed=seed)
    while isinstance(self._game, textarena.Wrapper):
      self._game = self._game.env
    return Seen(text=self._news())

  def step(self, action):
    """Plays a move."""
    done, _ = self._game.step(action.text)
    reward = self._game.close()[0][0] if done else 0
    return Seen(text=self._news(), done=done, reward=max(reward, 0.0))

  def _news(self):
    _, messages = self._game.get_observation()
    return "\n".join(text for sender, text, _ in messages if sender < 0)


class Coding(Environment):
  """Asks for a program that prints a number."""

  SUPPORTS_CONCURRENT_SESSIONS = True
  state = State()

  def reset(self, seed=None, **options):
    """Begins with an interpreter of its own."""
    self._python = PyExecutor()
    self._number = random.Random(seed).randrange(10**6)
    self.state = State(exit_code=0)
    return Seen(text=f"Print the product of {self._number} and 7.")

  def step(self, action):
    """Runs a program."""
    ran = self._python.run(action.text)
    self.state = State(exit_code=ran.exit_code)
    won = ran.stdout.strip() == str(7 * self._number)
    shown = (ran.stdout + ran.stderr)[:2000]
    return Seen(text=shown, done=won, reward=float(won))


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


def _app(make, action=Text, observation=Seen):
  return create_app(make, action, observation, max_concurrent_envs=SESSIONS)


game, coding = _app(Game), _app(Coding)
tools = _app(Tools, CallToolAction, CallToolObservation)
