"""A game file as ALFWorld's are, with rules and words cut down to nothing.

ALFWorld's own are no part of the project, and the Python engine plays by its
own anyhow: what it must know is their checksums, so `known` tells it these.
"""

import json
import pathlib
from unittest import mock

from environments.alfworld.engines.rendering import render_problem
from environments.alfworld.games import dialects
from tests.environments.alfworld.small_games import study

DOMAIN = "(define (domain alfred) (:action look :parameters (?a - agent)))"
GRAMMAR = '{"task": [{"rhs": "Your task is to: %s."}]}'


def write_game(path, *, game=None, task="put a mug in desk", **changes) -> None:
  """Writes a game; `changes` replace what stands there, or drop it, if None."""
  body = {
    "pddl_domain": DOMAIN,
    "grammar": GRAMMAR % task,
    "pddl_problem": render_problem(game or study()),
    "solvable": True,
  } | changes
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps({k: v for k, v in body.items() if v is not None}))


def known(**features):
  """While it lasts, the rules and words of `write_game` are a known dialect."""
  domain = dialects.domain_checksum(DOMAIN)
  grammar = dialects.grammar_checksum(GRAMMAR)
  return mock.patch.multiple(
    dialects, _DOMAINS={domain: {}}, _GRAMMARS={grammar: features}
  )
