"""AgentRL's five environments: class, options, mistakes and place.

`options` are keyword arguments of the class that `target` names. `mistakes` are
the probabilities of the mistakes that the expert of demonstrations makes.
`place` is where sessions are played: `launch.config.settings.PlaceSettings`.
These three have what differs from the defaults, and take any further key.
"""

from collections.abc import Mapping
from typing import Any

import ml_collections
from ml_collections.config_dict import create

NAMES = ("alfworld", "dbbench", "knowledgegraph", "os_interaction", "webshop")


class Open(ml_collections.ConfigDict):
  """A section that takes any key: its reader refuses the wrong ones."""

  def lock(self) -> "Open":
    """Leaves the section open."""
    return self


class Entry(ml_collections.ConfigDict):
  """The section of an environment, whose own sections are open."""

  def __setitem__(self, key: Any, value: Any) -> None:
    """Sets a key; a section that takes the place of another is open, too."""
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      value = Open(value)
    super().__setitem__(key, value)


def get_config() -> ml_collections.ConfigDict:
  """Returns all five, by name."""
  return create(
    alfworld=entry("environments.alfworld:ALFWorld"),
    dbbench=entry("environments.dbbench:DBBench"),
    knowledgegraph=entry("environments.knowledgegraph:KnowledgeGraph"),
    os_interaction=entry(
      "environments.os_interaction:OSInteraction", options={"num_warm": 4}
    ),
    webshop=entry(
      "environments.webshop:WebShop",
      options={"num_train": 1 << 20, "num_test": 1 << 16},
    ),
  )


def entry(
  target: str,
  *,
  options: Mapping[str, Any] | None = None,
  mistakes: Mapping[str, float] | None = None,
) -> ml_collections.ConfigDict:
  """Returns the section of an environment.

  `c.environments.NAME = entry(...)` adds an environment, or a variant of one;
  NAME is its name in tasks, metrics and reports.
  """
  sections = {"options": options or {}, "mistakes": mistakes or {}, "place": {}}
  return Entry({"target": target, **sections})  # target is module:Class
