"""The quickstart's policy on tasks that nobody here wrote.

  python -m launch.evaluate --config=configs/agentbench.py:DATA --policy=expert

DATA is a folder with AgentBench's DBBench rows and WebShop's products in it:
`agentbench/dbbench/dev.jsonl` and `webshop/products_1000.jsonl`. Prompts and
pages are AgentBench's own, in full, and so are the limits.
"""

import pathlib

from configs import base, quickstart


def get_config(data: str = "data"):
  """`data` is what follows the colon on the command line."""
  c = quickstart.get_config()
  root = pathlib.Path(data)
  c.name = "agentbench"
  for name in ("dbbench", "webshop"):
    c.environments[name].options = base.get_config().environments[name].options
  c.environments.dbbench.options.source = str(
    root / "agentbench" / "dbbench" / "dev.jsonl"
  )
  c.environments.webshop.options.products = str(
    root / "webshop" / "products_1000.jsonl"
  )
  c.episode.update(max_turns=20, max_tokens=4096, max_answer_tokens=256)
  c.train.row_length = 4096
  c.engine.context = 4096
  c.evaluation.num_tasks = 1000
  return c
