"""Process of the real engine: one game at a time, JSON lines in and out.

Requests, one per line:
  {"game": {"pddl_domain": ..., "grammar": ..., "pddl_problem": ...}}
  {"command": "go to desk 1"}

After a first {"ready": true} the worker answers each request with
{"feedback": ..., "commands": [...], "won": ...}. `textworld_engine` starts it
as a script, so it imports nothing of this project.
"""

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, TextIO


def main() -> None:
  """Plays until its input ends."""
  # alfworld creates the folder of its data when imported; the worker has none.
  os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()
  # The planner prints to stdout, where the engine expects nothing but replies:
  # replies keep a copy of it, and stdout becomes stderr.
  with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
    os.dup2(2, 1)
    # These packages are optional, and ship no types.
    from textworld.core import EnvInfos  # type: ignore
    from textworld.envs.pddl import PddlEnv  # type: ignore

    _load_planner_in_place()
    env = PddlEnv(EnvInfos())
    _write(replies, {"ready": True})
    for line in sys.stdin:
      request = json.loads(line)
      if "game" in request:
        _load(env, request["game"])
        state = env.reset()
      else:
        state, _, _ = env.step(request["command"])
      _write(
        replies,
        {
          "feedback": state.feedback,
          "commands": state["admissible_commands"],
          "won": bool(state["won"]),
        },
      )


def _load(env: Any, game: Mapping[str, str]) -> None:
  from alfworld.agents.utils.misc import Demangler  # type: ignore

  env.load(dict(game))
  infos = env._entity_infos
  demangler = Demangler(game_infos=infos)
  for info in infos.values():
    info.name = demangler.demangle_alfred_name(info.id)


def _load_planner_in_place() -> None:
  """Keeps the planner's library from being copied to the scratch folder.

  fast_downward copies the library so that two games of one process do not share
  it. A worker has one game, and a container forbids execution in its scratch
  folder.
  """
  from fast_downward import interface  # type: ignore

  class InPlace:
    LoadLibrary = staticmethod(
      lambda path: ctypes.cdll.LoadLibrary(interface.DOWNWARD_LIB_PATH)
    )

  interface.cdll = InPlace


def _write(replies: TextIO, reply: Mapping[str, object]) -> None:
  replies.write(json.dumps(reply) + "\n")
  replies.flush()


if __name__ == "__main__":
  main()
