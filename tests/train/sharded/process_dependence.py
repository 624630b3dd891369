"""Prints the measures of prompt dependence on one device and on a mesh.

python -m tests.train.sharded.process_dependence
"""

import json
import sys

import jax
import numpy as np

from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.collapse.prompt_dependence import (
  MutualInformationConfig,
  PromptDependence,
)
from configs.base import defaults
from launch.processes.group import ProcessLimits, joined
from tests.data.records import make_group
from tests.settings import COMPUTE
from tests.train import small
from tests.train.sharded import sharded_update


def _measured(mesh, params, groups):
  policy = Policy(sharded_update.MODEL, COMPUTE, mesh)
  measure = PromptDependence(
    policy,
    defaults(MutualInformationConfig, "mutual_information", num_answers=8),
    batch=small.batch_config(micro_batch=8, row_length=48, sharing=8),
    temperature=0.9,
    tiles=small.loss_config().tiles,
  )
  shardings = sharding.param_shardings(policy.abstract_split()[0], mesh)
  placed = jax.tree.map(
    lambda x, at: jax.make_array_from_callback(x.shape, at, lambda i: x[i]),
    params,
    shardings,
  )
  return measure.measure(groups, placed)


def main() -> None:
  """Compares a mesh of all devices with one device of this process."""
  with joined(defaults(ProcessLimits, "processes")) as processes:
    one = sharding.make_mesh({}, jax.local_devices()[:1])
    axes = dict(zip(sharding.MESH_AXES, (1, 2, 2, 2, 1), strict=True))
    params = jax.tree.map(
      lambda x: np.asarray(x) * 3, sharded_update._made(sharded_update.MODEL)
    )
    rng = np.random.default_rng(0)
    groups = [make_group(rng, id=str(n), size=1) for n in range(6)]
    found = {
      "alone": _measured(one, params, groups),
      "together": _measured(sharding.make_mesh(axes), params, groups),
    }
    if processes.leads:
      sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
  main()
