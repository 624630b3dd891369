"""Cross-policy sampling where exploration binds: a lake that is rarely crossed.

  python -m launch.sweep --ablation=studies/configs/exploration.py --seeds=5

AgentRL (arXiv:2510.04206, section 3.1) lets an older version answer a quarter
of the turns, so that exploration goes on. The lake's warm start does not cross
most lakes in 64 attempts, and its entropy falls as it learns. `every_50` and
`every_100` serve a version that is up to so many updates old, as the paper's
stale engines do: per turn, or per trajectory.
"""

from configs import arms, base, environments
from studies.configs import starpo


def _older(updates: int, draw_per: str = "turn"):
  return {
    "cross_policy.policy_slots": ("fresh", f"every {updates}"),
    "cross_policy.weights": (0.75, 0.25),
    "cross_policy.draw_per": draw_per,
    "engine.slots": (48, 24),
  }


ARMS = {
  "never": {},
  "every_50": _older(50),
  "every_100": _older(100),
  "every_50_trajectory": _older(50, "trajectory"),
}


def get_config(arm: str = "never"):
  """`arm` is the text after the colon on the command line."""
  c = base.get_config()
  c.name = "exploration"
  with c.unlocked():
    c.environments.frozen_lake = environments.entry(
      starpo._LAKE,
      options={"size": 5, "frozen": 0.65, "max_rounds": 12},
      mistakes={"stray": 0.3, "ignore_holes": 0.6},
    )
    c.tasks.weights.frozen_lake = 1.0
  c.tasks.names = ("frozen_lake",)
  c.tokenizer.update(vocab_size=400, num_texts=400)
  c.tokenizer.whole_tokens = starpo.WHOLE_TOKENS
  c.model.update(width=64, num_layers=2, num_heads=4, num_kv_heads=4)
  c.model.update(head_dim=16, mlp_width=128, embedding_scale=7.0)
  c.warm_start.update(num_demonstrations=3000, copy_gain=4.0)
  c.warm_start.optimizer.update(learning_rate=5e-3, warmup_steps=10)
  c.train.update(
    steps=400, row_length=640, micro_batch=2, batch_timeout_s=3600.0
  )
  c.optimizer.update(learning_rate=1e-3, warmup_steps=0, b2=0.95)
  c.loss.update(kl_coefficient=0.0, token_chunk=64)
  c.advantage.update(keep="signal", incomplete_reward=0.0)
  c.episode.update(max_turns=12, max_tokens=640, max_answer_tokens=16)
  c.sampling.temperature = 1.0
  c.group.size = 8
  c.admission.update(groups_per_step=12, max_concurrent_groups=12)
  c.queue.max_groups = 12
  c.cross_policy.update(
    draw_per="never", policy_slots=("fresh",), weights=(1.0,)
  )
  c.engine.update(
    slots=(48,), context=640, num_slot_sizes=2, prefill_chunks=(16, 48)
  )
  c.checkpoint.update(every=50, keep=2)
  c.evaluation.update(
    num_tasks=512, num_sampled=512, num_untrained=4, timeout_s=3600.0
  )
  return arms.apply_arm(c, ARMS, arm)
