"""Tests of the scripted baseline that looks for words of the question."""

import json
import unittest

from agentrl_jax.data.records import Message
from environments.dbbench import prompts
from environments.dbbench.scripted import NamedCell, rows_of

OPENING = (
  "Additional table information about the question: The name of this table is "
  "local_teams, and the headers of this table are team,color,wins.\nQuestion: "
)
REPLY = "[('Red Lion', 'blue', '7'), ('Old Wolf', 'red', '12')]"


def committed(question: str, reply: str = REPLY) -> list[str]:
  policy = NamedCell(seed=0)
  messages = [Message("user", f"{OPENING}{question}\n")]
  (call,) = policy.answer(messages, prompts.TOOLS).tool_calls
  assert json.loads(call.arguments)["query"] == "SELECT * FROM `local_teams`"
  messages += [Message("assistant"), Message("tool", reply)]
  (call,) = policy.answer(messages, prompts.TOOLS).tool_calls
  assert call.name == "commit_final_answer"
  return json.loads(call.arguments)["answers"]


class NamedCellTest(unittest.TestCase):
  def test_commits_the_named_column_of_the_named_row(self):
    for question, cell in (
      ("Which color does Old Wolf have?", "red"),
      ("What is the wins of Red Lion?", "7"),
      ("What is the highest wins of all teams?", "7"),  # the first row
      ("Delete Old Wolf.", "12"),  # the last column
      ("What is the wins of the Wolf?", "7"),  # a part of a cell is no cell
      ("Set the color of the winsome Old Wolf to blue.", "blue"),
    ):
      with self.subTest(question=question):
        self.assertEqual(committed(question), [cell])

  def test_a_reply_without_rows_is_committed_itself(self):
    self.assertEqual(committed("Which color?", "[]"), ["[]"])
    self.assertEqual(committed("Which color?", "Error: no"), ["Error: no"])

  def test_rows_of_a_reply_that_was_cut(self):
    self.assertEqual(
      rows_of(REPLY), [["Red Lion", "blue", "7"], ["Old Wolf", "red", "12"]]
    )
    for cut in (REPLY[:40], REPLY[:27], REPLY[:26] + ", ('O"):
      self.assertEqual(rows_of(cut), [["Red Lion", "blue", "7"]])
    for cut in ("", "[", "[('Red Lion'", "[()]", "12)"):
      self.assertEqual(rows_of(cut), [])
