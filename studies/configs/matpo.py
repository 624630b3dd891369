"""Workers where one context overflows, as in MATPO (arXiv:2510.04678).

  python -m launch.sweep \\
    --ablation=studies/configs/matpo.py --seeds=8

A trail of links leads over pages of notes (`studies/environments/pages`): over
two in task `short`, over three in task `long`; each is half of the tasks.
`episode.max_tokens` holds two pages: an agent that reads all pages itself
overflows in every `long` task. With workers, who read one page each, a context
is full only after several mistakes. Pages are longer than a planner's line, so
that a worker's answer never stands where the planner has one. All arms have the
same warm start, whose demonstrations show an agent alone, a planner and a
worker, and the same reward: 1 for the right page, else 0.

- `matpo`: planner and workers are trained, with one advantage for all;
- `single`: one context;
- `workers_untrained`: the planner's tokens alone are trained;
- `positional` is the negative control: MATPO's public code gives a worker's
  token the planner's advantage at the same place, already masked
  (`studies/worker_positions.py`).

Watch `success/long`, `rollout/status/agent_context_limit/long` and
`policy/token_weight`.
"""

import sys

from configs import arms, environments
from studies.configs import roles

NUM_STEPS = {"short": 2, "long": 3}
NUM_NOTES = 24
WHOLE_TOKENS = (  # the frame of calls, and each page's number
  '\n{"name": "open", "arguments": {"page": ',
  '\n{"name": "answer", "arguments": {"page": ',
  ', "left": ',
  "}}\n",
  "Follow ",
  " from ",
  "link ",
  *map(str, range(10, 100)),
)


def _agents(form):
  steps = ",".join(f"{name}={number}" for name, number in NUM_STEPS.items())
  return (
    f"{sys.executable} -m studies.environments.pages.agents {{url}} {{model}} "
    f"--form={form} --num_steps={steps} --num_notes={NUM_NOTES}"
  )


ARMS = {
  "matpo": {},
  "single": {"agents.program": _agents("alone")},
  "workers_untrained": {"train.roles": ("planner",)},
  "positional": {
    "loss.token_weight": "studies.worker_positions:as_matpo_copies_advantages"
  },
}


def get_config(arm: str = "matpo"):
  """`arm` is the text after the colon on the command line."""
  c = roles.get_config()
  c.name = "matpo"
  with c.unlocked():
    for name, num_steps in NUM_STEPS.items():
      c.tasks.weights[name] = 1.0
      c.environments[name] = environments.entry(
        "studies.environments.pages.environment:Pages",
        options={
          "num_steps": num_steps,
          "num_notes": NUM_NOTES,
          "forms": ("alone", "planner", "worker"),
        },
        mistakes={
          "wrong_entry": 0.25,
          "early_answer": 0.1,
          "no_call": 0.03,
          "broken_json": 0.03,
        },
      )
  c.tasks.names = tuple(NUM_STEPS)
  c.agents.program = _agents("planner")
  c.tokenizer.whole_tokens = WHOLE_TOKENS
  c.model.embedding_scale = 7.0
  c.warm_start.copy_gain = 4.0
  c.train.row_length = c.engine.context = 192
  c.advantage.incomplete_reward = 0.0  # a full context costs what an error does
  c.episode.update(max_turns=24, max_tokens=176)
  c.report.keep_groups = 6  # all, so that shares of tokens are those of the run
  return arms.apply_arm(c, ARMS, arm)
