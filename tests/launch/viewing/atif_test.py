"""Trajectories as ATIF: what a policy did, and Harbor's models read it."""

import dataclasses
import json
import pathlib
import tempfile
import unittest

import numpy as np

from agentrl_jax.data.records import (
  Message,
  Status,
  Task,
  ToolCall,
  Trajectory,
  Turn,
  message_to_json,
)
from launch import view
from launch.viewing.atif import atif_of
from launch.viewing.server import Viewer
from tests.environments.harbor.folders import harbor_or_skip
from tests.launch.viewing.a_run import make_run

TASK = Task("harbor", "train", 3)


def a_turn(observation, sampled, version=2, **fields):
  ones = np.ones(len(sampled), np.float32)
  return Turn(
    observation=np.asarray(observation, np.int32),
    sampled=np.asarray(sampled, np.int32),
    behavior_logprob=-ones,
    raw_logprob=-ones,
    version=np.full(len(sampled), version, np.int32),
    **fields,
  )


def a_trajectory(turns, *messages, **fields):
  """Makes a trajectory of (line, message) pairs."""
  return Trajectory(
    task=TASK,
    group_id="g",
    attempt=1,
    seed=0,
    turns=tuple(turns),
    status=Status.COMPLETED,
    reward=0.5,
    metrics={"tests_ended": 1.0},
    transcript=tuple(
      {**message_to_json(message), "line": line} for line, message in messages
    ),
    **fields,
  )


def calls(*arguments):
  return Message(
    "assistant",
    "Now.",
    tuple(ToolCall("bash", text, f"c{n}") for n, text in enumerate(arguments)),
  )


PLAYED = a_trajectory(
  [a_turn([1, 2, 3], [4, 5]), a_turn([6], [7], line=0, policy_slot=1)],
  (0, Message("system", "Be good.")),
  (0, Message("user", "Do it.")),
  (0, calls('{"script": "ls"}', "{broken", '{"x": NaN}', "[1]")),
  (0, Message("tool", "out", tool_call_id="c0")),
  (0, Message("tool", "lost", tool_call_id="other")),
  (0, Message("user", "Go on.")),
  (0, Message("assistant", "Done é \ud800.")),
)
# What is odd: nothing kept, examples, experts, subagents, repeated calls.
ODD = {
  "nothing": a_trajectory([]),
  "no text": a_trajectory([a_turn([1], [2])]),
  "example": a_trajectory(
    [a_turn([1], [2])],
    (0, Message("tool", "early", tool_call_id="c0")),
    (0, calls("{}")),
    (0, Message("tool", "out", tool_call_id="c0")),
    (0, Message("assistant", "mine")),
  ),
  "expert": a_trajectory(
    [a_turn([1], [2], version=-1)], (0, Message("assistant", "x"))
  ),
  "subagents": a_trajectory(
    [a_turn([1], [2]), a_turn([3], [4], line=1), a_turn([5], [6], line=2)],
    (0, Message("assistant", "root")),
    (1, Message("assistant", "one")),
    (2, Message("user", "two")),
    roles=("main", "critic", "critic"),
  ),
  "same id": a_trajectory(
    [a_turn([1], [2])],
    (0, Message("assistant", "", (ToolCall("", "{}"), ToolCall("", "{}")))),
    (0, Message("tool", "out", tool_call_id="")),
  ),
  "not a number": a_trajectory(
    [
      dataclasses.replace(
        a_turn([1], [2]), behavior_logprob=np.full(1, np.nan, np.float32)
      )
    ],
    (0, Message("assistant", "x")),
  ),
}


class AtifTest(unittest.TestCase):
  def test_steps_tokens_and_replies(self):
    body = atif_of("a.0.1", PLAYED)
    system, user, first, again, last = body["steps"]
    self.assertEqual(
      [s["source"] for s in body["steps"]],
      ["system", "user", "agent", "user", "agent"],
    )
    self.assertEqual(user["message"], "Do it.")
    self.assertEqual(again["message"], "Go on.")
    self.assertEqual([s["step_id"] for s in body["steps"]], [1, 2, 3, 4, 5])
    arguments = [call["arguments"] for call in first["tool_calls"]]
    self.assertEqual(arguments, [{"script": "ls"}, {}, {}, {}])
    self.assertEqual(first["tool_calls"][1]["extra"], {"text": "{broken"})
    self.assertEqual(
      first["observation"]["results"],
      [{"content": "out", "source_call_id": "c0"}, {"content": "lost"}],
    )
    metrics = last["metrics"]
    self.assertEqual(metrics["prompt_token_ids"], [1, 2, 3, 4, 5, 6])
    self.assertEqual(metrics["completion_token_ids"], [7])
    self.assertEqual(metrics["logprobs"], [-1.0])
    self.assertEqual(metrics["extra"]["policy_slot"], 1)
    self.assertEqual(
      body["final_metrics"]["extra"], {"reward": 0.5, "tests_ended": 1.0}
    )
    self.assertEqual(body["extra"]["split"], "train")
    del system

  def test_what_no_policy_sampled_has_no_metrics(self):
    (expert,) = atif_of("a", ODD["expert"])["steps"]
    self.assertEqual(expert["llm_call_count"], 0)
    _, example, mine = atif_of("a", ODD["example"])["steps"]
    self.assertTrue(example["is_copied_context"])
    self.assertNotIn("metrics", example)
    self.assertEqual(mine["metrics"]["completion_token_ids"], [2])

  def test_harbors_models_read_whatever_was_kept(self):
    model = harbor_or_skip("harbor.models.trajectories").Trajectory
    for name, trajectory in {"played": PLAYED, **ODD}.items():
      with self.subTest(name):
        text = json.dumps(atif_of("a.0.0", trajectory), allow_nan=False)
        model.model_validate_json(text)

  def test_a_run_is_exported(self):
    with tempfile.TemporaryDirectory() as folder:
      run, path = pathlib.Path(folder) / "a", pathlib.Path(folder) / "a.jsonl"
      make_run(run, updates=2)
      view.main([str(run), f"--export={path}"])
      bodies = [json.loads(line) for line in path.read_text().splitlines()]
      listed = Viewer(run).listing().trajectories
      ids = [body["session_id"] for body in bodies]
      self.assertEqual(ids, [each.id for each in listed])
      self.assertFalse([*path.parent.glob("*.partial")])
      with self.assertRaises(SystemExit):
        view.main([str(run), f"--export={path.parent}/none/x.jsonl"])
