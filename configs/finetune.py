r"""Reinforcement learning of a model in a Hugging Face folder.

  python -m launch.train --config=configs/finetune.py:FOLDER
  python -m launch.train --config=configs/finetune.py:FOLDER \
    --config.tasks.names='("alfworld",)' --config.lora.rank=16
  python -m launch.train --config=configs/finetune.py:FOLDER \
    --config.tasks.names='("questions",)' \
    --config.environments.questions.options.source=train=a.jsonl,test=b.jsonl \
    --config.environments.questions.options.reward=my_module:is_right
  python -m launch.train --config=configs/finetune.py:FOLDER \
    --config.tasks.names='("harbor",)' \
    --config.environments.harbor.options.source=tasks

FOLDER holds config.json, *.safetensors and the tokenizer of a family that
docs/models.md lists. Model and chat come from the folder, so nothing here sets
`model`, `tokenizer` or `chat`, and there is no warm start. Sizes are for a
model of about a billion params on one accelerator; without one, for a model of
a few hundred million on two cores. configs/pod.py is for larger models. What
fits a machine, and which keys to change, says `python -m launch.plan
--device=cpu`, or h100, a100, rtx4090. The task `questions` is a
data set of yours, see docs/your_data.md; `harbor` a folder of Harbor's tasks,
see environments/harbor/README.md; `agents` are tasks that programs with a
`base_url` play, see docs/serving.md.
"""

import os
import pathlib

import ml_collections

from configs import base, environments

# Devices of NVIDIA's GPUs and of TPU hosts.
_ACCELERATORS = ("/dev/nvidia0", "/dev/accel0", "/dev/vfio/0")


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
  if not has_accelerator():
    _use_cores(c)
  with c.unlocked():
    c.environments.questions = environments.entry(
      "agentrl_jax.env.adapters.questions:Questions",
      options={
        "source": "",  # a folder, a file, or train=PATH,test=PATH
        "question": "question",  # column that the policy reads
        "answer": "answer",  # column that the reward gets; "": none
        "reward": "last_number",  # or exact_match, or module:function
        "prompt": "{question}",  # text of the first message
        "system": "",  # text of a system message; "": none
        "max_turns": 1,  # answers until the episode ends
        # Text after an answer whose reward is below 1, or module:function.
        "feedback": "That is not right. Try again.",
        "step_limit_s": 60.0,  # of the reward function
      },
    )
    c.environments.harbor = environments.entry("environments.harbor:Harbor")
    # Tasks that agents.program alone knows, as one of verifiers does.
    c.environments.agents = environments.entry(
      "agentrl_jax.env.indexed:OfAgents",
      options={"num_train": 1000, "num_test": 100},
    )
    c.tasks.weights.update(questions=1.0, harbor=1.0, agents=1.0)
  return c


def has_accelerator() -> bool:
  """Tells if jax will find one, without starting it: that takes seconds."""
  if platforms := os.environ.get("JAX_PLATFORMS"):
    return platforms != "cpu"
  return any(pathlib.Path(path).exists() for path in _ACCELERATORS)


def _use_cores(c: ml_collections.ConfigDict) -> None:
  """Sets shorter episodes, fewer at once, and products in float32.

  A CPU computes bfloat16 by way of float32, and its caches hold less.
  """
  c.compute.dtype = "float32"
  c.train.row_length = c.episode.max_tokens = c.engine.context = 2048
  c.episode.max_answer_tokens = 256
  c.admission.update(groups_per_step=8, max_concurrent_groups=8)
  c.queue.max_groups = 8
  # Each size of a batch is compiled, for longer than empty slots cost; policy
  # slots of one size share the programs.
  c.engine.update(slots=(16, 16), lengths=(512,), num_slot_sizes=1)
  c.evaluation.update(num_tasks=32, concurrency=16)
