"""A coding agent as npm has it is trained: docs/examples/coding_agent.py."""

import dataclasses
import gzip
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

import jax
import pytest

from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.policy import Policy
from launch.reports.metrics_file import read_metrics
from launch.run.training import train
from tests.launch.export_test import MODEL, write_chat
from tests.rollout.openai.harnesses_test import BIN
from tests.settings import COMPUTE

PROGRAM = pathlib.Path(__file__).parents[3] / "docs/examples/coding_agent.py"
STEPS, CONTEXT = 2, 6144
# A random policy, which is held to calls; its episodes end at their turns.
SMALL = {
  "compile_cache": "",
  "train.steps": STEPS,
  "train.row_length": CONTEXT,
  "group.size": 4,  # of which some rewards differ
  "admission.groups_per_step": 2,
  "admission.max_concurrent_groups": 2,
  "queue.max_groups": 2,
  "cross_policy.policy_slots": ("fresh",),
  "cross_policy.weights": (1.0,),
  "sampling.calls": "required",
  "episode.max_tokens": CONTEXT,
  "episode.max_turns": 2,
  "episode.max_answer_tokens": 384,
  "chat.compact_calls": True,
  "engine.context": CONTEXT,
  "engine.driver": "local",
  "engine.slots": (4,),
  "engine.num_slot_sizes": 1,
  "engine.lengths": (),
  "engine.prefill_chunks": (1024,),
  "engine.prefill_slots": 1,
  "compute.dtype": "float32",
  "compute.remat": "none",
  "compute.attention_block": 1024,
  "loss.kl_coefficient": 0.0,
  "advantage.keep": "all",
  "evaluation.num_tasks": 1,
  "evaluation.num_untrained": 1,
  "evaluation.num_sampled": 1,
}
# The example's program, whose reward a random policy varies: the length of the
# paths that it asks for, also where the limit of turns ends the episode.
AGENTS = f"""
import re, sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import coding_agent
def score(said, right):
  return len("".join(re.findall('"file_path":"([^"]*)', said))) % 7 / 6
coding_agent.score = score
coding_agent.ENDS = {{"has had its": "completed"}}
coding_agent.main(*sys.argv[1:3])
"""


def load_program():
  spec = importlib.util.spec_from_file_location("coding_agent", PROGRAM)
  program = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(program)
  return program


def write_model(folder):
  """A random model of one layer that ends its texts after some tokens."""
  model = dataclasses.replace(MODEL, num_layers=1)
  params = Policy(model, COMPUTE).init(jax.random.key(0))
  with tempfile.TemporaryDirectory() as chat:
    write_chat(pathlib.Path(chat))
    file = pathlib.Path(chat) / "tokenizer.json"
    words = json.loads(file.read_text())["model"]["vocab"]
  # A number that all hidden states share, and that a quotation mark favours.
  table = params["embedding"].at[:, 0].set(1.0)
  params = params | {"embedding": table.at[words['"'], 0].set(2.0)}
  write_params(folder, params, model, context=CONTEXT)
  write_chat(folder)


class EndsTest(unittest.TestCase):
  def test_an_agent_that_gives_up_has_ended_and_one_that_breaks_has_not(self):
    program = load_program()
    for text, status in (
      ("prompt is too long: 9 tokens", "agent context limit"),
      ("exceeded the 9 output token maximum", "agent context limit"),
      ("this episode has had its 2 turns", "task limit reached"),
      ("cannot connect", "cancelled"),
    ):
      script = f'import sys; sys.exit(\'{{"result":"{text}"}}\')'
      program.COMMAND = (sys.executable, "-c", script)
      task = {"split": "train", "index": 0}
      self.assertEqual(program.play("http://a/v1", "m", task, "1")[1], status)


@pytest.mark.full
@pytest.mark.timeout(1800)
class CodingAgentTest(unittest.TestCase):
  def test_claude_code_is_trained(self):
    if not shutil.which(f"{BIN}/claude"):
      self.skipTest(f"needs {BIN}/claude: make clients")
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    write_model(root / "model")
    (root / "agents.py").write_text(AGENTS)
    program = load_program()
    config = program.get_config(str(root / "model"))
    config.update_from_flattened_dict(SMALL | {"workdir": str(root)})
    agents = root / "agents.py"
    config.agents.program = f"{sys.executable} {agents} {{url}} {{model}}"
    path = f"{BIN}:{os.environ['PATH']}"
    with mock.patch.dict(os.environ, {"PATH": path}):
      train(config)
    run = root / program.NAME
    rows = read_metrics(run / "metrics.jsonl")
    updates = [row.values for row in rows if row.stage == "rl"]
    self.assertEqual(len(updates), STEPS)
    for values in updates:
      self.assertEqual(values[f"rollout/token_identity/{program.NAME}"], 1.0)
      self.assertGreater(values["gradient_norm"], 0.0)
      self.assertLess(values["policy/abs_log_ratio/policy_slot0"], 1e-4)
    num_results = most_turns = 0
    for path in (run / "trajectories").glob("0*.jsonl.gz"):
      for line in gzip.decompress(path.read_bytes()).splitlines():
        for kept in json.loads(line)["trajectories"]:
          lines = [turn["line"] for turn in kept["turns"]]
          self.assertEqual(set(lines), {0}, kept["transcript"])
          most_turns = max(most_turns, len(lines))
          roles = [message["role"] for message in kept["transcript"]]
          num_results += roles.count("tool")
    self.assertEqual(most_turns, 2)  # one where the first answer is cut
    self.assertGreater(num_results, 0)
