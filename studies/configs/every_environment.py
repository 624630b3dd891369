r"""The environments of `studies/environments`, beside all others.

  python -m launch.evaluate --config=studies/configs/every_environment.py \
    --policy=scripted --tasks=bandit/test,frozen_lake/test
"""

from configs import every_environment

OTHERS = {
  "bandit": "studies.environments.bandit:Bandit",
  "frozen_lake": "studies.environments.frozen_lake:FrozenLake",
}


def get_config():
  """`configs/every_environment.py` with two more."""
  return every_environment.with_environments(every_environment.OTHERS | OTHERS)
