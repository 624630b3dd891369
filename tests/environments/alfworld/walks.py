"""Random games with features beyond the generator's."""

import dataclasses
import random

from environments.alfworld.games.game import STATES, Game
from environments.alfworld.generation.generator import GameGenerator
from environments.options import ALFWorldOptions


def draw_game(seed: int) -> Game:
  """Generates a game; two of three have features beyond the generator's."""
  generator = GameGenerator(
    ALFWorldOptions(num_receptacles=(4, 12), num_things=(4, 16))
  )
  game = generator.generate("train", seed).game
  return (
    game if seed % 3 == 0 else _with_rare_features(random.Random(seed), game)
  )


def _with_rare_features(rng: random.Random, game: Game) -> Game:
  """Adds things in two receptacles, elsewhere, in others, with states."""
  receptacles, things = range(len(game.receptacles)), range(len(game.things))
  inside = set(game.inside) | {
    (o, rng.choice(receptacles)) for o in things if rng.random() < 0.2
  }
  at = {pair for pair in game.at if rng.random() < 0.8} | {
    (o, rng.randrange(game.num_locations)) for o in things if rng.random() < 0.2
  }
  bowls = [o for o in things if "isreceptacleobject" in game.things[o].traits]
  held = rng.sample(things, min(2, len(things)))
  return dataclasses.replace(
    game,
    receptacles=tuple(
      dataclasses.replace(
        r,
        location=rng.randrange(max(2, game.num_locations // 2)),
        is_open=r.is_openable and rng.random() < 0.3,
      )
      for r in game.receptacles
    ),
    things=tuple(
      dataclasses.replace(
        thing,
        states=frozenset(s for s in STATES if rng.random() < 0.15),
        contents=tuple(sorted(held)) if o in bowls[:2] else (),
      )
      for o, thing in enumerate(game.things)
    ),
    inside=frozenset(inside),
    at=frozenset(at),
    start=rng.randrange(game.num_locations),
  )
