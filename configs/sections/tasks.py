"""Frequencies of tasks, and the containers that play them."""

import ml_collections
from ml_collections.config_dict import create

from configs import environments


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `tasks` and `containers`."""
  return create(
    tasks=create(
      # Names of tasks.names that reinforcement learning leaves out.
      # Demonstrations and evaluations have them: what does a policy learn of
      # them from the others?
      held_out=(),
      # Relative frequency of each environment's tasks.
      weights=create(**dict.fromkeys(environments.NAMES, 1.0)),
    ),
    containers=create(  # limits of each container that plays an environment
      registry="agentrl_jax",  # prefix of the images' names
      concurrency=64,  # sessions at once in one container
      memory_mb=2048,  # memory of one container
      cpus=1.0,  # cores of one container
      pids=512,  # processes and threads of one container
      scratch_mb=512,  # size of /tmp, which counts as memory
      mounts=(),  # folders mounted read-only, at the same path
      network="internal",  # or bridge, for Docker engines on other hosts
      start_timeout_s=120.0,  # for a container to answer
    ),
  )
