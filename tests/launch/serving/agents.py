"""A run whose episodes are played by the program of docs/serving.md."""

import pathlib
import re
import sys

from ml_collections.config_dict import create

from tests.launch import tiny

ROOT = pathlib.Path(__file__).parents[3]


def get_config(folder: pathlib.Path):
  """Sums of small numbers, by experts that err; agents play.

  Their program is written into `folder`.
  """
  c = tiny.get_config()
  with c.unlocked():
    c.environments.arithmetic.options = create(max_term=9)
    c.environments.arithmetic.mistakes = create(
      wrong_sum=0.3, no_call=0.1, broken_json=0.1, skipped_add=0.0
    )
  c.agents.port = 0
  program = documented_program(folder)
  c.agents.program = f"{sys.executable} {program} {{url}} {{model}}"
  c.tokenizer.update(vocab_size=420, num_texts=200, whole_lines=8)
  c.model.update(width=48, num_heads=4, num_kv_heads=4, head_dim=12)
  c.model.mlp_width = 96
  c.warm_start.num_demonstrations = 4000
  c.warm_start.update(learning_rate=5e-3, warmup_steps=10)
  c.train.update(steps=40, row_length=512)
  c.optimizer.update(learning_rate=4e-4, warmup_steps=0)
  c.episode.update(max_turns=4, max_answer_tokens=40)
  c.sampling.temperature = 1.0
  c.group.size = 8
  c.admission.update(groups_per_step=6, max_concurrent_groups=8)
  c.queue.max_groups = 8
  c.cross_policy.draw_per = "never"
  c.engine.update(slots=(16, 1), driver="jetstream", num_slot_sizes=2)
  c.evaluation.update(num_tasks=50)
  return c


def documented_program(folder: pathlib.Path) -> str:
  """The program of docs/serving.md, as a file in the folder; its path."""
  document = (ROOT / "docs/serving.md").read_text()
  (program,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
  path = folder / "agents.py"
  path.write_text(program)
  return str(path)
