r"""AgentRL's two ideas, and published objectives, on five tasks.

  python -m launch.sweep --seeds=3 --config.train.steps=40 \
    --ablation=configs/ablations/agentrl_on_five_tasks.py

The arms are those of `agentrl.py`, as in the paper's Table 6, and those of
`objectives.py`; `full` is `configs/five_tasks.py`. A cell of 40 updates takes
twenty minutes of one core, one of all 120 an hour.
"""

from configs import arms, five_tasks
from configs.ablations import agentrl, objectives

_LENGTH = {
  "loss.reduction_settings": {
    "length": five_tasks.get_config().episode.max_tokens
  }
}
ARMS = {
  **agentrl.ARMS,
  **{name: keys for name, keys in objectives.ARMS.items() if keys},
  "dr_grpo": objectives.ARMS["dr_grpo"] | _LENGTH,
}


def get_config(arm: str = "full"):
  """`arm` is the text after the colon on the command line."""
  c = five_tasks.get_config()
  c.name = "agentrl_on_five_tasks"
  return arms.apply_arm(c, ARMS, arm)
