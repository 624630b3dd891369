r"""Reinforcement learning of a model in a Hugging Face folder.

  python -m launch.train --config=configs/finetune.py:FOLDER
  python -m launch.train --config=configs/finetune.py:FOLDER \
    --config.tasks.names='("alfworld",)' --config.lora.rank=16
  python -m launch.train --config=configs/finetune.py:FOLDER \
    --config.tasks.names='("questions",)' \
    --config.environments.questions.options.source=train=a.jsonl,test=b.jsonl \
    --config.environments.questions.options.reward=my_module:is_right

FOLDER holds config.json, *.safetensors and the tokenizer: of Qwen2.5, Qwen3,
Llama 3 or GLM-4. Model and chat come from the folder, so nothing here sets
`model`, `tokenizer` or `chat`, and there is no warm start. Sizes are for a
model of about a billion params on one accelerator. configs/pod.py is for larger
models; `python -m launch.plan` computes their memory. The task `questions` is a
data set of yours, see docs/your_data.md.
"""

import pathlib

from configs import base, environments


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
    c.tasks.weights.questions = 1.0
  return c
