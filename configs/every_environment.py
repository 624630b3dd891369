"""Every environment of `environments/`, as `configs/environments.py` has it.

  python -m launch.evaluate --config=configs/every_environment.py \
    --policy=scripted --tasks=webshop/test,arithmetic/test

Scripted policies and experts, which need no training, play them for the tables
of success in the environments' READMEs. The machines of `os_interaction` need a
Docker engine, or `--config.environments.os_interaction.options.engine=sandbox`.
"""

from ml_collections.config_dict import create

from configs import base

OTHERS = {
  "arithmetic": "environments.arithmetic.environment:Arithmetic",
  "bandit": "environments.bandit:Bandit",
  "bfcl": "environments.bfcl:BFCL",
  "frozen_lake": "environments.frozen_lake:FrozenLake",
  "guessing": "environments.guessing:Guessing",
}


def get_config():
  """`base` with five more environments."""
  c = base.get_config()
  c.name = "every_environment"
  with c.unlocked():
    for name, target in OTHERS.items():
      c.environments[name] = create(
        target=target,
        options=create(),
        mistakes=create(),
        place=create(**c.environments.webshop.place.to_dict()),
      )
      c.tasks.weights[name] = 1.0
  c.tasks.names = tuple(sorted(c.environments))
  c.episode.max_turns = 200  # answers; environments have limits of their own
  return c
