r"""On-policy distillation: a student samples, a teacher rates every token.

  python -m launch.train --config=configs/distil.py:STUDENT \
    --config.reference.path=TEACHER

STUDENT is a Hugging Face folder, as for configs/finetune.py. TEACHER is another
one or the folder of a run, of any size, with the same tokenizer: `runs/smollm2`
gives what that run has learned to a fresh copy of its model. Rewards are
measured and not learned from; `--config.advantage.weight=1` learns from both.
"""

import pathlib

from configs import base, environments


def get_config(student: str):
  """`student` is the text after the colon on the command line."""
  c = base.get_config()
  c.name = f"{pathlib.Path(student).resolve().name}-distilled"
  c.pretrained.path = student
  with c.unlocked():
    c.tasks.weights.word_problems = 1.0
    c.environments.word_problems = environments.entry(
      "environments.word_problems.environment:WordProblems",
      options={"steps": (1, 1), "largest": 9},
    )
  c.tasks.names = ("word_problems",)
  c.compute.scan_layers = True
  c.warm_start.epochs = 0
  c.train.update(steps=10, row_length=512, micro_batch=1)
  c.optimizer.update(
    learning_rate=5e-5, warmup_steps=2, final_lr_ratio=0.1, b2=0.95
  )
  # The divergence of every sampled token, over the whole vocabulary. Of one
  # token alone: kl_place="advantage", kl_estimator="k1".
  c.loss.update(kl_coefficient=1.0, kl_place="loss", kl_estimator="full")
  c.advantage.update(weight=0.0, keep="all")
  c.collapse_alarm.update(std_share=0.0, min_success=0.0)  # of rewards
  c.episode.update(max_turns=1, max_tokens=160, max_answer_tokens=24)
  c.sampling.temperature = 0.7  # that the teacher has been trained at
  # Nothing is compared within a group; but answers share the prompt's
  # computation, so 8 of 8 tasks cost a quarter of one of 64.
  c.group.size = 8
  c.admission.update(groups_per_step=8, max_concurrent_groups=8)
  c.queue.max_groups = 8
  c.cross_policy.update(policy_slots=("fresh",), weights=(1.0,))
  c.engine.update(
    slots=(32,), context=160, num_slot_sizes=2, prefill_chunks=(16, 64)
  )
  c.checkpoint.update(every=5, keep=2)
  c.evaluation.update(num_tasks=256, concurrency=32, temperature=0.7)
  return c
