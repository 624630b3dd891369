"""AgentRL's five environments: class, options, mistakes and place.

`options` are keyword arguments of the class that `target` names. `mistakes` are
the probabilities of the mistakes that the expert of demonstrations makes, 0
each. The defaults and meanings of both stand in `environments.options`.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import ml_collections
from ml_collections.config_dict import create, placeholder

from environments import options as defaults

NAMES = ("alfworld", "dbbench", "knowledgegraph", "os_interaction", "webshop")


def get_config() -> ml_collections.ConfigDict:
  """Returns all five, by name."""
  return create(
    alfworld=entry_of("alfworld:ALFWorld", defaults.ALFWorldOptions),
    dbbench=entry_of("dbbench:DBBench", defaults.DBBenchOptions),
    knowledgegraph=entry_of(
      "knowledgegraph:KnowledgeGraph", defaults.KnowledgeGraphOptions
    ),
    os_interaction=entry_of(
      "os_interaction:OSInteraction", defaults.OSInteractionOptions, num_warm=4
    ),
    webshop=entry_of(
      "webshop:WebShop",
      defaults.WebShopOptions,
      num_train=1 << 20,
      num_test=1 << 16,
    ),
  )


def entry(
  target: str,
  *,
  options: Mapping[str, Any] | None = None,
  mistakes: Mapping[str, float] | None = None,
) -> ml_collections.ConfigDict:
  """Returns the section of an environment, with every key that it has.

  `c.environments.NAME = entry(...)` adds an environment, or a variant of one;
  NAME is its name in tasks, metrics and reports.
  """
  return create(
    target=target,  # module:Class
    options=ml_collections.ConfigDict(options),
    mistakes=ml_collections.ConfigDict(mistakes),
    place=create(  # where sessions are played
      containers=0,  # of its image; 0 and no address: in this process
      image="",  # "" is <containers.registry>/<folder of the environment>
      options=(),  # that differ at these places, as "engine=mariadb"
      worker="",  # http://host:port/api of a running worker
      # http://host:port/api of a controller whose workers are called NAME; of
      # several, separated by commas.
      controller="",
      # Of the controller's clients, or of the worker: a file whose first line
      # is the token, or env:NAME; "" sends none.
      token_file="",
    ),
  )


def entry_of(
  target: str,
  options: type[defaults.Options | defaults.HarborOptions],
  **changes: Any,
) -> ml_collections.ConfigDict:
  """Returns an entry with the defaults of a class of options, or `changes`."""
  keys: dict[str, Any] = {}
  for field in dataclasses.fields(options):
    if field.metadata.get("is_key", True):
      value = changes.get(field.name, field.default)
      if value is None:
        kind = typing.get_args(field.type)[0]  # of `kind | None`
        value = placeholder(typing.get_origin(kind) or kind)
      keys[field.name] = value
  return entry(
    f"environments.{target}",
    options=keys,
    mistakes=dict.fromkeys(options.mistakes, 0.0),
  )
