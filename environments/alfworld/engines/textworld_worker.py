"""The real engine's process: one game at a time, JSON lines in and out.

  {"game": {"pddl_domain": ..., "grammar": ..., "pddl_problem": ...}}
  {"command": "go to desk 1"}

Each line is answered by {"feedback": ..., "commands": [...], "won": ...}, after
a first {"ready": true}. Started by `textworld_engine`; it needs the packages
`alfworld` and `textworld`, which leak memory: hence a process that can be
thrown away.
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
  # alfworld makes the folder of its data when it is imported; it needs none.
  os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()
  # The planner prints; only answers may reach our reader.
  with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
    os.dup2(2, 1)
    # Packages that need not be there for the rest, and ship no types.
    from textworld.core import EnvInfos  # type: ignore
    from textworld.envs.pddl import PddlEnv  # type: ignore

    _load_planner_in_place()
    env = PddlEnv(EnvInfos())
    _write(answers, {"ready": True})
    for line in sys.stdin:
      order = json.loads(line)
      if "game" in order:
        _load(env, order["game"])
        state = env.reset()
      else:
        state, _, _ = env.step(order["command"])
      _write(
        answers,
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

  It is copied so that two games in one process do not share it. There is one
  here, and nothing may be executed from a container's scratch folder.
  """
  from fast_downward import interface  # type: ignore

  class InPlace:
    LoadLibrary = staticmethod(
      lambda path: ctypes.cdll.LoadLibrary(interface.DOWNWARD_LIB_PATH)
    )

  interface.cdll = InPlace


def _write(answers: TextIO, answer: Mapping[str, object]) -> None:
  answers.write(json.dumps(answer) + "\n")
  answers.flush()


if __name__ == "__main__":
  main()
