"""A machine that plays environments needs no package of the learner."""

import subprocess
import sys

LEARNERS = ("jax", "jaxlib", "jetstream", "flax", "optax", "orbax", "grain")
OF_THE_LEARNER = ("agentrl_jax.data.batch",)
PROGRAM = """
import importlib, pkgutil, sys

learners, left_out = map(eval, sys.argv[1:])


class Absent:
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in learners:
      raise ImportError(f"{name} is not installed")


sys.meta_path.insert(0, Absent())
for top in ("agentrl_jax.data", "agentrl_jax.env", "agentrl_jax.service",
            "environments"):
  package = importlib.import_module(top)
  for found in pkgutil.walk_packages(package.__path__, f"{top}."):
    if not found.name.endswith("__main__") and found.name not in left_out:
      importlib.import_module(found.name)
"""


def test_environments_and_their_workers_import_without_jax():
  words = [sys.executable, "-c", PROGRAM, repr(LEARNERS), repr(OF_THE_LEARNER)]
  done = subprocess.run(words, capture_output=True, text=True, check=False)
  assert not done.returncode, done.stderr
