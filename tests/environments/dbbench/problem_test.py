"""Tests tables, problems and the loading of AgentBench's files."""

import json
import pathlib
import tempfile
import unittest

from agentrl_jax.errors import ConfigError
from environments.dbbench.problem import DBProblem, Table, load_problems
from tests.environments.dbbench.data import dev_rows

HASH = "0123456789abcdef" * 2
ENTRY = {
  "description": "How many?",
  "add_description": "The name of this table is t.",
  "evidence": "None needed",
  "type": ["counting"],
  "label": ["2"],
  "sql": {"query": "SELECT COUNT(*) FROM t"},
  "table": {
    "table_name": "t",
    "table_info": {
      "columns": [{"name": "a", "type": "INT"}],
      "rows": [[1], ["line\u2028separator"]],
    },
  },
}
CHANGE = {
  **ENTRY,
  "type": ["UPDATE"],
  "label": ["UPDATE t SET a = 3"],
  "sql": None,
  "table": [ENTRY["table"], ENTRY["table"]],
  "answer_md5": f"[('{HASH}_{HASH}',)]",
}


def write(text: str, name: str = "tasks.jsonl") -> pathlib.Path:
  folder = tempfile.TemporaryDirectory()
  unittest.addModuleCleanup(folder.cleanup)
  path = pathlib.Path(folder.name) / name
  path.write_text(text, encoding="utf-8")
  return path


class TableTest(unittest.TestCase):
  def test_a_row_of_another_width_is_refused(self):
    with self.assertRaisesRegex(ValueError, "2 columns, but a row of 1"):
      Table("t", ("a", "b"), (("1",),))

  def test_columns_that_a_database_refuses_are_renamed(self):
    table = Table("t", ("", "Name ", "name", "b"), ())
    self.assertEqual(table.sql_columns, ("1", "Name", "name_3", "b"))


class ProblemTest(unittest.TestCase):
  def test_three_types_change_tables(self):
    changing = [
      kind
      for kind in ("INSERT", "UPDATE", "DELETE", "counting", "other")
      if DBProblem(kind, (), "?").is_mutation
    ]
    self.assertEqual(changing, ["INSERT", "UPDATE", "DELETE"])


class LoadProblemsTest(unittest.TestCase):
  def test_reads_every_field(self):
    line = json.dumps(ENTRY, ensure_ascii=False)
    (problem,) = load_problems(write(f"{line}\n\n"))
    wanted = {
      "type": "counting",
      "question": "How many?",
      "description": "The name of this table is t.",
      "evidence": "None needed",
      "label": ("2",),
      "gold_sql": "SELECT COUNT(*) FROM t",
    }
    self.assertEqual({name: vars(problem)[name] for name in wanted}, wanted)
    self.assertEqual(problem.tables[0].columns, ("a",))
    self.assertEqual(problem.tables[0].rows, (("1",), ("line\u2028separator",)))

  def test_the_label_of_a_mutation_is_its_sql(self):
    (problem,) = load_problems(write(json.dumps([CHANGE]), "tasks.json"))
    self.assertEqual(problem.gold_sql, "UPDATE t SET a = 3")
    self.assertEqual(problem.table_hash, f"{HASH}_{HASH}")
    self.assertEqual(len(problem.tables), 2)

  def test_other_files_are_refused(self):
    for path in (
      pathlib.Path("no/such.jsonl"),
      write("{"),
      write("{}"),
      write("7"),
      write(json.dumps({**ENTRY, "type": []})),
    ):
      with self.subTest(path=path), self.assertRaises(ConfigError) as caught:
        load_problems(path)
      self.assertIn(str(path), str(caught.exception))

  def test_dev_file(self):
    problems = load_problems(dev_rows())
    changing = [problem for problem in problems if problem.is_mutation]
    self.assertEqual((len(problems), len(changing)), (60, 40))
    for problem in changing:
      self.assertRegex(problem.table_hash, r"\A[0-9a-f]{32}\Z")
      self.assertRegex(problem.gold_sql, r"\A(INSERT|UPDATE) ")
