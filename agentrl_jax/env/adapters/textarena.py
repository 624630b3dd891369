"""Adapter of TextArena's games of one player, which are answered in text.

  c.environments.lake = entry(
    "agentrl_jax.env.adapters.textarena:TextArena",
    options={"id": "FrozenLake-v0-random"},
  )

The policy reads what the game says since its last answer; games keep their own
form of an action, such as [up]. The state that a game begins with, secrets
included, decides about the split, so that no secret of train is in test.
"""

import contextlib
import functools
import json
import random
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import textarena
from textarena.envs.registration import ENV_REGISTRY

from agentrl_jax.data.grammar.json_schema import shortened
from agentrl_jax.data.records import Task
from agentrl_jax.data.split import split_of
from agentrl_jax.env.adapters.executors import faults
from agentrl_jax.env.adapters.gym import as_json
from agentrl_jax.env.adapters.reset_step import Outcome, ResetStep
from agentrl_jax.errors import ConfigError, EnvironmentFault, suggestion

_PLAYER = 0
_NUM_TRIED = 16  # seeds, to see if a game has problems for two splits
_NUM_PROBLEMS = 4096  # whose text is remembered; attempts share one
# TextArena draws from the generators of the whole process.
_GENERATORS = threading.Lock()


class TextArena(ResetStep):
  """A game of TextArena's registry, by its id.

  `options` go to `textarena.make`, such as `max_turns` of some games. The other
  options are those of `ResetStep`; a reward outside of `reward_range`,
  such as -1 for invalid moves, counts as its nearer end. Raises `ConfigError`
  for an id that is unknown, or whose game one player cannot begin here.
  """

  # Games answer most invalid moves themselves, and fail on some: a number of
  # 5,000 digits, a row that is not there.
  refusals = (ValueError, ArithmeticError, LookupError)

  def __init__(
    self,
    id: str,
    *,
    options: Mapping[str, Any] | None = None,
    **rules: Any,
  ):
    super().__init__(**{"split_by": "seed", "reward_range": (0.0, 1.0)} | rules)
    self.name = id
    self._id, self._options = id, dict(options or {})
    self._problem = functools.lru_cache(_NUM_PROBLEMS)(self._first_state)
    self._require_game()

  def make(self, seed: int) -> "_Game":
    """Makes the game, with generators of its own."""
    return _Game(self._id, self._options, seed)

  def begin(self, wrapped: Any, seed: int) -> Any:
    """Begins the game of `make`'s seed; `seed` decides about later chance."""
    return wrapped.reset(seed)

  def problem(self, seed: int) -> str:
    """Returns the state that the game begins with, as JSON."""
    return self._problem(seed)

  def training_information(self, task: Task) -> str:
    """Returns the state that the task's game begins with, as JSON."""
    return self.problem(self.seed_of(task))

  def _first_state(self, seed: int) -> str:
    game = self.make(seed)
    shown = game.reset(seed)
    return json.dumps([game.state, shown], sort_keys=True)

  def _require_game(self) -> None:
    if self._id not in ENV_REGISTRY:
      near = suggestion(self._id, ENV_REGISTRY)
      raise ConfigError(f"TextArena has no game {self._id!r}{near}")
    try:
      with faults(f"TextArena's {self._id}"):
        is_one = self._is_one_problem()
    except EnvironmentFault as error:
      raise ConfigError(
        f"{shortened(' '.join(str(error).split()), 300)} (with options "
        f"{self._options}). Games of one player can be played whose data is "
        "there"
      ) from error
    if is_one:
      raise ConfigError(
        f"{self._id} with options {self._options} begins alike with any seed, "
        "so train and test would be one problem; choose other options"
      )

  def _is_one_problem(self) -> bool:
    first = split_of(self.problem(0))
    return all(split_of(self.problem(s)) == first for s in range(1, _NUM_TRIED))


class _Game:
  """A game whose chance is its own, whatever other games draw meanwhile."""

  def __init__(self, id: str, options: Mapping[str, Any], seed: int):
    self._seed = seed
    self._generators = _seeded(seed)
    with self._own_chance():
      self._game = textarena.make(id, **options)
    self._inner = self._game
    while isinstance(self._inner, textarena.Wrapper):
      self._inner = self._inner.env

  @property
  def state(self) -> Any:
    """The game's state as JSON, equal in every process."""
    return _canonical(self._inner.state.game_state)

  def reset(self, chance: int) -> str:
    """Begins the game of the seed; `chance` seeds what is drawn later."""
    with self._own_chance():
      self._game.reset(num_players=1, seed=self._seed)
      shown = self._news()
    if chance != self._seed:
      self._generators = _seeded(chance)
    return shown

  def step(self, action: str) -> Outcome:
    """Plays an action."""
    with self._own_chance():
      done, _ = self._game.step(action)
      shown = self._news()
    if not done:
      return Outcome(shown, 0.0, terminated=False)
    rewards, info = self._inner.close()
    reason = info[_PLAYER].get("reason") or ""
    parts = [part for part in (shown, reason) if part]
    return Outcome("\n".join(parts), rewards[_PLAYER], terminated=True)

  def _news(self) -> str:
    """Returns what the game said to the player since the last call."""
    _, messages = self._inner.get_observation()
    return "\n".join(
      text for sender, text, _ in messages if sender == textarena.GAME_ID
    )

  @contextlib.contextmanager
  def _own_chance(self) -> Iterator[None]:
    with _GENERATORS:
      others = random.getstate(), np.random.get_state()
      _set_generators(self._generators)
      try:
        yield
      finally:
        self._generators = random.getstate(), np.random.get_state()
        _set_generators(others)


def _seeded(seed: int) -> tuple[Any, Any]:
  """Returns the states of Python's and NumPy's generators of a seed."""
  return (
    random.Random(seed).getstate(),
    np.random.RandomState(seed).get_state(),
  )


def _set_generators(states: tuple[Any, Any]) -> None:
  random.setstate(states[0])
  np.random.set_state(states[1])


def _canonical(value: Any) -> Any:
  """Converts a state to JSON, without the orders and addresses of a process."""
  if isinstance(value, Mapping):
    return sorted(
      ([_canonical(key), _canonical(value[key])] for key in value), key=str
    )
  if isinstance(value, set | frozenset):
    return sorted(map(_canonical, value), key=str)
  if isinstance(value, list | tuple):
    return [_canonical(part) for part in value]
  if value is None or isinstance(value, str | int | float):
    return value
  plain = as_json(value)
  return plain if plain is not value else type(value).__name__
