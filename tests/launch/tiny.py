"""The smallest run there is: sums, a thousand params, seconds on a CPU."""

from configs import base, environments


def get_config(start="scratch"):
  """`start` is scratch, or pretrained: for the model of a folder."""
  c = base.get_config()
  c.name = "tiny"
  with c.unlocked():
    c.tasks.weights.arithmetic = 1.0
    c.environments.arithmetic = environments.entry(
      "environments.arithmetic.environment:Arithmetic",
      mistakes={"wrong_sum": 0.3},
    )
  c.tasks.names = ("arithmetic",)
  c.tokenizer.update(vocab_size=400, num_texts=40)
  c.model.update(width=16, num_layers=2, num_heads=2, head_dim=8, mlp_width=16)
  c.model.num_kv_heads = 2
  c.warm_start.num_demonstrations = 32
  c.train.update(steps=6, row_length=320, micro_batch=2, batch_timeout_s=120.0)
  c.loss.update(kl_coefficient=0.0, token_chunk=64)
  c.episode.update(max_turns=2, max_tokens=320, max_answer_tokens=8)
  c.group.size = 2
  c.admission.update(groups_per_step=2, max_concurrent_groups=4)
  c.queue.max_groups = 4
  c.cross_policy.policy_slots = ("fresh", "every 2 lag 2")
  c.engine.update(
    driver="local",
    slots=(4, 2),
    context=320,
    num_slot_sizes=1,
    prefill_chunks=(64,),
    prefill_slots=4,
  )
  c.rollouts.update(
    poll_interval_s=0.05, health_interval_s=0.1, sync_timeout_s=120.0
  )
  c.checkpoint.update(every=2, keep=2)
  c.evaluation.update(num_tasks=2, num_untrained=2, timeout_s=120.0)
  if start == "pretrained":
    c.model = base.get_config().model
    c.tokenizer = base.get_config().tokenizer
    c.warm_start.epochs = 0
  return c
