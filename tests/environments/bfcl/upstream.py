"""Verdicts of BFCL's own checker on the answers of an episode."""

import itertools

from environments.bfcl.calls import read_call

_serial = itertools.count()


def verdict(problem, answers):
  """Returns the end of BFCL's `error_type`, or None if all is right."""
  from bfcl_eval.eval_checker.multi_turn_eval import (
    multi_turn_checker,
    multi_turn_utils,
  )

  entry = {
    "id": problem.id,
    "initial_config": problem.config,
    "involved_classes": list(problem.classes),
  }
  result = multi_turn_checker.multi_turn_checker(
    decoded(problem, answers),
    [list(turn) for turn in problem.gold],
    entry,
    problem.id.rsplit("_", 1)[0],
    f"run_{next(_serial)}",  # BFCL keys its instances by model name
  )
  for name in [n for n in vars(multi_turn_utils) if n.endswith("_instance")]:
    delattr(multi_turn_utils, name)
  return None if result["valid"] else result["error_type"].split(":")[1]


def decoded(problem, answers):
  """Converts answers to BFCL's form: turns of steps of calls."""
  turns = [[]]
  for answer in answers:
    calls = [read_call(call) for call in answer.tool_calls]
    if calls and None not in calls:
      turns[-1].append([_source(call) for call in calls])
    else:
      turns.append([])
  assert turns.pop() == [], "the episode did not end with its last turn"
  assert len(turns) == len(problem.questions)
  return turns


def _source(call):
  arguments = ",".join(f"{k}={v!r}" for k, v in call.named.items())
  return f"{call.name}({arguments})"
