"""Every environment of `environments/`, as `configs/environments.py` has it.

  python -m launch.evaluate --config=configs/every_environment.py \
    --policy=scripted --tasks=webshop/test,arithmetic/test

Scripted policies and experts, which need no training, play them for the tables
of success in the environments' READMEs. The machines of `os_interaction` need a
Docker engine, or `--config.environments.os_interaction.options.engine=sandbox`.
"""

from collections.abc import Mapping

from configs import base, environments

OTHERS = {
  "arithmetic": "environments.arithmetic.environment:Arithmetic",
  "bfcl": "environments.bfcl:BFCL",
  "word_problems": "environments.word_problems.environment:WordProblems",
}


def get_config():
  """`base` with four more environments."""
  return with_environments(OTHERS)


def with_environments(targets: Mapping[str, str]):
  """`base` with environments that it lacks, each by its `module:Class`."""
  c = base.get_config()
  c.name = "every_environment"
  with c.unlocked():
    for name, target in targets.items():
      c.environments[name] = environments.entry(target)
      c.tasks.weights[name] = 1.0
  c.tasks.names = tuple(sorted(c.environments))
  c.episode.max_turns = 200  # answers; environments have limits of their own
  return c
