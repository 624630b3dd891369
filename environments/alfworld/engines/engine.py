"""Interface between a session and the engine that plays a game."""

import abc
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence

from environments.alfworld.engines.household import Household
from environments.alfworld.games.game import Game


@dataclasses.dataclass(frozen=True)
class GameState:
  """State of a game after a command, in the engine's own words."""

  feedback: str
  commands: Sequence[str]  # admissible ones, sorted
  is_won: bool


class Play(abc.ABC):
  """One play of one game."""

  @abc.abstractmethod
  async def begin(self) -> GameState:
    """Returns the state before the first command. Called once, first."""

  @abc.abstractmethod
  async def act(self, command: str) -> GameState:
    """Plays a command; one that is not admissible changes nothing."""


class GameEngine(abc.ABC):
  """Opens plays of games."""

  @abc.abstractmethod
  def open(self, game: Game) -> contextlib.AbstractAsyncContextManager[Play]:
    """Opens a play of `game`; leaving the context frees its resources."""

  async def close(self) -> None:  # noqa: B027 - most have nothing to free
    """Frees what the plays share; called once, last."""


class PythonEngine(GameEngine):
  """Plays in `Household`: no packages or processes, 0.1 ms per step."""

  @contextlib.asynccontextmanager
  async def open(self, game: Game) -> AsyncIterator[Play]:
    """Opens a new household."""
    yield _HouseholdPlay(game)


class _HouseholdPlay(Play):
  def __init__(self, game: Game):
    self._household = Household(game)

  async def begin(self) -> GameState:
    return self._state(self._household.intro)

  async def act(self, command: str) -> GameState:
    return self._state(self._household.act(command))

  def _state(self, feedback: str) -> GameState:
    household = self._household
    return GameState(feedback, household.commands, household.is_won)
