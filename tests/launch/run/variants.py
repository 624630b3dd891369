"""A tiny run of two variants of one environment, each with its own mistakes."""

from configs import base
from tests.launch import tiny


def get_config():
  c = tiny.get_config()
  c.name = "variants"
  easy = base.get_config().environments.dbbench
  easy.options.update(system_prompt="short", max_rounds=2, num_columns=(3, 3))
  hard = easy.copy_and_resolve_references()
  easy.options.kinds = ("lookup",)
  hard.options.update(kinds=("count", "ranking"), num_tables=(2, 2))
  hard.mistakes.no_where = 1.0
  with c.unlocked():
    c.environments.easy, c.environments.hard = easy, hard
    c.tasks.weights.update(easy=1.0, hard=1.0)
  c.tasks.names = ("easy", "hard")
  c.tokenizer.vocab_size = 2560
  c.train.update(steps=2, row_length=640)
  c.episode.max_tokens = 640
  c.engine.context = 640
  c.group.size = 2
  c.report.keep_groups = 100
  c.evaluation.update(num_tasks=3, num_sampled=0, num_untrained=0)
  return c
