r"""The quickstart's policy on AgentBench's tasks and real WebShop products.

  python -m launch.evaluate --config=configs/agentbench.py:DATA --policy=expert

DATA is a folder with `agentbench/{dbbench,knowledgegraph,os_interaction}` and
their `dev` files, and `webshop/products_1000.jsonl`. Prompts, pages and limits
are AgentBench's own. Two environments must be named, because one needs a SPARQL
endpoint with Freebase, and the other a Docker engine:

  --config.tasks.names='("knowledgegraph",)' --tasks=knowledgegraph/dev \
    --config.environments.knowledgegraph.options.server=URL
  --config.tasks.names='("os_interaction",)' --tasks=os_interaction/dev
"""

import pathlib

from configs import environments, quickstart


def get_config(data: str = "data"):
  """`data` is the text after the colon on the command line."""
  c = quickstart.get_config()
  root = pathlib.Path(data)
  c.name = "agentbench"
  c.tasks.names = ("dbbench", "webshop")
  c.environments = environments.get_config()
  tasks = root / "agentbench"
  options = {name: e.options for name, e in c.environments.items()}
  options["dbbench"].source = str(tasks / "dbbench" / "dev.jsonl")
  options["knowledgegraph"].source = str(tasks / "knowledgegraph" / "dev.json")
  options["os_interaction"].source = str(tasks / "os_interaction" / "dev.json")
  options["webshop"].products = str(root / "webshop" / "products_1000.jsonl")
  c.episode.update(max_turns=20, max_tokens=4096, max_answer_tokens=256)
  c.train.row_length = 4096
  c.engine.context = 4096
  c.evaluation.num_tasks = 1000
  return c
