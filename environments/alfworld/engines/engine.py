"""What a session needs of an engine: a play of a game, and its replies."""

import abc
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence

from environments.alfworld.engines.household import Household
from environments.alfworld.games.game import Game


@dataclasses.dataclass(frozen=True)
class Scene:
  """How things stand, in the engine's own words."""

  feedback: str
  commands: Sequence[str]  # sorted
  is_won: bool


class Play(abc.ABC):
  """One play of one game."""

  @abc.abstractmethod
  async def begin(self) -> Scene:
    """The scene before the first command. Called once, first."""

  @abc.abstractmethod
  async def act(self, command: str) -> Scene:
    """The scene after a command; one that cannot be played changes nothing."""


class Engine(abc.ABC):
  """Where games are played."""

  @abc.abstractmethod
  def open(self, game: Game) -> contextlib.AbstractAsyncContextManager[Play]:
    """A play of `game`; leaving the context frees it."""

  async def close(self) -> None:  # noqa: B027 - most have nothing to free
    """Frees what outlives plays; called once, last."""


class PythonEngine(Engine):
  """`household`: no packages, no processes, a tenth of a millisecond a step."""

  @contextlib.asynccontextmanager
  async def open(self, game: Game) -> AsyncIterator[Play]:
    """A household of its own."""
    yield _HouseholdPlay(game)


class _HouseholdPlay(Play):
  def __init__(self, game: Game):
    self._household = Household(game)

  async def begin(self) -> Scene:
    return self._scene(self._household.intro)

  async def act(self, command: str) -> Scene:
    return self._scene(self._household.act(command))

  def _scene(self, feedback: str) -> Scene:
    household = self._household
    return Scene(feedback, household.commands, household.is_won)
