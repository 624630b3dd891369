"""The run of the rehearsal: two environments, two older versions, small.

DBBench is played in a container at each host of workers; sums in their process.
"""

from configs import environments
from tests.launch import tiny


def get_config():
  c = tiny.get_config()
  c.name = "rehearsed"
  with c.unlocked():
    c.environments.dbbench = environments.get_config().dbbench
    c.tasks.weights.dbbench = 1.0
  c.environments.dbbench.options.update(system_prompt="short", max_rounds=2)
  c.environments.dbbench.place.containers = 1
  c.containers.update(cpus=0.5, concurrency=16)
  c.tasks.names = ("dbbench", "arithmetic")
  # Two slices of four devices.
  c.mesh.update(data=2, fsdp=4, slices_of="processes")
  c.train.update(row_length=640, micro_batch=8, batch_timeout_s=900.0)
  c.episode.update(max_tokens=640, max_answer_tokens=16)
  c.admission.update(groups_per_step=2, max_concurrent_groups=6)
  c.queue.max_groups = 6
  c.cross_policy.policy_slots = ("fresh", "every 2 lag 2", "every 2 lag 4")
  c.cross_policy.weights = (0.5, 0.25, 0.25)
  # Of a server's four devices.
  c.engine.update(slots=(8, 4, 4), slices=(2, 1, 1), context=640)
  # A killed process returns its sessions with a delay; its episodes are played
  # again.
  c.retry.max_retries = 6
  c.rollouts.update(
    health_interval_s=1.0, sync_timeout_s=300.0, answer_timeout_s=300.0
  )
  c.checkpoint.update(every=2, keep=3)
  # With a critic even an attempt that fails as all others do teaches something.
  c.model.value_head = True
  c.advantage.estimator = "gae"
  c.loss.value_coefficient = 0.5
  c.evaluation.update(num_tasks=1, num_untrained=1, timeout_s=1800.0)
  return c
