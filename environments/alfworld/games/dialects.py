"""Tells which of ALFWorld's rules and words a game file follows.

ALFWorld's domain and grammar have changed over the years, and every game file
carries its own. Those that the Python engine was proven on are known by a
checksum of what they say, comments and layout aside; it plays no others.
"""

import dataclasses
import re
import zlib
from collections.abc import Mapping
from typing import Any

from environments.alfworld.games.game import AGENTBENCH, Dialect, Formula
from environments.alfworld.games.pddl import parse

_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
TASK = "Your task is to: "

# What differs from `AGENTBENCH`, by checksum.
_ANY_SINK = ("sinkbasin", "sink")
_DOMAINS: Mapping[int, Mapping[str, Any]] = {
  0x13775A64: {},  # AgentBench's data/alfworld/logic
  0x6DE22E23: {"cleans_in": _ANY_SINK},  # the released games
  0x088157A0: {  # a few of them
    "cleans_in": _ANY_SINK,
    "opens_one": True,
    "uses_what_is_near": True,
  },
  0x5A370159: {"has_help": True},  # alfworld 0.4
}
_GRAMMARS: Mapping[int, Mapping[str, Any]] = {
  0xB4AE2E50: {},
  0x644565C7: {"shows_opened": False},
  0xC12A7117: {
    "put": "move {o} to {r}",
    "put_reply": "You move the {o} to the {r}.",
    "names_location": False,
  },
}


def recognise(domain: str, grammar: str) -> Dialect | None:
  """The dialect of a game; None for one that is not known."""
  rules = _DOMAINS.get(domain_checksum(domain))
  words = _GRAMMARS.get(grammar_checksum(grammar))
  if rules is None or words is None:
    return None
  return dataclasses.replace(AGENTBENCH, **rules, **words)


def domain_checksum(domain: str) -> int:
  """Of the actions in a PDDL domain."""
  actions = [part for part in parse(domain) if _is_action(part)]
  return zlib.crc32(repr(sorted(actions, key=repr)).encode())


def grammar_checksum(grammar: str) -> int:
  """Of the strings in a grammar, but for the task."""
  strings = [s for s in _STRING.findall(grammar) if not s.startswith(TASK)]
  return zlib.crc32("\n".join(strings).encode())


def _is_action(part: Formula) -> bool:
  return isinstance(part, tuple) and part[:1] == (":action",)
