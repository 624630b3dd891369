r"""Reinforcement learning of a model in a Hugging Face folder.

  python -m launch.train --config=configs/finetune.py:FOLDER
  python -m launch.train --config=configs/finetune.py:FOLDER \
    --config.tasks.names='("alfworld",)' --config.lora.rank=16

FOLDER holds config.json, *.safetensors and the tokenizer: of Qwen2.5, Qwen3,
Llama 3 or GLM-4. Model and chat come from the folder, so nothing here sets
`model`, `tokenizer` or `chat`, and there is no warm start. Sizes are for a
model of about a billion params on one accelerator. configs/pod.py is for larger
models; `python -m launch.plan` computes their memory.
"""

import pathlib

from configs import base


def get_config(folder: str):
  """`folder` is the text after the colon on the command line."""
  c = base.get_config()
  c.name = pathlib.Path(folder).resolve().name
  c.pretrained.path = folder
  c.compute.update(dtype="bfloat16", scan_layers=True, remat="full")
  c.warm_start.epochs = 0
  c.train.update(steps=200, row_length=4096, micro_batch=1)
  c.episode.update(max_tokens=4096, max_answer_tokens=512)
  c.group.size = 8
  c.admission.update(groups_per_step=16, max_concurrent_groups=16)
  c.queue.max_groups = 16
  c.cross_policy.policy_slots = ("fresh", "every 10 lag 10")
  c.engine.update(slots=(48, 16), context=4096, lengths=(1024, 2048))
  c.checkpoint.update(every=10, keep=2)
  c.evaluation.update(num_tasks=64, concurrency=64)
  return c
