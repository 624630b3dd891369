"""A small run on sums, which a policy without skill sometimes gets right."""

from configs import environments
from tests.env.adapters import sums_of_functions
from tests.launch import tiny

TARGETS = {
  "class": "environments.arithmetic.environment:Arithmetic",
  "functions": "tests.launch.run.functions_run:SmallSums",
}


class SmallSums(sums_of_functions.Arithmetic):
  max_term = 9


def get_config(written_as="class"):
  """`written_as` is class, or functions: the same tasks either way."""
  c = tiny.get_config()
  c.name = "sums"
  options = {"max_term": 9} if written_as == "class" else {}
  with c.unlocked():
    c.environments.arithmetic = environments.entry(
      TARGETS[written_as], options=options, mistakes={"skipped_add": 0.9}
    )
  c.model.update(width=32, mlp_width=64)
  c.warm_start.num_demonstrations = 256
  c.warm_start.learning_rate = 1e-2
  c.train.steps = 3
  c.group.size = 8
  c.episode.max_answer_tokens = 32
  c.sampling.calls = "well_formed"
  c.cross_policy.policy_slots = ("fresh",)
  c.cross_policy.weights = (1.0,)
  c.cross_policy.draw_per = "never"
  c.engine.slots = (8,)
  c.checkpoint.every = 3
  # A run then repeats bit for bit.
  c.queue.order = "started"
  c.admission.max_staleness = 0
  return c
