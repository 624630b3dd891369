"""Explains the metrics of a run: what each means, its unit, and who writes it.

  python -m launch.metrics
  python -m launch.metrics policy/entropy
  python -m launch.metrics groups/dropped

Prints a line for each metric whose name begins with the text, or all of them.
A metric's own name, as `rollout/success/dbbench`, is found, too.
"""

import argparse
import re
import sys

from agentrl_jax.controller import metrics as of_controller
from agentrl_jax.rollout.drivers import metrics as of_engine
from agentrl_jax.train import metrics as of_learner

_OF_THE_RUN = {
  "seconds/wait": "seconds that the learner waited for a batch",
  "seconds/train": "seconds of the step after it, up to its metrics",
  "eval/seconds": "seconds of an evaluation during RL",
  "eval/oldest_version": "oldest weights that sampled any of its tokens",
  "eval/newest_version": "newest weights that sampled any of its tokens",
  "eval/sampled_tokens/<task>": "sampled tokens of an episode, mean",
  "eval/left_out": "evaluations that were left out since the start, because "
  "the last had not ended",
  "metrics/num_not_finite": "values of the row that were not finite, and are "
  "null",
  "rollouts/servers": "reachable rollout servers",
  "rollouts/lag": "versions that the slowest server is behind",
  "rollouts/lost": "times that a server was lost",
  "rollouts/repeated": "requests that were sent once more",
  "rollouts/damaged": "servers that cannot serve the newest snapshot",
  "agents/offered": "episodes offered to agents, since the start",
  "agents/playing": "episodes that agents play now",
  "agents/finished": "episodes that agents ended",
  "agents/abandoned": "episodes that agents cancelled or left",
  "agents/cut": "episodes scored as agent context limit, because an answer "
  "was cut",
  "agents/lines": "mean lines of tokens of an agent's episode",
  "agents/thoughts_dropped": "answers to calls that left out earlier thoughts",
}
# Who writes them, and what they mean.
WRITERS = {
  "learner (agentrl_jax/train)": of_learner.MEANINGS,
  "controller (agentrl_jax/controller)": of_controller.MEANINGS,
  "engine (agentrl_jax/rollout)": of_engine.MEANINGS,
  "run (launch)": _OF_THE_RUN,
}


def is_of(name: str, written: str) -> bool:
  """Tells if a metric that a run wrote is one of that name."""
  pattern = re.sub(r"<\w+>", ".+", re.escape(name))
  by_task = "(/.+)?" if name.endswith("policy_slot<k>") else ""
  return re.fullmatch(pattern + by_task, written) is not None


def main() -> None:
  """Prints what the command line asks for."""
  parser = argparse.ArgumentParser(
    prog="python -m launch.metrics",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("name", nargs="?", default="")
  text = parser.parse_args().name
  found = [
    f"{name}\n  {meaning}; by the {writer}\n"
    for writer, meanings in WRITERS.items()
    for name, meaning in meanings.items()
    if name.startswith(text) or is_of(name, text)
  ]
  if not found:
    parser.error(
      f"no metric begins with {text!r}; without a name all are shown"
    )
  sys.stdout.write("".join(found))


if __name__ == "__main__":
  main()
