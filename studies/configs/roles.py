"""Episodes of two agents: a planner, and workers that it calls.

  python -m launch.sweep \\
    --ablation=studies/configs/roles.py --seeds=5

The agents are `docs/examples/plan_and_work.py`, which the run starts. A planner
may call several workers, or none, so that episodes differ in their lines.

- `episodes` compares whole episodes;
- `lines` is the negative control: statistics over lines, as the first releases
  of Agent Lightning (arXiv:2508.03680) took them over calls, so that episodes
  with more lines weigh more;
- `worker` and `planner` train on one role alone.
"""

import sys

from configs import arms, base, environments

ARMS = {
  "episodes": {},
  "lines": {"advantage.compare": "lines"},
  "worker": {"train.roles": ("work",)},
  "planner": {"train.roles": ("plan",)},
}


def get_config(arm: str = "episodes"):
  """`arm` is the text after the colon on the command line."""
  c = base.get_config()
  c.name = "roles"
  with c.unlocked():
    c.tasks.weights.arithmetic = 1.0
    c.environments.arithmetic = environments.entry(
      "environments.arithmetic.environment:Arithmetic",
      options={"max_term": 9},
      mistakes={
        "wrong_sum": 0.2,
        "no_call": 0.05,
        "broken_json": 0.05,
        "skipped_add": 0.2,
      },
    )
  c.tasks.names = ("arithmetic",)
  c.agents.port = 0
  c.agents.program = (
    f"{sys.executable} docs/examples/plan_and_work.py {{url}} {{model}}"
  )
  c.tokenizer.update(vocab_size=420, num_texts=200, whole_lines=8)
  c.model.update(width=48, num_layers=2, num_heads=4, num_kv_heads=4)
  c.model.update(head_dim=12, mlp_width=96)
  c.warm_start.num_demonstrations = 12_000
  c.warm_start.update(learning_rate=5e-3, warmup_steps=10)
  c.train.update(steps=40, row_length=320, micro_batch=4, batch_timeout_s=300.0)
  c.optimizer.update(learning_rate=4e-4, warmup_steps=0)
  c.loss.update(kl_coefficient=0.0, token_chunk=64)
  c.episode.update(max_turns=12, max_tokens=320, max_answer_tokens=40)
  c.sampling.temperature = 1.0
  c.group.size = 8
  c.admission.update(groups_per_step=6, max_concurrent_groups=8)
  c.queue.max_groups = 8
  c.cross_policy.update(
    draw_per="never", policy_slots=("fresh",), weights=(1.0,)
  )
  c.engine.update(
    slots=(32,), context=320, num_slot_sizes=2, prefill_chunks=(16, 64)
  )
  c.checkpoint.update(every=10, keep=2)
  c.evaluation.update(num_tasks=64, num_sampled=64, num_untrained=8)
  return arms.apply_arm(c, ARMS, arm)
