r"""AgentRL of a published model on a TPU pod, with the paper's settings.

  python -m launch.train --config=configs/pod.py:qwen2.5-14b \
    --config.pretrained.path=/models/Qwen2.5-14B-Instruct

The name after the colon is one of agentrl_jax/model/hugging_face/presets.py.
Without it the model is Qwen2.5-14B on a v5p-64: 32 chips, of which each holds
1/32 of the params and of the optimizer's state. Numbers of tasks, attempts,
tokens and updates are those of AgentRL's released configuration of its five
tasks (arXiv:2510.04206, section 4).
"""

from configs import base


def get_config(name: str = "qwen2.5-14b"):
  """`base`, with AgentRL's values, at the size of a pod."""
  c = base.get_config()
  c.name = name
  c.model.name = name
  c.mesh.update(data=1, fsdp=32, tensor=1, sequence=1)
  c.compute.update(dtype="bfloat16", scan_layers=True, remat="full")
  c.tasks.names = (
    "alfworld",
    "dbbench",
    "knowledgegraph",
    "os_interaction",
    "webshop",
  )
  c.warm_start.epochs = 0  # from the pretrained weights themselves
  c.train.update(steps=1000, row_length=8192, micro_batch=32)
  c.loss.token_chunk = 1024
  c.engine.update(
    # Room for 48 and 16 answers of 8192 tokens, or 128 and 40 of 3000.
    slots=(128, 40),
    cache_tokens=(48 * 8192, 16 * 8192),
    context=8192,
    lengths=(2048, 4096),
    prefill_chunks=(64, 512),
    prefill_tokens=8192,
  )
  c.evaluation.update(num_tasks=256, concurrency=512)
  return c
