r"""On-policy distillation: a student samples, a teacher rates every token.

  python -m launch.train --config=configs/distil.py:STUDENT \
    --config.reference.path=TEACHER

STUDENT is a Hugging Face folder, as for configs/finetune.py. TEACHER is another
one or the folder of a run, of any size, with the same tokenizer: `runs/smollm2`
gives what that run has learned to a fresh copy of its model. Rewards are
measured and not learned from; `--config.advantage.weight=1` learns from both.
"""

import pathlib

from configs import smollm2


def get_config(student: str):
  """`student` is the text after the colon on the command line."""
  c = smollm2.get_config(student)
  c.name = f"{pathlib.Path(student).resolve().name}-distilled"
  c.train.steps = 10
  # The divergence of every sampled token, over the whole vocabulary. Of one
  # token alone: kl_place="advantage", kl_estimator="k1".
  c.loss.update(kl_coefficient=1.0, kl_place="loss", kl_estimator="full")
  c.advantage.update(weight=0.0, keep="all")
  c.collapse_alarm.update(std_share=0.0, min_success=0.0)  # of rewards
  c.episode.max_answer_tokens = 24
  c.checkpoint.every = 5
  c.evaluation.update(every=0, num_tasks_during=64, num_sampled_during=64)
  return c
