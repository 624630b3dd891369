"""The smallest config whose programs compile for every TPU."""

from configs import base


def get_config():
  c = base.get_config()
  c.name = "small"
  c.mesh.fsdp = 4
  c.model.update(width=128, num_layers=1, num_heads=4, num_kv_heads=4)
  c.model.update(head_dim=128, mlp_width=256)
  c.compute.update(dtype="bfloat16", scan_layers=True)
  c.tasks.names = ("dbbench",)
  c.train.update(row_length=512, micro_batch=8)
  c.episode.update(max_turns=8, max_tokens=512, max_answer_tokens=64)
  c.admission.update(groups_per_step=16, max_concurrent_groups=32)
  c.queue.max_groups = 32
  c.cross_policy.update(policy_slots=("fresh",), weights=(1.0,))
  c.engine.update(slots=(16,), context=512, prefill_slots=4)
  return c
