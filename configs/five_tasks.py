"""One small policy for AgentRL's five environments, on two cores.

  python -m environments.os_interaction.rootfs  # once: a Linux for its sandbox
  python -m launch.train --config=configs/five_tasks.py

The quickstart's policy and recipe with easy tasks of the other three: find one
thing in a room and put it where it belongs, follow one relation of a graph,
answer with one shell command.
"""

import ml_collections

from configs import environments, five_tasks_tokens, quickstart


def get_config():
  """`quickstart`, with three more tasks."""
  c = quickstart.get_config()
  c.name = "five_tasks"
  c.tasks.names = environments.NAMES
  _set_environments(c.environments)
  c.tokenizer.update(
    vocab_size=6144, whole_tokens=five_tasks_tokens.WHOLE_TOKENS
  )
  c.warm_start.num_demonstrations = 20_000
  c.episode.update(max_turns=10, max_tokens=512)
  c.train.update(steps=120, row_length=512, micro_batch=5)
  c.admission.update(groups_per_step=40, max_concurrent_groups=30)
  c.queue.max_groups = 40
  c.engine.update(context=512, prefill_chunks=(16, 64))
  # Many, so that a rise of ten points shows in each task and seed.
  c.evaluation.update(num_tasks=512, num_sampled=256)
  return c


def _set_environments(known: ml_collections.ConfigDict) -> None:
  """Makes the three that the quickstart leaves out as easy as its own."""
  with known.unlocked():
    known.alfworld.options.task_types = ("pick_and_place_simple",)
    # Its planner knows where things are, and a policy has to look for them.
    known.alfworld.mistakes.search = 1.0
    known.knowledgegraph.options.kinds = ("hop", "count")
    known.os_interaction.options.kinds = (
      "count_files",
      "words",
      "largest",
      "permissions",
    )
  known.alfworld.options.update(
    system_prompt="short",
    num_receptacles=(4, 4),
    num_things=(4, 5),
    max_rounds=8,
  )
  known.alfworld.mistakes.update(wrong_place=0.55, wander=0.1)
  known.knowledgegraph.options.update(
    system_prompt="short", num_hops=(1, 1), num_entities=(5, 6), max_rounds=6
  )
  known.knowledgegraph.mistakes.update(wrong_relation=0.45, stop_early=0.3)
  known.os_interaction.options.update(
    engine="sandbox", system_prompt="short", difficulty=(1, 1), max_rounds=4
  )
  known.os_interaction.mistakes.update(slip=0.5, off_by_one=0.2)
