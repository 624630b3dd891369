r"""GSM8K (arXiv:2110.14168): word problems, of which the last number counts.

  python -m launch.train --config=configs/gsm8k.py:MODEL_FOLDER \
    --config.environments.questions.options.source=DATA_FOLDER

DATA_FOLDER has train.jsonl and test.jsonl, as github.com/openai/
grade-school-math has them in grade_school_math/data, or the parquet files of
folder `main` of openai/gsm8k at Hugging Face (pip install
'agentrl_jax[parquet]').
"""

from configs import finetune


def get_config(folder: str):
  """`folder` is the text after the colon on the command line."""
  c = finetune.get_config(folder)
  c.name = f"gsm8k-{c.name}"
  c.tasks.names = ("questions",)
  c.environments.questions.options.prompt = (
    "{question}\nThink step by step, and end with the number alone, as in "
    "#### 42"
  )
  return c
