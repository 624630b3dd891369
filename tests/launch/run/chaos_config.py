"""A tiny run whose environments, answers and controller are other processes."""

from configs import environments
from tests.launch import tiny


def get_config():
  """`arithmetic` is for a controller, `boxed` the same in containers."""
  c = tiny.get_config()
  with c.unlocked():
    c.tasks.weights.boxed = 1.0
    c.environments.boxed = environments.entry(
      "environments.arithmetic.environment:Arithmetic",
      mistakes={"wrong_sum": 0.3},
    )
  c.train.steps = 1_000_000
  c.admission.update(groups_per_step=4, max_concurrent_groups=8)
  c.queue.max_groups = 8
  c.group.deadline_s = 240.0
  c.waits.update(
    session_timeout_s=100.0, reply_timeout_s=100.0, answer_timeout_s=100.0
  )
  c.rollouts.update(server_timeout_s=5.0, answer_timeout_s=80.0)
  c.report.trace_share = 1.0
  return c
