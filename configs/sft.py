r"""Supervised training of a Hugging Face folder on chats, then RL if asked.

  python -m launch.train --config=configs/sft.py:FOLDER \
    --config.warm_start.chats=chats.jsonl
  python -m launch.export --run=runs/sft-NAME --stage=warm_start --to=FOLDER2

Rows of the file have `messages` and perhaps `tools`; see docs/your_data.md. The
loss is on the assistant's answers. Reinforcement learning follows with
`--config.train.steps=200` and a task, such as
`--config.tasks.names='("questions",)'`. Sizes are those of configs/finetune.py.
"""

from configs import finetune


def get_config(folder: str):
  """`folder` is the text after the colon on the command line."""
  c = finetune.get_config(folder)
  c.name = f"sft-{c.name}"
  c.tasks.names = ()
  c.train.steps = 0
  c.warm_start.epochs = 1
  c.warm_start.update(learning_rate=2e-5, warmup_steps=10)
  return c
