"""Filters of groups in StarPO-S and RAGEN-2, beside one that is random.

  python -m launch.sweep \\
    --ablation=studies/configs/starpo.py --seeds=5

RAGEN trains on the groups whose rewards vary most: a quarter of all
(`top_share`, StarPO-S, arXiv:2504.20073), or the fewest that hold 0.9 of all
std (`top_signal`, RAGEN-2, arXiv:2604.06268). Its scripts take a softmax of the
std instead, which keeps most groups without a signal too. `random` and
`random_share` are the negative controls: as many groups as `top_signal` and
`top_share` keep, whichever they are.

The tasks are RAGEN's: a lake on which moves slip, and the risky bandit. In the
latter the std of a group is the luck of its attempts. `lucky` is the bandit
again, with a machine that pays so rarely that the sure one is better: a filter
that prefers groups with a lucky attempt prefers the worse machine.

Episodes are equal in all arms, trained tokens are not: compare by both. Watch
`success/<task>`, `reward/group_std` and `policy/entropy`.
"""

from configs import arms, base, environments

RANDOM = "studies.random_filter:keep_random_groups"

ARMS = {
  "all": {},
  "top_share": {
    "advantage.keep": "top_share",
    "advantage.keep_settings": {"share": 0.25},
  },
  "top_signal": {
    "advantage.keep": "top_signal",
    "advantage.keep_settings": {"share": 0.9},
  },
  "top_softmax": {
    "advantage.keep": "top_softmax",
    "advantage.keep_settings": {"share": 0.9},
  },
  "random": {
    "advantage.keep": RANDOM,
    "advantage.keep_settings": {"share": 0.9},
  },
  "random_share": {
    "advantage.keep": RANDOM,
    "advantage.keep_settings": {"share": 0.25, "rule": "top_share"},
  },
}
_LAKE = "studies.environments.frozen_lake:FrozenLake"
_BANDIT = "studies.environments.bandit:Bandit"
# Names of machines, one token each, as a small policy learns late to copy more;
# and the texts around them. Tests compare both with the tasks.
NAMES = (
  "amber",
  "beryl",
  "coral",
  "ember",
  "flint",
  "garnet",
  "hazel",
  "iris",
  "jade",
  "laurel",
  "maple",
  "nova",
  "opal",
  "pearl",
  "quartz",
  "raven",
  "sable",
  "topaz",
  "umber",
  "violet",
  "willow",
  "zephyr",
  "cedar",
  "dune",
)
TEXTS = (
  "Go from P to G. Do not step on O, a hole.\n\n",
  " pays 0.1.\n",
  " pays 1 with a chance of 0.25.\n",
  " pays 1 with a chance of 0.04.\n",
  "Pull one of these machines.",
  '\n{"name": "move", "arguments": {"direction": "',
  '\n{"name": "pull", "arguments": {"machine": "',
  '"}}\n',
)
WHOLE_TOKENS = (*TEXTS, *NAMES)


def get_config(arm: str = "all"):
  """`arm` is the text after the colon on the command line."""
  c = base.get_config()
  c.name = "starpo"
  broken = {"no_call": 0.03, "broken_json": 0.03}
  with c.unlocked():
    c.environments.frozen_lake = environments.entry(
      _LAKE,
      options={"slip": 0.2},
      mistakes={"stray": 0.3, "ignore_holes": 0.3, **broken},
    )
    for name, chance in (("bandit", 0.25), ("lucky", 0.04)):
      c.environments[name] = environments.entry(
        _BANDIT,
        options={"chance": chance},
        mistakes={"worse_machine": 0.5, **broken},
      )
    for name in ("frozen_lake", "bandit", "lucky"):
      c.tasks.weights[name] = 1.0
  c.tasks.names = ("frozen_lake", "bandit", "lucky")
  c.tokenizer.update(vocab_size=440, num_texts=400, whole_tokens=WHOLE_TOKENS)
  c.model.update(width=64, num_layers=2, num_heads=4, num_kv_heads=4)
  c.model.update(head_dim=16, mlp_width=128, embedding_scale=7.0)
  c.warm_start.update(num_demonstrations=6000, copy_gain=4.0)
  c.warm_start.update(learning_rate=5e-3, warmup_steps=10)
  c.train.update(
    steps=120, row_length=320, micro_batch=4, batch_timeout_s=3600.0
  )
  c.optimizer.update(learning_rate=2e-3, warmup_steps=0, b2=0.95)
  c.loss.update(kl_coefficient=0.0, token_chunk=64)
  # A fall into a hole and too many moves are worth the same.
  c.advantage.incomplete_reward = 0.0
  c.episode.update(max_turns=10, max_tokens=320, max_answer_tokens=16)
  c.sampling.temperature = 1.0
  c.group.size = 8
  c.admission.update(groups_per_step=12, max_concurrent_groups=12)
  c.queue.max_groups = 12
  c.cross_policy.update(
    draw_per="never", policy_slots=("fresh",), weights=(1.0,)
  )
  c.engine.update(
    slots=(48,), context=320, num_slot_sizes=2, prefill_chunks=(16, 32)
  )
  c.checkpoint.update(every=30, keep=2)
  c.evaluation.update(
    num_tasks=64, num_sampled=64, num_untrained=4, timeout_s=3600.0
  )
  return arms.apply_arm(c, ARMS, arm)
